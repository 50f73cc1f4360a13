"""A server that speaks OpenAI's chat completions, keeps a bill, and fails as real ones do."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FAULTS = ("busy", "broken server", "away", "closed", "cut off", "no JSON", "no choice")
PRICE_IN, PRICE_OUT = 2.0, 8.0
"""Of a million tokens, in USD."""


@dataclass
class FakeTeacher:
    """answer: the translation of a line. fault_share: of the requests, equally of each kind.

    asked: how often each line was asked. billed: how often it was answered for money.
    """

    answer: Callable[[str], Any]
    fault_share: float = 0.0
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    billed: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    tokens: list[int] = field(default_factory=lambda: [0, 0])
    lock: threading.Lock = field(default_factory=threading.Lock)
    draws: random.Random = field(default_factory=lambda: random.Random(1))

    @property
    def bill(self) -> float:
        """In USD."""
        return (self.tokens[0] * PRICE_IN + self.tokens[1] * PRICE_OUT) / 1e6

    def respond(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        request = json.loads(body)
        question = request["messages"][0]["content"]
        line = question.rpartition("\n")[2]
        with self.lock:
            self.requests.append(request)
            self.headers.append(dict(handler.headers))
            self.asked[line] += 1
            fault = self.draws.choice(FAULTS) if self.draws.random() < self.fault_share else ""
            self.faults[fault] += 1
        statuses = {"busy": 429, "broken server": 500, "away": 503}
        if fault in statuses:
            handler.send_response(statuses[fault])
            if fault == "busy":
                handler.send_header("Retry-After", "1")
            handler.end_headers()
            handler.wfile.write(b'{"error": {"message": "try again"}}')
            return
        if fault == "closed":
            handler.close_connection = True
            return
        said = self.answer(line)
        if isinstance(said, int):
            handler.send_response(said)
            handler.end_headers()
            handler.wfile.write(b'{"error": {"message": "this text is not allowed"}}')
            return
        choice = {"message": {"content": said}, "finish_reason": "stop"}
        choice = choice | said if isinstance(said, dict) else choice
        tokens = len(question.split()) + 8, len(str(said).split()) + 2
        answer: Any = {
            "choices": [choice],
            "usage": {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]},
        }
        if fault == "no choice":
            answer = {"object": "chat.completion"}
        sent = b"<html>" if fault == "no JSON" else json.dumps(answer).encode()
        if not fault:
            with self.lock:
                self.billed[line] += 1
                self.tokens[0] += tokens[0]
                self.tokens[1] += tokens[1]
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(sent)))
        handler.end_headers()
        handler.wfile.write(sent[: len(sent) // 2] if fault == "cut off" else sent)
        handler.close_connection = True


@contextmanager
def teaching(answer: Callable[[str], Any], *, fault_share: float = 0.0) -> Iterator[FakeTeacher]:
    """A teacher that answers on loopback; an answer that is a number is a status."""
    teacher = FakeTeacher(answer, fault_share)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            teacher.respond(self)

        def log_message(self, *_words: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    teacher.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield teacher
    finally:
        server.shutdown()
        server.server_close()
