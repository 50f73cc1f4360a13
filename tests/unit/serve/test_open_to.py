"""Who may ask a server: its own machine by any of its names, others with a token that is text."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bad_input import complaint
from dragoman.cli import main
from dragoman.serve.limits import Guard, Limits
from dragoman.serve.metrics import Metrics


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8320", 200),
        ("127.0.0.2:8320", 200),
        ("LOCALHOST", 200),
        ("[::1]:8320", 200),
        ("127.0.0.2.example.org", 421),
        ("10.0.0.1:8320", 421),
        ("2130706433", 421),
    ],
)
def test_every_address_of_loopback_is_a_name_of_this_machine(host: str, status: int) -> None:
    async def answered(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> Any:
        await asyncio.Event().wait()

    seen = []

    async def send(message: Any) -> None:
        seen.append(message.get("status"))

    scope = {"type": "http", "method": "GET", "path": "/ready", "http_version": "1.1"}
    headers = [(b"host", host.encode())]
    guard = Guard(answered, Limits(), Metrics())
    asyncio.run(guard({**scope, "headers": headers, "client": ("127.0.0.1", 1)}, receive, send))
    assert seen[0] == status


def test_a_token_that_is_no_text_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    token = b"\xff\xfe0123456789abcdef"
    (tmp_path / "token").write_bytes(token)
    assert main(["serve", "nothing", "--token-file", str(tmp_path / "token")]) != 0
    assert "the token is not UTF-8" in complaint(capsys)
    monkeypatch.setenv("DRAGOMAN_TOKEN", token.decode("utf-8", "surrogateescape"))
    assert main(["serve", "nothing"]) != 0
    assert "the token is not UTF-8" in complaint(capsys)


@pytest.mark.parametrize("between", ["\n", "\t", "\0"])
def test_a_token_with_a_character_that_no_header_can_carry_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], between: str
) -> None:
    (tmp_path / "token").write_text(f"0123456789abcdef{between}fedcba9876543210\n")
    assert main(["serve", "nothing", "--token-file", str(tmp_path / "token")]) != 0
    assert "the token has a line break or another character" in complaint(capsys)
