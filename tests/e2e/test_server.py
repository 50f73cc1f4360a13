"""The server as a process: answers, limits, overload, tokens, signals."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli import main
from processes import wait_until
from real_text import real_lines
from served import Answer, Server, post, served_bundle, serving

TOKEN = "a-token-of-some-length"
LONG = "A man in a red shirt is standing. " * 300


@pytest.fixture(scope="module")
def bundle() -> Path:
    return served_bundle()


@pytest.fixture(scope="module")
def server(bundle: Path) -> Iterator[Server]:
    with serving(bundle, "--threads", "1") as server:
        yield server


def translate(server: Server, **body: Any) -> Any:
    answer = server.ask("/translate", body)
    assert answer.status == 200, answer.body
    return answer.json


@pytest.mark.smoke
def test_one_text_many_texts_alternatives(server: Server) -> None:
    one = translate(server, text="A man.", alternatives=2, beam_size=3)
    (best,) = one["translations"]
    assert best["text"]
    assert len(best["alternatives"]) == 2
    assert best["score"] >= best["alternatives"][0]["score"]
    assert (best["source"], best["target"], best["detected"]) == ("en", "de", None)
    many = translate(server, text=["A man.", "", "Two dogs.\n\nA cat."], beam_size=3)
    assert many["translations"][0]["text"] == best["text"]
    assert many["translations"][1]["text"] == ""
    assert many["translations"][2]["text"].count("\n\n") == 1


def test_null_stands_for_a_default(server: Server) -> None:
    names = ("source", "target", "alternatives", "segments", "beam_size", "terms", "context")
    found = translate(server, text="A man.", **dict.fromkeys((*names, "format")))
    assert found["translations"] == translate(server, text="A man.")["translations"]
    assert server.ask("/translate", {"text": None}).status == 422


def test_tags_stay(server: Server) -> None:
    found = translate(server, text="<p>A man.</p> <br>", format="html")
    text = found["translations"][0]["text"]
    assert text.startswith("<p>")
    assert text.endswith("</p> <br>")


def test_a_document_streams_in_order(server: Server) -> None:
    text = "\n".join(["A man.", "", *["Two dogs run."] * 30])
    answer = server.ask("/translate/stream", {"text": text, "beam_size": 1})
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert [line["index"] for line in lines] == list(range(32))
    whole = translate(server, text=text, beam_size=1)["translations"][0]["text"]
    assert "\n".join(line["text"] for line in lines) == whole


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/translate", {"text": "a", "target": "xx"}, 404),
        ("/translate", {"text": "a" * 100_001}, 413),
        ("/translate", {"text": "a" * 1_000_001}, 413),
        ("/translate", {"text": 3}, 422),
        ("/translate", {"text": []}, 422),
        ("/translate", {"text": "a", "terms": {"a": " "}}, 422),
        ("/translate", {"text": "a", "beam_size": 10**30}, 422),
        ("/translate", b'{"text": "a", "beam_size": Infinity}', 422),
        ("/translate", {"text": "a", "no_repeat_ngram_size": 3}, 422),
        ("/translate", {"text": "a", "search": {"no_repeat_ngram_size": 3}}, 422),
        ("/translate/stream", {"text": "a", "no_repeat_ngram_size": 3}, 422),
        ("/translate", {"txt": "a"}, 422),
        ("/translate", {"txt" * 100_000: "a"}, 422),
        ("/translate", b'{"text": "\\ud800"}', 400),
        ("/translate", b'{"te\\udfffxt": "a"}', 400),
        ("/translate", b"[" * 100_000, 400),
        ("/translate", b"\x00\xff", 400),
        ("/translate", b"{", 400),
        ("/translate", b"", 422),
        ("/translate/stream", b"{", 400),
        ("/translate/stream", {"text": ["a"]}, 422),
        ("/translate", {"text": "a", "format": "markdown", "alternatives": 3}, 422),
        ("/translate", {"text": "a", "format": "srt", "segments": True}, 422),
        ("/translate/stream", {"text": "a", "source": "xx"}, 404),
        ("/translate/stream", {"text": "a" * 100_001}, 413),
        ("/nowhere", None, 404),
        ("/libretranslate/translate", b"{", 400),
        ("/libretranslate/translate", b"q=a&target=de", 400),
        ("/libretranslate/translate", {"q": "a", "source": "en", "target": "xx"}, 400),
        ("/libretranslate/translate", {"q": "a", "target": "de"}, 400),
        ("/libretranslate/translate", {"q": "a", "source": "en"}, 400),
        ("/libretranslate/translate", {"q": "a" * 100_001, "source": "en", "target": "de"}, 400),
        ("/libretranslate/translate", {"q": ["a"] * 257, "source": "en", "target": "de"}, 400),
        ("/libretranslate/translate", {str(n): "a" for n in range(65)}, 400),
        ("/libretranslate/detect", {"q": "a" * 100_001}, 400),
        ("/libretranslate/detect", {}, 400),
        ("/translate", {"q": "a"}, 400),
        ("/translate", {"q": "a", "source": "en", "target": "xx"}, 400),
        ("/translate?q=a", b"", 400),
        ("/translate", {"source": "en", "target": "de"}, 400),
        ("/translate", {"api_key": "a"}, 400),
        ("/translate?format=html", b"", 400),
        ("/translate", {"text": "a", "api_key": "a"}, 422),
        ("/translate/stream", {"source": "en", "target": "de"}, 422),
        ("/detect", {"q": ["a"] * 257}, 400),
        ("/detect", {}, 422),
        ("/detect", {"api_key": "a"}, 400),
        ("/detect", b"{", 400),
        ("/translate_file", {"source": "en", "target": "de"}, 400),
        ("/download_file/nothing.txt", None, 404),
        ("/libretranslate/download_file/nothing.txt", None, 404),
    ],
)
def test_bad_requests_get_a_status_and_a_short_error(
    server: Server, path: str, body: Any, status: int
) -> None:
    answer = server.ask(path, body)
    assert answer.status == status, answer.body
    assert answer.json["error"]
    assert "pydantic" not in answer.json["error"]
    assert len(answer.body) < 2000, "what was sent is not sent back"


def test_the_beam_is_that_of_the_request_for_documents_too(server: Server) -> None:
    texts = real_lines("test", "en")[:12]

    def found(**settings: Any) -> list[str]:
        answers = [translate(server, text=text, **settings) for text in texts]
        return [answer["translations"][0]["text"] for answer in answers]

    narrow = found(beam_size=1)
    assert found(format="markdown", beam_size=1) == narrow
    assert found(format="markdown", beam_size=8) == found(beam_size=8) != narrow


HOSTILE = [
    "\x00\x01\x02",
    "\u202eright to left\u202c שלום",
    "👩‍👩‍👧‍👦" * 50,
    "Z̸̡̢͚̘̠a̷l̴g̵o̶" * 40,
    "\ufeff\u200b\u2028\u2029",
    "a" * 60_000,
    "\n" * 5000,
    "<script>alert(1)</script>",
    "'; DROP TABLE translations; --",
    "\uffff\U0010ffff",
    "</s><s><pad><unk>",
    "𝔸 𝕞𝕒𝕟" * 100,
    "a &#" + "9" * 5000 + "; man",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_answered(server: Server, text: str) -> None:
    for format_ in ("text", "html"):
        answer = server.ask("/translate", {"text": text, "beam_size": 1, "format": format_})
        assert answer.status == 200
        assert isinstance(answer.json["translations"][0]["text"], str)


def test_nothing_crosses_between_requests(server: Server) -> None:
    texts = [f"A man in a red shirt number {n}." for n in range(40)]
    alone = [translate(server, text=text, beam_size=2)["translations"][0]["text"] for text in texts]
    with ThreadPoolExecutor(16) as pool:
        asked = pool.map(lambda text: translate(server, text=text, beam_size=2), texts * 3)
        together = [answer["translations"][0]["text"] for answer in asked]
    assert together == alone * 3


def test_pages_describe_themselves_and_load_nothing_from_elsewhere(server: Server) -> None:
    page = server.ask("/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for path in ("/", "/common.js", "/page.js", "/common.css", "/page.css"):
        text = server.ask(path).body.decode()
        assert "http://" not in text
        assert "https://" not in text
    assert server.ask("/models").json[0]["card"].count("## ") >= 4
    assert server.ask("/openapi.json").json["info"]["title"] == "dragoman"
    assert b"dragoman_requests_total" in server.ask("/metrics").body
    assert server.ask("/ready").status == server.ask("/health").status == 200
    assert server.ask("/", headers={"Host": "elsewhere.example"}).status == 421


def test_without_the_token_only_what_libretranslate_tells_everybody_is_told(bundle: Path) -> None:
    with serving(bundle, token=TOKEN) as server:
        for path in ("/health", "/languages", "/frontend/settings"):
            for prefix in ("", "/libretranslate"):
                assert server.ask(prefix + path).status == 200, path
        for path in ("/", "/ready", "/models", "/pairs", "/metrics", "/openapi.json", "/page.js",
                     "/x", "/libretranslate/x"):  # fmt: skip
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic !"}):
                assert server.ask(path, headers=headers).status == 401, path
        body = {"q": "A man.", "source": "en", "target": "de"}
        for path in ("/translate", "/libretranslate/translate"):
            assert server.ask(path, body).status == 400
            assert server.ask(path, body | {"api_key": "wrong"}).status == 403
            assert server.ask(path, body | {"api_key": TOKEN}).status == 200
        assert server.ask("/translate", {"text": "a"}).status == 401
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert server.ask("/translate", {"text": "a"}, headers=bearer).status == 200


def test_the_openapi_description_matches_the_answers(server: Server, bundle: Path) -> None:
    described = server.ask("/openapi.json").json
    for path, of_path in described["paths"].items():
        ((method, operation),) = of_path.items()
        statuses = operation["responses"]
        assert str(server.ask(path, b"a" * (2 << 20), method=method.upper()).status) in statuses
        if path != "/health":  # which answers to every name
            assert str(server.ask(path, headers={"Host": "elsewhere.example"}).status) in statuses
    kinds = described["paths"]["/metrics"]["get"]["responses"]["200"]["content"]
    assert server.ask("/metrics").headers["content-type"].split(";")[0] in kinds
    assert "security" not in described
    with serving(bundle, token=TOKEN) as guarded:
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        described = guarded.ask("/openapi.json", headers=bearer).json
        ((name, scheme),) = described["components"]["securitySchemes"].items()
        assert (scheme, described["security"]) == (
            {"type": "http", "scheme": "bearer"},
            [{name: []}],
        )
        assert described["paths"]["/health"]["get"]["security"] == []


def test_the_server_is_not_opened_without_a_token(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DRAGOMAN_TOKEN", raising=False)
    assert main(["serve", str(bundle), "--host", "0.0.0.0"]) == 2
    assert "token file" in capfd.readouterr().err
    monkeypatch.setenv("DRAGOMAN_TOKEN", "short")
    assert main(["serve", str(bundle)]) == 2


def test_a_slow_client_is_sent_away(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.sendall(post("/translate", b" " * 100)[:-99])
        slow.settimeout(60)
        assert b" 408 " in slow.recv(1000).split(b"\r\n")[0] + b" "
    assert translate(server, text="A man.")


def test_nobody_is_sent_elsewhere(server: Server) -> None:
    assert server.ask("/translate/", {"text": "A man."}).status == 404


def test_a_partly_refused_stream_ends_with_an_error(bundle: Path) -> None:
    with serving(bundle, "--threads", "1", "--queue", "10") as server:
        # Parts of it find no room; the first of them is reported, and nobody waits for the others.
        answer = server.ask("/translate/stream", {"text": "A man.\n" * 40})
        assert b"error" in answer.body.splitlines()[-1]
        server.process.send_signal(signal.SIGTERM)
        assert server.process.communicate()[1] == ""


def test_overload_is_refused_at_once_and_passes(bundle: Path) -> None:
    with serving(bundle, "--threads", "1", "--queue", "4000") as server:
        answered: list[int] = []

        def ask(_: int) -> None:
            answer = server.ask("/translate", {"text": LONG, "beam_size": 4})
            answered.append(answer.status)
            if answer.status in (429, 503):
                assert int(answer.headers["retry-after"]) >= 1

        before_mb = server.memory_mb
        with ThreadPoolExecutor(20) as pool:
            list(pool.map(ask, range(20)))
        statuses = Counter(answered)
        assert statuses[200] >= 1
        assert statuses[503] >= 5
        assert set(statuses) <= {200, 503, 504}
        assert answered[0] == 503, "a refusal waits for nothing"
        assert server.memory_mb < before_mb + 150
        assert translate(server, text="A man.")["translations"][0]["text"]


def test_too_many_requests_of_one_client(bundle: Path) -> None:
    with serving(bundle, "--threads", "1", "--requests-per-client", "2") as server:
        with ThreadPoolExecutor(12) as pool:
            asked = [pool.submit(server.ask, "/translate", {"text": LONG}) for _ in range(12)]
            statuses = Counter(answer.result().status for answer in asked)
        assert statuses[429] >= 1
        assert statuses[200] >= 1


def test_a_request_that_takes_too_long_is_ended(bundle: Path) -> None:
    with serving(bundle, "--threads", "1", "--timeout", "1") as server:
        answer = server.ask("/translate", {"text": LONG * 9, "beam_size": 10})
        assert answer.status == 504
        wait_until(lambda: server.ask("/translate", {"text": "A man."}).status == 200)


@pytest.mark.system
@pytest.mark.smoke
def test_sigterm_lets_work_end(bundle: Path) -> None:
    with serving(bundle, "--threads", "1") as server:
        answers: list[int] = []
        body = {"text": LONG, "beam_size": 6}
        asking = [
            threading.Thread(target=lambda: answers.append(server.ask("/translate", body).status))
            for _ in range(3)
        ]
        for thread in asking:
            thread.start()
        while b"dragoman_requests_under_way 4" not in server.ask("/metrics").body:
            assert any(thread.is_alive() for thread in asking), "all done too soon"
        server.process.send_signal(signal.SIGTERM)
        for thread in asking:
            thread.join()
        assert answers == [200, 200, 200]
        assert server.process.wait(timeout=60) == 0


def test_a_stream_that_sigterm_leaves_no_time_for_says_so(bundle: Path) -> None:
    """A client that reads to the end must not take what there is for the whole."""
    with serving(bundle, "--threads", "1", "--timeout", "3") as server:
        body = {"text": f"{LONG[:35]}\n" * 2700, "beam_size": 10}
        answers: list[Answer] = []
        asking = threading.Thread(
            target=lambda: answers.append(server.ask("/translate/stream", body))
        )
        asking.start()
        while b"dragoman_requests_under_way 2" not in server.ask("/metrics").body:
            assert asking.is_alive(), "done too soon"
        server.process.send_signal(signal.SIGTERM)
        asking.join()
        assert answers[0].status == 200
        assert json.loads(answers[0].body.splitlines()[-1]) == {"error": "the server is ending"}
        assert server.process.communicate()[1] == ""
        assert server.process.returncode == 0


_STOPPED_EARLY = """
import os, signal, sys
import uvicorn
from dragoman.cli import main
run = uvicorn.Server.run
def stopped_run(*arguments, **named):
    os.kill(os.getpid(), signal.SIGTERM)
    run(*arguments, **named)
uvicorn.Server.run = stopped_run
sys.exit(main(["serve", *sys.argv[1:]]))
"""


def test_a_signal_as_soon_as_it_listens_ends_it(bundle: Path) -> None:
    with serving(bundle, command=("-c", _STOPPED_EARLY)) as server:
        assert server.process.wait(timeout=60) == 0


def test_killed_it_starts_again_on_its_port(bundle: Path) -> None:
    with serving(bundle) as server:
        port = server.port
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    with serving(bundle, port=port) as server:
        assert translate(server, text="A man.")
