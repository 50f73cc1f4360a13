"""A real server behind the reverse proxies of docs/how-to/serve.md, as the page configures them."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from served import Server

_PAGE = Path(__file__).resolve().parents[1] / "docs" / "how-to" / "serve.md"
_NGINX = "daemon off; pid {0}/pid; error_log {0}/log; events {{}} http {{ access_log off;\n"
_NGINX += "client_body_temp_path {0}/body; proxy_temp_path {0}/proxy; fastcgi_temp_path {0}/f;\n"
_NGINX += "uwsgi_temp_path {0}/u; scgi_temp_path {0}/s;\n{1}\n}}\n"


def example(language: str) -> str:
    """The configuration that the page shows."""
    found = re.search(rf"```{language}\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


@contextmanager
def behind(proxy: str, server: Server) -> Iterator[Server]:
    """The server as it is reached through nginx or caddy; skips if that is not installed."""
    program = shutil.which(proxy, path="/usr/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        pytest.skip(f"{proxy} is not installed: apt-get install {proxy}")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    text = example(proxy).replace("127.0.0.1:8320", f"127.0.0.1:{server.port}")
    with tempfile.TemporaryDirectory(prefix="proxy-") as folder:
        config = Path(folder) / "config"
        if proxy == "nginx":  # without TLS, whose certificates a test has not
            text = re.sub(r"\n *ssl_certificate.*", "", text)
            text = _NGINX.format(folder, text.replace("listen 443 ssl", f"listen 127.0.0.1:{port}"))
            command = [program, "-c", str(config), "-p", folder]
        else:
            text = text.replace("mt.example.org", f"http://127.0.0.1:{port}")
            text = text.replace("{\n", "{\n\tadmin off\n", 1)
            command = [program, "run", "--config", str(config), "--adapter", "caddyfile"]
        config.write_text(text)
        with (Path(folder) / "out").open("w") as out:
            process = subprocess.Popen(
                command, stdout=out, stderr=out, env={"HOME": folder, "PATH": "/usr/bin"}
            )
        try:
            _wait_until_it_listens(port, process, Path(folder) / "out")
            yield replace(server, url=f"http://127.0.0.1:{port}")
        finally:
            process.terminate()
            process.wait()


def _wait_until_it_listens(port: int, process: subprocess.Popen[bytes], out: Path) -> None:
    for _ in range(200):
        assert process.poll() is None, out.read_text()
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError(out.read_text())
