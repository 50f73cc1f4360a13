"""A stand-in for the Hub's data sets on this machine, which the library `datasets` itself reads."""

from __future__ import annotations

import hashlib
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow
import pyarrow.parquet

VERSION = "0123456789012345678901234567890123456789"


@dataclass
class FakeDataSets:
    """url: the address of the Hub. files: of each data set, by its id.

    answers: a status in place of the usual answer about a data set, with the Hub's code of it.
    asked: the paths of all requests.
    """

    url: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    answers: dict[str, tuple[int, str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def add(self, name: str, splits: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
        """A data set with these rows, by configuration and split, as Parquet."""
        lines, files = ["---", "configs:"], {}
        for config, rows_of in splits.items():
            lines += [f"- config_name: {config}", "  data_files:"]
            for split, rows in rows_of.items():
                lines += [f"  - split: {split}", f"    path: {config}/{split}-*"]
                file = io.BytesIO()
                pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
                files[f"{config}/{split}-00000-of-00001.parquet"] = file.getvalue()
        self.files[name] = files | {"README.md": "\n".join([*lines, "---", ""]).encode()}


@contextmanager
def fake_data_sets() -> Iterator[FakeDataSets]:
    """A Hub on a free port of the loopback interface, meanwhile."""
    hub = FakeDataSets()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        hub.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield hub
        finally:
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeDataSets

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_GET

    def log_message(self, *_: Any) -> None: ...

    def _answer(self) -> None:
        address = urlsplit(self.path)
        self.hub.asked.append(address.path)
        if address.path == "/api/datasets":
            word = parse_qs(address.query)["search"][0]
            found = [name for name in self.hub.files if word[:4] in name]
            self._json([_facts(name, {}) for name in found])
            return
        for name, files in self.hub.files.items():
            facts, tree = f"/api/datasets/{name}", f"/api/datasets/{name}/tree/{VERSION}"
            files_at = f"/datasets/{name}/resolve/"
            if address.path in (facts, f"{facts}/revision/{VERSION}"):
                if name in self.hub.answers:
                    self._refuse(*self.hub.answers[name])
                else:
                    self._json(_facts(name, files))
                return
            if address.path.startswith(tree):
                self._json(_listed(files, address.path.removeprefix(tree).strip("/")))
                return
            _, _, file = address.path.removeprefix(files_at).partition("/")
            if address.path.startswith(files_at) and file in files:
                self._send_file(files[file])
                return
        self._refuse(404, "EntryNotFound")

    def _json(self, content: object) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code})

    def _send_file(self, content: bytes) -> None:
        headers = {"ETag": f'"{_digest(content)}"', "X-Repo-Commit": VERSION}
        wanted = self.headers.get("Range")
        if wanted is None:
            self._send(200, content, headers)
            return
        start, _, end = wanted.removeprefix("bytes=").partition("-")
        first, last = int(start), min(int(end or len(content)), len(content) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        self._send(206, content[first : last + 1], headers)

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


def _facts(name: str, files: dict[str, bytes]) -> dict[str, Any]:
    siblings = [{"rfilename": file} for file in files]
    return {
        "_id": name, "id": name, "sha": VERSION, "private": False, "disabled": False,
        "gated": False, "downloads": 1, "likes": 0, "tags": [], "siblings": siblings,
    }  # fmt: skip


def _listed(files: dict[str, bytes], folder: str) -> list[dict[str, Any]]:
    """The files and folders directly in a folder of a data set."""
    prefix = f"{folder}/" if folder else ""
    inside = {name.removeprefix(prefix): name for name in files if name.startswith(prefix)}
    folders = {name.partition("/")[0] for name in inside if "/" in name}
    return [
        *(
            {"type": "file", "path": path, "size": len(files[path]), "oid": _digest(files[path])}
            for name, path in inside.items()
            if "/" not in name
        ),
        *({"type": "directory", "path": prefix + name, "oid": "0" * 40} for name in folders),
    ]


def _digest(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()
