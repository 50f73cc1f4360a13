"""`dragoman export --push` to a Hub on this machine, which huggingface_hub itself talks to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard

from dragoman.formats.bundle import Bundle
from fake_hub import TOKEN, FakeHub, fake_hub
from small_run import small_run

NAME = "somebody/small-en-de"


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with fake_hub() as started:
        yield started


def begin(hub: FakeHub, home: Path, *arguments: str, token: str = TOKEN) -> subprocess.Popen[str]:
    environment = os.environ | {
        "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1",
    }  # fmt: skip
    environment.pop("HF_TOKEN", None)
    if token:
        environment["HF_TOKEN"] = token
    command = [sys.executable, "-m", "dragoman", "export", str(small_run().path), "--push"]
    return subprocess.Popen(
        [*command, *(arguments or (NAME,))],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def pushed(hub: FakeHub, home: Path, *arguments: str, token: str = TOKEN) -> tuple[int, str, str]:
    with begin(hub, home, *arguments, token=token) as process:
        out, error = process.communicate()
    assert TOKEN not in out + error
    return process.returncode, out, error


def check_complete(hub: FakeHub, folder: Path) -> None:
    files = hub.models[NAME]
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    digests = json.loads(files["digests.json"])
    assert set(files) == {*digests.get("files", digests), "digests.json"}
    assert Bundle.open(folder).info.kind == "huggingface"


def test_the_model_arrives_with_a_card_that_the_hub_reads(hub: FakeHub, tmp_path: Path) -> None:
    code, out, error = pushed(hub, tmp_path, NAME, "--licence", "CC BY 4.0", "--private")
    assert code == 0, error
    assert out == f"{hub.url}/{NAME}\n{hub.url}/{NAME}/commit/{1:040x}\n"
    assert hub.private[NAME]
    check_complete(hub, tmp_path / "downloaded")
    card = ModelCard(hub.models[NAME]["README.md"].decode())
    data = yaml.safe_load(card.data.to_yaml())
    assert data["language"] == ["en", "de"]
    assert data["license"] == "cc-by-4.0"
    assert data["library_name"] == "transformers"
    assert data["pipeline_tag"] == "translation"
    assert {"translation", "pegasus"} <= set(data["tags"])
    (index,) = data["model-index"]
    metrics = [one for result in index["results"] for one in result["metrics"]]
    assert {one["type"] for one in metrics} == {"bleu", "chrf"}
    for one in metrics:
        assert "|version:" in one["args"]["signature"]
        assert isinstance(one["value"], float)
    # The same again changes nothing but the time in it, and sends nothing large.
    sent = len(hub.uploads)
    assert pushed(hub, tmp_path, NAME, "--licence", "CC BY 4.0")[0] == 0
    assert len(hub.uploads) == sent


@pytest.mark.slow
def test_a_second_push_completes_a_killed_one(hub: FakeHub, tmp_path: Path) -> None:
    hub.breaks_off = True
    with begin(hub, tmp_path) as process:
        assert hub.begun.wait(120)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert hub.models[NAME] == {}
    hub.breaks_off = False
    assert pushed(hub, tmp_path)[0] == 0
    check_complete(hub, tmp_path / "downloaded")
    assert hub.commits == 1


def test_each_refusal_is_one_line(hub: FakeHub, tmp_path: Path) -> None:
    for arguments, token, said in (
        ((NAME,), "", "there is no token for the Hub"),
        ((NAME,), "hf_wrong", "the Hub refuses the token"),
        (("no-owner",), TOKEN, "'no-owner' is not the name of a model"),
        (("some/../body",), TOKEN, "is not the name of a model"),
    ):
        code, out, error = pushed(hub, tmp_path, *arguments, token=token)
        assert (code, out) == (2, "")
        assert said in error
        assert error.count("\n") == 1
        assert "hf_wrong" not in error
    hub.url = "http://127.0.0.1:9"  # nobody listens there
    code, _, error = pushed(hub, tmp_path)
    assert code == 1
    assert "cannot be reached" in error
    assert error.count("\n") == 1
    assert not hub.models
