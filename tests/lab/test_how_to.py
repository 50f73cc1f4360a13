"""The commands of docs/how-to/two-machines.md, in the lab, on hosts with a bare Python."""

from __future__ import annotations

import re
import shlex
import sys
import zipfile
from pathlib import Path

import pytest

from dragoman.cluster.setup import requirements
from lab.conftest import OpenLab
from lab.laboratory import Lab

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "two-machines.md"
MOST_COMMANDS = 6


def block(kind: str) -> str:
    found = re.search(rf"^```{kind}[^\n]*\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def commands() -> list[str]:
    return block("lab").splitlines()


def test_the_page_has_no_more_than_six_commands() -> None:
    assert 0 < len(commands()) <= MOST_COMMANDS


def give_package_index(lab: Lab, folder: Path) -> None:
    """The lab has no internet: pip finds each package as a wheel that points to the real one."""
    folder.mkdir()
    site_packages = next(path for path in sys.path if path.endswith("site-packages"))
    for requirement in requirements(gpus=False):
        make_wheel(folder, *requirement.split("=="), site_packages=site_packages)
    for host in lab.hosts:
        config = host.home / ".config" / "pip"
        config.mkdir(parents=True)
        (config / "pip.conf").write_text(f"[global]\nno-index = true\nfind-links = {folder}\n")


def make_wheel(folder: Path, name: str, version: str, *, site_packages: str) -> None:
    """A wheel of this name whose only content is a path to where the package really is."""
    plain = name.replace("-", "_")
    info = f"{plain}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{plain}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{plain}_lab.pth", f"{site_packages}\n")
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def lab(make_lab: OpenLab, tmp_path: Path) -> Lab:
    made = make_lab(["alpha", "beta"], rate="100mbit")
    give_package_index(made, tmp_path / "wheels")
    (made.controller.home / ".ssh" / "known_hosts").write_text("")
    return made


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_commands_work_as_they_are_written(lab: Lab) -> None:
    (lab.controller.home / "hosts.toml").write_text(block("toml"))
    path = f"PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH"
    for command in commands():
        lab.controller.run(["sh", "-c", f"{path}; {command}"], timeout_s=300)
    (run,) = (lab.controller.home / "runs").iterdir()
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-0000020"]
    for host in lab.hosts:
        assert (host.home / ".dragoman" / "venv" / "bin" / "python").exists()
