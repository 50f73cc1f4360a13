"""docker/compose.yaml; tests/image builds the image itself, if the machine can."""

from __future__ import annotations

from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_compose_file_asks_for_the_resources_of_training() -> None:
    text = (REPOSITORY / "docker" / "compose.yaml").read_text(encoding="utf-8")
    services = yaml.safe_load(text)["services"]
    assert set(services) == {"cpu", "gpu"}
    for service in services.values():
        assert service["network_mode"] == "host"
        assert service["shm_size"] == "2gb"
        assert service["user"] == "${UID:-1000}:${GID:-1000}"
        # Any user's own, whom the image may not know.
        (volume,) = service["volumes"]
        assert volume == f"../work:{service['environment']['HOME']}"
        build = service["build"]
        assert (REPOSITORY / "docker" / build["context"] / build["dockerfile"]).is_file()
    (device,) = services["gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
