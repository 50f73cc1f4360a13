"""Our server and LibreTranslate's own, asked the same: alike, but for the differences listed here.

LibreTranslate is not of our environment. With it in one of its own, this prints the comparison:

    python -m venv peer && peer/bin/pip install libretranslate
    LIBRETRANSLATE=peer/bin/libretranslate pytest tests/e2e/test_libretranslate.py -n0 -s

It serves packages of the small run that we export, so nothing is downloaded. Compared are statuses
and shapes: which fields, of which types, how many. docs/how-to/serve.md has the reason of each
difference.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from dragoman.distributed.world import join_world
from dragoman.formats.export import export
from dragoman.formats.export_job import Request
from served import called, serving
from small_run import small_run

PEER = shutil.which(os.environ.get("LIBRETRANSLATE", "libretranslate"))
KEY = "a-token-of-some-length"
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
PARTS = "multipart/form-data; boundary=x-y"
GERMAN = "Ein Mann mit einem roten Hut spielt auf einer Gitarre."
ENGLISH = "A man with a red hat is playing a guitar."
START_S = 300.0
INSTALL = """
import json, shutil, sys
from argostranslate import package, settings
path = sys.argv[1]
package.install_from_path(path)
# With fewer than two packages it would download all that there are: the other direction, for show.
(folder,) = settings.package_data_dir.iterdir()
other = shutil.copytree(folder, folder.with_name("other")) / "metadata.json"
metadata = json.loads(other.read_text())
swapped = {"from_code": "de", "from_name": "German", "to_code": "en", "to_name": "English"}
other.write_text(json.dumps(metadata | swapped))
from libretranslate.api_keys import Database
Database("keys.db").add(1000, sys.argv[2])
"""
AS_IT_WAS = {GERMAN, ENGLISH, "A man.", "😀", "😀 🎉", ""}
TO_GERMAN = {"q": "A man.", "source": "en", "target": "de"}


def part(name: str, value: str, file: str = "") -> str:
    named = f'; filename="{file}"' if file else ""
    head = f'Content-Disposition: form-data; name="{name}"{named}'
    return f"--x-y\r\n{head}\r\n\r\n{value}\r\n"


def parts(fields: dict[str, str], file: str = "", content: str = "") -> bytes:
    """A form of parts, with a file if one is named."""
    text = "".join(part(name, value) for name, value in fields.items())
    return f"{text}{part('file', content, file) if file else ''}--x-y--\r\n".encode()


@dataclass(frozen=True)
class Case:
    """A request. differs: why our answer is another one; "" if it must be alike."""

    path: str
    body: Any = None
    kind: str = JSON
    query: str = ""
    differs: str = ""

    @property
    def data(self) -> bytes | None:
        if self.body is None or isinstance(self.body, bytes):
            return self.body
        return (json.dumps if self.kind == JSON else urlencode)(self.body).encode()

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Where we have the path: at the root, a request without any field of theirs is ours."""
        shared = self.path in ("/translate", "/detect") and self.body is not None
        is_ours = self.kind == "text/plain" or self.body in (b"", [1], {})
        return (
            ("/libretranslate",)
            if shared and is_ours and not self.query
            else ("", "/libretranslate")
        )


def translation(differs: str = "", **fields: Any) -> Case:
    """The usual request with other fields; None leaves one out."""
    body = {name: value for name, value in (TO_GERMAN | fields).items() if value is not None}
    return Case("/translate", body, differs=differs)


