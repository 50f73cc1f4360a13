"""The container image, really built and its command really run, without a container engine.

buildah builds docker/Dockerfile on a Debian that debootstrap makes; packages come from wheels that
are collected beforehand, so that inside nothing depends on this machine's settings of pip.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
TOOLS = ("buildah", "debootstrap")
BASE = "localhost/dragoman-test-base"
IMAGE = "localhost/dragoman-test"
BRIEF = {
    "corpus.subword.vocab_size": "1000",
    "model.d_model": "48",
    "model.d_ffn": "96",
    "train.max_steps": "4",
    "train.validate_at_start": "false",
    "train.validate_every_steps": "4",
    "evaluate.bleu_pairs": "5",
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(os.geteuid() != 0, reason="building an image here needs root"),
    pytest.mark.skipif(
        any(shutil.which(tool) is None for tool in TOOLS),
        reason="no buildah or debootstrap here (Debian packages of these names)",
    ),
    pytest.mark.skipif(
        sys.version_info[:2] != (3, 11), reason="the Debian inside has Python 3.11, so have wheels"
    ),
]


class Buildah:
    """buildah with a store of its own, which is gone with its folder."""

    def __init__(self, folder: Path) -> None:
        self._options = [
            *("--storage-driver", "vfs"),
            *("--root", str(folder / "root"), "--runroot", str(folder / "runroot")),
        ]

    def __call__(self, *arguments: str | Path) -> str:
        """Run it; a failure shows what it said."""
        command = ["buildah", *self._options, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
        return done.stdout


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    folder = tmp_path_factory.mktemp("buildah")
    yield Buildah(folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that the image installs, as files."""
    folder = tmp_path_factory.mktemp("wheels")
    collect = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder)]
    constraints = ["-c", str(REPOSITORY / "constraints.txt")]
    wanted = ["pip", "torch", f"{REPOSITORY}[fetch,gpu,serve]", "hatchling", "editables"]
    subprocess.run([*collect, *constraints, *wanted], check=True)
    return folder


@pytest.fixture(scope="module")
def image(buildah: Buildah, wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image, built from docker/Dockerfile."""
    debian = tmp_path_factory.mktemp("debian")
    packages = "python3,python3-venv,ca-certificates"
    make = ["debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", str(debian)]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    container = buildah("from", "scratch").strip()
    (debian / "etc" / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    buildah("add", "--quiet", container, debian, "/")
    buildah("commit", "--quiet", "--rm", container, BASE)
    shutil.rmtree(debian)
    buildah(
        *("bud", "--isolation", "chroot", "--build-arg", f"BASE={BASE}"),
        *("--volume", f"{wheels}:/wheels:ro"),
        *("--file", REPOSITORY / "docker" / "Dockerfile", "--tag", IMAGE, REPOSITORY),
    )
    return IMAGE


def test_the_image_trains_as_somebody_who_is_not_root(
    buildah: Buildah, image: str, tmp_path: Path
) -> None:
    container = buildah("from", image).strip()
    inside = ["run", "--isolation", "chroot", container, "--"]
    assert buildah(*inside, "id", "-u").strip() == "1000"
    settings = [word for key, value in BRIEF.items() for word in ("--set", f"{key}={value}")]
    said = buildah(*inside, "dragoman", "run", "demo", "--ranks", "2", *settings)
    assert "trained to its end" in said
    mounted = Path(buildah("mount", container).strip())
    (run,) = (mounted / "work" / "runs").iterdir()
    assert (run / "checkpoints" / "step-0000004" / "model.safetensors").is_file()
    assert {path.stat().st_uid for path in run.rglob("*")} == {1000}


def test_the_image_names_dragoman_as_its_entrypoint_and_user(buildah: Buildah, image: str) -> None:
    config = yaml.safe_load(buildah("inspect", "--type", "image", image))["OCIv1"]["config"]
    assert config["Entrypoint"] == ["dragoman"]
    assert config["User"] == "dragoman"
