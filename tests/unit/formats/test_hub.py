"""Answers of a Hub: huggingface_hub itself talks to one on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

from dragoman.base.errors import ConfigError, DragomanError, MachineError
from dragoman.formats.hub import Pushed, push
from fake_hub import TOKEN, FakeHub, fake_hub

NAME = "somebody/small-en-de"
CARD = "---\nlicense: mit\n---\n"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    disable_progress_bars()
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    with fake_hub() as started:
        yield started


def send(hub: FakeHub, folder: Path, *, card: str = CARD) -> Pushed:
    folder.mkdir(exist_ok=True)
    (folder / "README.md").write_text(card)
    (folder / "a.model").write_bytes(b"pieces")
    (folder / "model.safetensors").write_bytes(b"weights")
    return push(HfApi(endpoint=hub.url), folder, NAME, private=False)


def refusal(hub: FakeHub, folder: Path, *, card: str = CARD) -> DragomanError:
    with pytest.raises(DragomanError) as refused:
        send(hub, folder, card=card)
    assert TOKEN not in str(refused.value)
    assert len(str(refused.value)) < 600
    assert "\n" not in str(refused.value)
    return refused.value


@pytest.mark.parametrize(
    ("part", "content"),
    [
        ("/repos/create", b"{}"),
        ("/repos/create", b"[1]"),
        ("/repos/create", b"<html>"),
        ("/repos/create", b'{"url": 5}'),
        ("/validate-yaml", b"<html>"),
        ("/validate-yaml", b'{"warnings": [1]}'),
        ("/preupload/", b"{}"),
        ("/lfs/objects/batch", b'{"objects": [{"oid": 1}]}'),
        ("/lfs/objects/batch", b"[" * 100_000),
        ("/commit/", b"{}"),
        ("/commit/", b"[1]"),
    ],
)
def test_an_answer_of_another_form_is_one_line(
    hub: FakeHub, tmp_path: Path, part: str, content: bytes
) -> None:
    hub.answers[part] = (200, content)
    error = refusal(hub, tmp_path / "export")
    assert isinstance(error, MachineError)
    assert error.problem.startswith("the Hub's answer is not understood")
    assert error.place == hub.url
    assert "HF_ENDPOINT" in error.remedy


@pytest.mark.parametrize("href", ["file:///tmp/xx", "nothing", "ftp://127.0.0.1/x"])
def test_a_file_goes_to_no_address_but_of_the_web(hub: FakeHub, tmp_path: Path, href: str) -> None:
    hub.upload = href
    error = refusal(hub, tmp_path / "export")
    assert error.problem.startswith("the Hub's answer is not understood")


def test_messages_of_a_hub_are_shown_without_token_and_controls(
    hub: FakeHub, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = f"\x1b[31m bad\nBearer {TOKEN} " + "z" * 3000
    hub.answers["/repos/create"] = (400, json.dumps({"error": said}).encode())
    error = refusal(hub, tmp_path / "export")
    assert error.problem.startswith("the Hub answers: �[31m bad Bearer <token> zzz")
    hub.answers.clear()
    address = f"{hub.url}/{NAME}/commit/"
    answer = {"commitUrl": f"{address}{TOKEN}\x1b[31m\n", "commitOid": "1" * 40}
    hub.answers["/commit/"] = (200, json.dumps(answer).encode())
    assert send(hub, tmp_path / "export").commit == f"{address}<token>�[31m"
    hub.headers["X-HF-Warning"] = f"topic; so be warned {TOKEN} " + "z" * 3000
    send(hub, tmp_path / "export")
    out, shown = capfd.readouterr()
    assert TOKEN not in out + shown
    assert "z" * 300 not in shown


def test_a_rejection_of_the_card_by_the_hub_is_blamed_on_the_card(
    hub: FakeHub, tmp_path: Path
) -> None:
    error = refusal(hub, tmp_path / "export", card="---\nmodel-index: 5\n---\n")
    assert isinstance(error, ConfigError)
    assert error.problem.startswith("the Hub rejects the card: Invalid metadata")


def test_a_refused_upload_is_a_refusal(hub: FakeHub, tmp_path: Path) -> None:
    hub.verify = f"{hub.url}/nowhere"
    assert refusal(hub, tmp_path / "export").problem == "the Hub answers: /nowhere"


def test_no_other_address_gets_the_token(hub: FakeHub, tmp_path: Path) -> None:
    seen: list[str | None] = []

    class Foreign(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append(self.headers.get("Authorization"))
            self.send_response(200)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Foreign) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        hub.verify = f"http://127.0.0.1:{server.server_port}/verify"
        send(hub, tmp_path / "export")
        server.shutdown()
    assert seen == [None, None]
    assert hub.commits == 1