FILES = {"source": "en", "target": "de"}
CASES = {
    "a text": translation(),
    "a text of two lines": translation(q="A man.\n\nA dog."),
    "a batch": translation(q=["A man.", "A dog.", ""]),
    "a batch of one": translation(q=["A man."]),
    "alternatives": translation(alternatives=2),
    "alternatives of a batch": translation(q=["A man.", "A dog."], alternatives=2),
    "alternatives as text": translation(alternatives="2"),
    "no alternatives": translation(alternatives=0),
    "alternatives below none": translation(alternatives=-1),
    "alternatives that are no number": translation("400, not 500", alternatives="many"),
    "alternatives: null": Case(
        "/translate", TO_GERMAN | {"alternatives": None}, differs="200, not 500"
    ),
    "too many alternatives": translation("at most 9; there any number", alternatives=30),
    "auto": translation(q=ENGLISH, source="auto"),
    "auto, in the target language": translation(q=GERMAN, source="auto"),
    "auto, a batch": translation(q=[ENGLISH, ENGLISH], source="auto"),
    "auto, nothing to detect": translation(q="😀", source="auto"),
    "html": translation(q="<p>A <b>man</b>.</p>", format="html"),
    "html, a batch": translation(q=["<p>A man.</p>", "A dog."], format="html"),
    "html, alternatives": translation(
        "there are none there", q="<p>A man.</p>", format="html", alternatives=2
    ),
    "another format": translation(format="pdf"),
    "format: null": Case("/translate", TO_GERMAN | {"format": None}),
    "emoji alone": translation(q="😀 🎉"),
    "no q": translation(q=None),
    "an empty q": translation(q=""),
    "an empty batch": translation(q=[]),
    "no source": translation(source=None),
    "no target": translation(target=None),
    "an empty target": translation(target=""),
    "q is a number": translation("400, not 500", q=3),
    "q is an object": translation("400, not 500", q={"a": "b"}),
    "q has a number": translation("400, not 500", q=["A man.", 3]),
    "source is a number": translation(source=3),
    "target is a list": translation(target=["de"]),
    "an unknown language": translation(target="xx"),
    "an unknown source": translation(source="xx"),
    "an unknown source, a batch": translation(q=["A man."], source="xx"),
    "upper case": translation(source="EN", target="DE"),
    "a region": translation("read as de; there unknown", target="de-DE"),
    "another standard": translation("read as de; there unknown", target="deu"),
    "the same language": translation(target="en"),
    "a form": Case("/translate", TO_GERMAN, FORM),
    "a form of parts": Case("/translate", parts(TO_GERMAN), PARTS),
    "a form, alternatives": Case("/translate", TO_GERMAN | {"alternatives": "2"}, FORM),
    "a form, alternatives that are no number": Case(
        "/translate", TO_GERMAN | {"alternatives": "x"}, FORM
    ),
    "a form without q": Case("/translate", FILES, FORM),
    "a form with q twice": Case(
        "/translate", b"q=A+man.&q=A+dog.&source=en&target=de", FORM
    ),
    "the query": Case("/translate", b"", query=urlencode(TO_GERMAN), kind=FORM),
    "the query and JSON": Case(
        "/translate", {"target": "de"}, query="q=A+man.&source=en",
        differs="the query counts; there it does not beside JSON",
    ),
    "further fields": translation(secret="", api_key="", other=[1]),
    "broken JSON": Case("/translate", b"{"),
    "JSON that is a list": Case("/translate", [1]),
    "JSON without its type": Case("/translate", json.dumps(TO_GERMAN).encode(), "text/plain"),
    "no body": Case("/translate", b""),
    "GET": Case("/translate", differs="an error as JSON; there as a page"),
    "detect": Case("/detect", {"q": ENGLISH}, differs="every language; there those above 0"),
    "detect a batch": Case("/detect", {"q": [ENGLISH, GERMAN]}),
    "detect a form": Case("/detect", {"q": ENGLISH}, FORM, differs="every language"),
    "detect nothing": Case("/detect", {}),
    "languages": Case("/languages", differs="via: the language in between"),
    "settings": Case("/frontend/settings"),
    "health": Case("/health"),
    "a suggestion": Case("/suggest", TO_GERMAN | {"s": "Ein Mann."}),
    "a file": Case("/translate_file", parts(FILES, "a.txt", "A man.\n"), PARTS),
    "a file of HTML": Case("/translate_file", parts(FILES, "a.html", "<p>A man.</p>"), PARTS),
    "a file, auto": Case(
        "/translate_file", parts(FILES | {"source": "auto"}, "a.txt", ENGLISH), PARTS
    ),
    "a file of another kind": Case("/translate_file", parts(FILES, "a.exe", "A man."), PARTS),
    "a file without a target": Case(
        "/translate_file", parts({"source": "en"}, "a.txt", "A man."), PARTS
    ),
    "no file": Case("/translate_file", parts(FILES), PARTS),
    "no such download": Case("/download_file/x.txt", differs="404, not 500"),
    "nothing there": Case("/nowhere", differs="an error as JSON; there as a page"),
}  # fmt: skip
KEYED = {
    "languages": Case("/languages", differs="via"),
    "settings": Case("/frontend/settings"),
    "health": Case("/health"),
    "no key": translation(),
    "an empty key": translation(api_key=""),
    "a wrong key": translation(api_key="x"),
    "a wrong key in a form": Case("/translate", TO_GERMAN | {"api_key": "x"}, FORM),
    "a wrong key in the query": Case(
        "/translate", b"", FORM, urlencode(TO_GERMAN | {"api_key": "x"})
    ),
    "the key": translation(api_key=KEY),
    "the key in a form": Case("/translate", TO_GERMAN | {"api_key": KEY}, FORM),
    "the key in the query": Case("/translate", b"", FORM, urlencode(TO_GERMAN | {"api_key": KEY})),
    "detect without a key": Case("/detect", {"q": ENGLISH}),
    "detect with a wrong key": Case("/detect", {"q": ENGLISH, "api_key": "x"}),
    "a file without a key": Case("/translate_file", parts(FILES, "a.txt", "A man."), PARTS),
    "a file with a wrong key": Case(
        "/translate_file", parts(FILES | {"api_key": "x"}, "a.txt", "A man."), PARTS
    ),
    "a file with the key": Case(
        "/translate_file", parts(FILES | {"api_key": KEY}, "a.txt", "A man."), PARTS
    ),
}


