"""The commands that `dragoman setup` would run on a host."""

from __future__ import annotations

import pytest

from dragoman.base.errors import ConfigError
from dragoman.cluster.hosts import Host
from dragoman.cluster.setup import commands, environment_of, requirements


def test_packages_have_the_versions_of_this_machine_however_they_were_built() -> None:
    wanted = list(requirements(gpus=False))
    assert [one for one in wanted if one.startswith("torch==")]
    assert not [one for one in wanted if "+" in one]
    assert not [one for one in wanted if one.startswith(("pytest", "mypy"))]


def test_hosts_with_gpus_get_the_library_that_measures_them() -> None:
    """Without it a run says nothing of power and use, and doctor does not miss it."""
    install = commands(Host(address="a", name="a", gpus=1))[-1]
    assert [one for one in install if one.startswith("nvidia-ml-py")]
    assert set(requirements(gpus=True)) - set(requirements(gpus=False)) == {install[-1]}


def test_packages_go_into_an_environment_of_their_own() -> None:
    host = Host(address="a", name="a", slots=1)
    assert environment_of(host) == ".dragoman/venv"
    probe, make, install = commands(host)
    assert probe[0] == make[0] == "python3"
    assert make[1:] == ["-m", "venv", ".dragoman/venv"]
    assert install[:4] == [".dragoman/venv/bin/python", "-m", "pip", "install"]


@pytest.mark.parametrize("python", ["python3", "bin/python"])
def test_the_system_s_own_python_is_left_alone(python: str) -> None:
    with pytest.raises(ConfigError, match="not in a virtual environment"):
        environment_of(Host(address="a", name="a", slots=1, python=python))
