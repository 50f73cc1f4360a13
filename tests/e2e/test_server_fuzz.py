"""Schemathesis against the server's own description of itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from served import served_bundle, serving


@pytest.mark.parametrize("examples", [pytest.param(15), pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.timeout(1800)
def test_no_request_breaks_it(tmp_path: Path, examples: int) -> None:
    with serving(served_bundle()) as server:
        command = [str(Path(sys.executable).with_name("schemathesis")), "run"]
        command += [f"{server.url}/openapi.json", "--max-examples", str(examples), "--seed", "1"]
        command += [
            "--checks",
            "not_a_server_error,status_code_conformance,content_type_conformance",
        ]
        command += ["--phases", "examples,coverage,fuzzing", "--no-color"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert server.ask("/translate", {"text": "A man."}).status == 200