SAID = {"code", "name", "targets", "language", "status", "apiKeys", "keyRequired", "suggestions"}
"""Fields whose values must be alike, too."""


def shape(value: Any, name: str = "") -> Any:
    """What a client relies on: fields and types; of lists how many; some values."""
    if isinstance(value, dict):
        return {name: shape(one, name) for name, one in sorted(value.items())}
    if name in SAID:
        return value
    if isinstance(value, list):
        return [shape(one) for one in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number"
    return "as it was" if value in AS_IT_WAS else type(value).__name__


def ask(url: str, case: Case) -> str:
    """The status and the shape of the answer."""
    address = f"{url}{case.path}" + (f"?{case.query}" if case.query else "")
    request = urllib.request.Request(address, case.data, {"Content-Type": case.kind})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            status, body = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, body = error.code, error.read()
    try:
        found = json.loads(body)
    except ValueError:
        return f"{status} a page"
    if status == 200 and case.path == "/frontend/settings":
        found["supportedFilesFormat"] = []  # we take other kinds
    if "alternatives" in found and "alternatives" in str(case.body):
        found["alternatives"] = [shape(one) for one in found["alternatives"]][:1]
    return f"{status} {json.dumps(shape(found))}"


@contextmanager
def libretranslate(home: Path, *options: str) -> Iterator[str]:
    """The address of LibreTranslate's server, with its files in this folder."""
    assert PEER is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (home / "log").open("w") as log:
        process = subprocess.Popen(
            [PEER, "--host", "127.0.0.1", "--port", str(port), *options],
            env=environment(home),
            cwd=home,
            stdout=log,
            stderr=log,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + START_S
        while True:
            try:
                urllib.request.urlopen(f"{url}/health").close()
                break
            except OSError:
                assert process.poll() is None, (home / "log").read_text()
                assert time.monotonic() < deadline, (home / "log").read_text()
                time.sleep(0.3)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def environment(home: Path) -> dict[str, str]:
    """The environment of a user who has no files yet."""
    places = ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "TMPDIR")
    return (
        os.environ | dict.fromkeys(places, str(home)) | {"PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(PEER is None, reason="LibreTranslate is not installed; see above")
def test_our_server_answers_as_libretranslate_does(tmp_path: Path) -> None:
    with join_world() as world:
        job = Request(to="argos", output=tmp_path / "argos")
        (package,) = export(small_run(), job, world).path.glob("*.argosmodel")
    assert PEER is not None
    command = [str(Path(PEER).with_name("python")), "-c", INSTALL, str(package), KEY]
    subprocess.run(command, env=environment(tmp_path), cwd=tmp_path, check=True)
    bundles = [called(tmp_path, "en", "de"), called(tmp_path, "de", "en")]
    keyed = ("--api-keys", "--api-keys-db-path", "keys.db", "--require-api-key-origin", "none")
    wrong = []
    for cases, options, token in ((CASES, (), None), (KEYED, keyed, KEY)):
        with ExitStack() as stack:
            theirs = stack.enter_context(libretranslate(tmp_path, *options))
            ours = stack.enter_context(serving(bundles[0], str(bundles[1]), token=token))
            assert urlsplit(theirs).hostname == urlsplit(ours.url).hostname == "127.0.0.1"
            for name, case in cases.items():
                found = {ask(f"{ours.url}{prefix}", case) for prefix in case.prefixes}
                expected = ask(theirs, case)
                alike = found == {expected}
                if alike is bool(case.differs):
                    wrong.append(name)
                print(f"{name}: {expected}")
                if not alike:
                    print(
                        *(f"    ours: {one}  ({case.differs})" for one in sorted(found)), sep="\n"
                    )
    assert not wrong
