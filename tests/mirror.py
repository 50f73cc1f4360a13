"""A mirror of mtdata's index and of corpora on this machine, which counts what it has sent."""

from __future__ import annotations

import gzip
import io
import json
import re
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from xml.sax.saxutils import escape

from real_text import real_lines

_PIECE_BYTES = 1 << 14


class CorpusMirror:
    """An HTTP server on the loopback interface; it goes on with downloads that broke off.

    pause_s: after each 16 kB, so that there is time to kill who fetches. sent: bytes of each file.
    """

    def __init__(self, *, pause_s: float = 0.0) -> None:
        self.files: dict[str, bytes] = {}
        self.entries: list[dict[str, Any]] = []
        self.sent: Counter[str] = Counter()
        self.gets: Counter[str] = Counter()
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                content = mirror.files.get(self.path)
                if content is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Content-Type", "application/octet-stream")
                self.end_headers()

            def do_GET(self) -> None:
                content = mirror.files.get(self.path)
                if content is None:
                    self.send_error(404)
                    return
                wanted = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
                start = int(wanted[1]) if wanted else 0
                self.send_response(206 if start else 200)
                if start:
                    span = f"bytes {start}-{len(content) - 1}/{len(content)}"
                    self.send_header("Content-Range", span)
                self.send_header("Content-Length", str(len(content) - start))
                self.send_header("Content-Type", "application/octet-stream")
                self.send_header("ETag", '"1"')
                self.end_headers()
                mirror.gets[self.path] += 1
                for first in range(start, len(content), _PIECE_BYTES):
                    piece = content[first : first + _PIECE_BYTES]
                    try:
                        self.wfile.write(piece)
                        self.wfile.flush()
                    except OSError:  # who fetched was killed
                        return
                    mirror.sent[self.path] += len(piece)
                    time.sleep(pause_s)

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server.server_port}{path}"

    def add(self, did: str, path: str, content: bytes, **more: Any) -> str:
        """A corpus of one file, and its line of the index."""
        self.files[path] = content
        name = path.rpartition("/")[2]
        self.entries.append({"did": did, "url": self.url(path), "filename": name, **more})
        self.files["/mtdata.jsonl"] = self.index()
        return did

    def index(self) -> bytes:
        return "".join(f"{json.dumps(one)}\n" for one in self.entries).encode()

    @property
    def index_url(self) -> str:
        return self.url("/mtdata.jsonl")


@contextmanager
def corpus_mirror(*, pause_s: float = 0.0) -> Iterator[CorpusMirror]:
    mirror = CorpusMirror(pause_s=pause_s)
    try:
        yield mirror
    finally:
        mirror.server.shutdown()
        mirror.server.server_close()


def add_three_corpora(mirror: CorpusMirror, pairs: int) -> list[str]:
    """Three parts of the demo's text, so many pairs each, in three of the forms that mtdata reads.

    One is of German first, and one of another pair is there as well.
    """
    english, german = real_lines("train", "en"), real_lines("train", "de")
    parts = [(english[n : n + pairs], german[n : n + pairs]) for n in (0, pairs, 2 * pairs)]
    (a_en, a_de), (b_en, b_de), (c_en, c_de) = parts
    tsv = "".join(f"{one}\t{other}\n" for one, other in zip(a_en, a_de, strict=True)).encode()
    ids = [
        mirror.add(
            "Local-help_tsv-1-eng-deu",
            "/help.tsv.gz",
            gzip.compress(tsv, mtime=0),
            ext="tsv.gz",
            meta={"licence": "MPL-2.0"},
        ),
        mirror.add(
            "Local-help_moses-1-deu-eng",
            "/de-en.txt.zip",
            _zipped({"help.de-en.de": b_de, "help.de-en.en": b_en}),
            ext="zip",
            in_ext="txt",
            in_paths=["*.de", "*.en"],
        ),
        mirror.add("Local-help_tmx-1-eng-deu", "/help.tmx", _tmx(c_en, c_de), ext="tmx"),
    ]
    mirror.add("Local-other-1-eng-fra", "/other.tsv", b"one\tun\n", ext="tsv")
    return ids


def _zipped(members: dict[str, list[str]]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, lines in members.items():
            archive.writestr(name, "".join(f"{line}\n" for line in lines))
    return packed.getvalue()


def _tmx(english: list[str], german: list[str]) -> bytes:
    units = "".join(
        f'<tu><tuv xml:lang="en"><seg>{escape(one)}</seg></tuv>\n'
        f'<tuv xml:lang="de"><seg>{escape(other)}</seg></tuv></tu>\n'
        for one, other in zip(english, german, strict=True)
    )
    head = '<?xml version="1.0" encoding="utf-8"?>\n<tmx version="1.4"><header/>\n<body>\n'
    return f"{head}{units}</body>\n</tmx>\n".encode()
