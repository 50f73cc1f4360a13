"""A stand-in for the Hugging Face Hub on this machine, which huggingface_hub itself talks to.

It answers the requests that make a model's place and a commit in it, as the Hub does: what is large
goes to a store of its own by its digest, and a commit names all files. It checks the token, every
digest, and the card with huggingface_hub's own classes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from huggingface_hub import ModelCard

TOKEN = "hf_" + "x" * 30
LARGE_FILES = (".safetensors", ".model")


@dataclass
class FakeHub:
    """A Hub and the files it got; stored: large files by digest. models: files of each, by name.

    breaks_off: whether an upload of a large file is cut off in the middle.
    answers: status and content in place of its own answer, by a part of the request's path.
    headers: of all its answers, beside HTTP's. upload: where large files go, if not to itself.
    verify: the address to which a client reports a large file that it has sent; "" for none.
    uploads: the digest of a large file, once for each upload that began.
    """

    url: str = ""
    stored: dict[str, bytes] = field(default_factory=dict)
    models: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: dict[str, bool] = field(default_factory=dict)
    commits: int = 0
    breaks_off: bool = False
    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    upload: str = ""
    verify: str = ""
    uploads: list[str] = field(default_factory=list)
    begun: threading.Event = field(default_factory=threading.Event)


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """A Hub on a free port of the loopback interface, meanwhile."""
    hub = FakeHub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._answer(401, {"error": "Invalid username or password."})
            return
        path = self.path.partition("?")[0]
        for part, (status, content) in self.hub.answers.items():
            if part in path:
                self._send(status, content)
                return
        if path == "/api/validate-yaml":
            self._validate(json.loads(body)["content"])
        elif path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            known = name in self.hub.models
            self.hub.models.setdefault(name, {})
            self.hub.private.setdefault(name, asked.get("visibility") == "private")
            self._answer(409 if known else 200, {"url": f"{self.hub.url}/{name}"})
        elif path.endswith(".git/info/lfs/objects/batch"):
            self._tell_where_to_send(json.loads(body)["objects"])
        elif "/preupload/" in path:
            modes = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(LARGE_FILES) else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            self._answer(200, {"files": modes})
        elif "/commit/" in path:
            self._commit(path, body.decode())
        else:
            self._answer(404, {"error": path})

    def do_PUT(self) -> None:
        oid = self.path.rpartition("/")[2]
        self.hub.uploads.append(oid)
        self.hub.begun.set()
        size = int(self.headers["Content-Length"])
        if self.hub.breaks_off:
            with suppress(OSError):
                self.rfile.read(size // 2)
            self.close_connection = True
            self.connection.close()
            return
        content = self.rfile.read(size)
        assert hashlib.sha256(content).hexdigest() == oid
        self.hub.stored[oid] = content
        self._answer(200, {})

    def _validate(self, content: str) -> None:
        try:
            card = ModelCard(content)
            assert card.data.to_yaml()
        except Exception as error:
            self._answer(400, {"errors": [{"message": str(error)}], "warnings": []})
        else:
            self._answer(200, {"errors": [], "warnings": []})

    def _tell_where_to_send(self, objects: list[dict[str, Any]]) -> None:
        answers: list[dict[str, Any]] = []
        for one in objects:
            store = self.hub.upload or f"{self.hub.url}/store/{one['oid']}"
            actions = {"upload": {"href": store}}
            if self.hub.verify:
                actions["verify"] = {"href": self.hub.verify}
            answers.append(one if one["oid"] in self.hub.stored else one | {"actions": actions})
        self._answer(200, {"transfer": "basic", "objects": answers})

    def _commit(self, path: str, body: str) -> None:
        name = "/".join(path.split("/")[3:5])
        files: dict[str, bytes] = {}
        for line in filter(None, body.split("\n")):
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.hub.stored[value["oid"]]
        self.hub.models[name] |= files
        self.hub.commits += 1
        address = f"{self.hub.url}/{name}/commit/{self.hub.commits:040x}"
        self._answer(200, {"commitUrl": address, "commitOid": f"{self.hub.commits:040x}"})

    def _answer(self, status: int, values: dict[str, Any]) -> None:
        self._send(status, json.dumps(values).encode())

    def _send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        for name, value in self.hub.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
