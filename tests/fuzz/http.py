"""Random requests against a real server for as long as you like.

    PYTHONPATH=tests .venv/bin/python -m fuzz.http --minutes 60 [--bundle DIRECTORY] [--seed 1]

Hypothesis makes requests as bytes (heads, bodies and framing, mostly almost right), each sent in
pieces over a raw connection that reads, reads slowly or goes away; schemathesis meanwhile makes
requests from the server's own description. Prints figures, and ends with 1 if the server said
something on its standard error, ended, left /health unanswered for 5 s, or answered with 500.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from served import HealthWatch, Server, served_bundle, serving

HANG_S: Final = 5.0
_CLIENTS: Final = 4
_EXAMPLES: Final = 200

PATHS: Final = (
    b"/", b"/health", b"/ready", b"/models", b"/metrics", b"/openapi.json", b"/translate",
    b"/translate/stream", b"/libretranslate/translate", b"/libretranslate/detect",
    b"/libretranslate/languages", b"/translate?q=a&source=en&target=de", b"*", b"//", b"/%00",
    b"/detect", b"/languages", b"/translate_file", b"/download_file/", b"/download_file/a.txt",
)  # fmt: skip
NAMES: Final = (
    b"Host", b"Content-Length", b"Transfer-Encoding", b"Content-Type", b"Connection", b"Upgrade",
    b"Expect", b"Origin", b"Authorization", b"Sec-Fetch-Site", b"Content-Encoding", b"Cookie", b"X",
)  # fmt: skip
VALUES: Final = (
    b"localhost", b"127.0.0.1", b"[::1]", b"elsewhere.example", b"0", b"12", b"-1", b"99999999999",
    b"chunked", b"gzip, chunked", b"application/json", b"application/x-www-form-urlencoded",
    b"multipart/form-data; boundary=x", b"multipart/form-data; boundary=x; charset=idna",
    b"close", b"keep-alive", b"upgrade", b"h2c", b"websocket", b"100-continue", b"null",
    b"https://elsewhere.example", b"Basic !", b"Bearer ", b"cross-site", b"",
)  # fmt: skip
JSON: Final = b"application/json"
FORM: Final = b"application/x-www-form-urlencoded"
PARTS: Final = b"multipart/form-data; boundary=x"
BODIES: Final = (
    (JSON, b'{"text": "A man."}'),
    (JSON, b'{"text": ["A man.", ""], "alternatives": 2}'),
    (JSON, b'{"text": "<p>A man.</p> <a b=\'", "format": "html", "beam_size": 1}'),
    (JSON, b'{"text": "' + b"a\xcc\x80\xcc\x95" * 2000 + b'"}'),
    (JSON, b'{"text": "' + b"A man. " * 500 + b'", "beam_size": 1}'),
    (JSON, b'{"q": "A man.", "source": "en", "target": "de", "alternatives": 3}'),
    (JSON, b'{"q": ["a", "b"], "source": "auto", "target": "de", "format": "html"}'),
    (JSON, b'{"text": "\\ud800"}'),
    (JSON, b"[" * 3000),
    (JSON, b"{" + b",".join(b'"%d":0' % number for number in range(2000)) + b"}"),
    (FORM, b"q=A+man.&source=en&target=de"),
    (FORM, b"q=%41%ff&source=auto&target=de&api_key=x"),
    (FORM, b"&" * 3000),
    (PARTS, b'--x\r\nContent-Disposition: form-data; name="q"\r\n\r\nA man.\r\n--x--\r\n'),
    (
        PARTS,
        b'--x\r\nContent-Disposition: form-data; name="source"\r\n\r\nen\r\n'
        b'--x\r\nContent-Disposition: form-data; name="target"\r\n\r\nde\r\n'
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="../\xff.html"\r\n\r\n'
        b"<p>A\xff\r\n--x--\r\n",
    ),
    (PARTS, b"--x" * 3000),
    (b"text/plain", b"\xff\x00"),
)


@dataclass(frozen=True)
class Sent:
    """A connection: the bytes, the places at which they are cut, and how the client reads."""

    data: bytes
    cuts: tuple[int, ...]
    reads: str


@dataclass
class Figures:
    """The counts of all clients."""

    requests: int = 0
    bytes_sent: int = 0
    slowest_s: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)


_ONE_IN_TWELVE: Final = st.sampled_from([False] * 11 + [True])


def _mostly(usual: st.SearchStrategy[bytes], *, longest: int) -> st.SearchStrategy[bytes]:
    """The usual, one time in twelve replaced by anything."""
    return _ONE_IN_TWELVE.flatmap(lambda odd: st.binary(max_size=longest) if odd else usual)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """A request that may be right."""
    method = draw(_mostly(st.sampled_from([b"GET", b"POST", b"POST", b"HEAD"]), longest=8))
    path = draw(_mostly(st.sampled_from(PATHS), longest=40))
    version = draw(_mostly(st.sampled_from([b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0"]), longest=10))
    names, values = st.sampled_from(NAMES), st.sampled_from(VALUES)
    odd = st.tuples(_mostly(names, longest=20), _mostly(values, longest=60))
    headers = [] if draw(_ONE_IN_TWELVE) else [(b"Host", b"localhost")]
    body = b""
    if method == b"POST":
        kind, body = draw(st.sampled_from(BODIES))
        body = draw(_mostly(st.just(body), longest=200))
        headers.append((b"Content-Type", draw(_mostly(st.just(kind), longest=40))))
        if draw(st.booleans()):
            headers.append((b"Content-Length", b"%d" % len(body)))
        else:
            headers.append((b"Transfer-Encoding", b"chunked"))
            size = draw(st.integers(20, 4000))
            parts = [body[start : start + size] for start in range(0, len(body), size)]
            body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    headers += draw(st.lists(odd, max_size=2)) if draw(st.booleans()) else []
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return method + b" " + path + b" " + version + b"\r\n" + lines + b"\r\n" + body


@st.composite
def connections(draw: st.DrawFn) -> Sent:
    """One request or several behind each other, cut anywhere, now and then broken off."""
    data = b"".join(draw(st.lists(messages(), min_size=1, max_size=3)))
    cuts = draw(st.lists(st.integers(0, len(data)), max_size=3))
    reads = draw(st.sampled_from(["all", "all", "all", "slowly", "not"]))
    if draw(_ONE_IN_TWELVE):
        data = data[: draw(st.integers(0, len(data)))]
    return Sent(data, tuple(sorted(min(cut, len(data)) for cut in cuts)), reads)


def converse(server: Server, sent: Sent, figures: Figures) -> None:
    """Send it, and count what comes back."""
    answer = b""
    started = time.monotonic()
    with server.connect() as connection:
        connection.settimeout(0.5)
        try:
            for start, end in zip((0, *sent.cuts), (*sent.cuts, len(sent.data)), strict=True):
                connection.sendall(sent.data[start:end])
            if sent.reads != "not":
                while part := connection.recv(64 if sent.reads == "slowly" else 65_536):
                    answer += part
        except (TimeoutError, ConnectionError):  # it waits for more, or has closed
            pass
    with figures.lock:
        figures.requests += 1
        figures.bytes_sent += len(sent.data)
        figures.slowest_s = max(figures.slowest_s, time.monotonic() - started)
        figures.statuses[answer[9:12].decode("latin-1") or "none"] += 1


def client(server: Server, number: int, until: float, figures: Figures) -> None:
    """Hypothesis with one seed after another until the time is over."""
    while time.monotonic() < until:

        @seed(number)
        @settings(
            max_examples=_EXAMPLES,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(connections())
        def one(sent: Sent) -> None:
            if time.monotonic() < until:
                converse(server, sent, figures)

        one()
        number += _CLIENTS


def describe(server: Server, number: int, until: float, said: list[str]) -> None:
    """Schemathesis with one seed after another; said: what it found wrong."""
    while (left_s := until - time.monotonic()) > 5:
        command = [str(Path(sys.executable).with_name("schemathesis")), "run"]
        command += [f"{server.url}/openapi.json", "--max-examples", "50", "--seed", str(number)]
        command += ["--checks", "not_a_server_error,status_code_conformance", "--no-color"]
        with tempfile.TemporaryDirectory() as folder:
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, cwd=folder, timeout=left_s, check=False
                )
            except subprocess.TimeoutExpired:
                return
        if done.returncode:
            said.append(done.stdout[-3000:])
        number += 1


def main() -> int:
    """Returns 0 if nothing was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=Random().randrange(10**6))
    parser.add_argument("--bundle", type=Path, help="default: one that is made of the small run")
    options = parser.parse_args()
    figures, said = Figures(), list[str]()
    with serving(options.bundle or served_bundle(), "--threads", "1") as server:
        errors: list[str] = []
        assert server.process.stderr is not None
        listening = threading.Thread(target=lambda: errors.extend(server.process.stderr or ()))
        listening.start()
        until = time.monotonic() + 60 * options.minutes
        asking = [
            threading.Thread(target=client, args=(server, options.seed + n, until, figures))
            for n in range(_CLIENTS)
        ]
        asking.append(threading.Thread(target=describe, args=(server, options.seed, until, said)))
        with HealthWatch(server) as health:
            for thread in asking:
                thread.start()
            for thread in asking:
                thread.join()
        lives = server.process.poll() is None
        answers = lives and server.ask("/translate", {"text": "A man."}).status == 200
        peak_mb, end_mb = (server.peak_memory_mb, server.memory_mb) if lives else (0.0, 0.0)
        server.process.send_signal(signal.SIGTERM)
        ended = server.process.wait(timeout=120)
        listening.join()
    server_errors = figures.statuses["500"]
    print(f"seed {options.seed}, {options.minutes:g} min: {figures.requests:,} raw connections, "
          f"{figures.bytes_sent / 1e6:.1f} MB sent, slowest {figures.slowest_s:.2f} s")  # fmt: skip
    print(f"statuses: {dict(sorted(figures.statuses.items()))}")
    print(f"/health asked {len(health.spent_s):,} times: worst {health.worst_s:.2f} s, "
          f"{health.refused} refused")  # fmt: skip
    print(f"memory: peak {peak_mb:.0f} MB, at the end {end_mb:.0f} MB; "
          f"lines on standard error: {len(errors)}; exit code after SIGTERM: {ended}")  # fmt: skip
    for problem in [*errors[:40], *said[:3]]:
        print(problem.rstrip())
    good = answers and ended == 0 and not (errors or said or server_errors or health.refused)
    good = good and health.worst_s < HANG_S
    print("nothing found" if good else "FOUND SOMETHING")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
