"""Clients of LibreTranslate that others wrote, against our server with a token.

Mastodon is in Ruby: its requests are sent as its TranslationService::LibreTranslate sends them, and
answers are read as there. deep-translator and Weblate are not of our environment; the tests skip
without them. Weblate runs in one of its own:

    apt-get install libpq-dev liblz4-dev libacl1-dev libxxhash-dev libssl-dev libpango-1.0-0
    python3.12 -m venv weblate && weblate/bin/pip install weblate psycopg2-binary
    WEBLATE_PYTHON=weblate/bin/python pytest tests/e2e/test_libretranslate_clients.py -n0
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

import pytest
from libretranslatepy import LibreTranslateAPI

from served import Answer, Server, called, serving

TOKEN = "a-token-of-some-length"
SITE = "https://pages.example"
GERMAN = "Ein Mann mit einem roten Hut spielt auf einer Gitarre."
ENGLISH = "A man with a red hat is playing a guitar."
TO_GERMAN = {"q": "A man.", "source": "en", "target": "de"}
KEY = {"api_key": TOKEN}
FORM = "application/x-www-form-urlencoded"
PREFIXES = ("", "/libretranslate")
WEBLATE = """
import json, os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "weblate.settings_example"
import django
django.setup()
from weblate.machinery.libretranslate import LibreTranslateTranslation
url, key = sys.argv[1:]
machine = LibreTranslateTranslation({"url": url, "key": key})
machine.validate_settings()
found = machine.download_multiple_translations("en", "de", [("A man.", None), ("A dog.", None)])
try:
    wrong = LibreTranslateTranslation({"url": url, "key": "wrong"})
    wrong.download_multiple_translations("en", "de", [("A man.", None)])
except Exception as error:  # of requests or httpx2, by Weblate's version
    refused = error.response.status_code, wrong.is_rate_limit_error(error)
print(json.dumps([sorted(machine.download_languages()), machine.map_language_code("pt_BR"),
                  {text: one[0]["text"] for text, one in found.items()}, refused]))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("bundles")
    bundles = [called(folder, "en", "de"), called(folder, "de", "en")]
    options = ("--threads", "1", "--allow-origin", SITE)
    with serving(bundles[0], str(bundles[1]), *options, token=TOKEN) as server:
        yield server


@pytest.fixture(scope="module")
def expected(server: Server) -> str:
    """What our own interface answers."""
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    body = {"text": "A man.", "source": "en", "target": "de"}
    answer = server.ask("/translate", body, headers=bearer).json
    text: str = answer["translations"][0]["text"]
    return text


@pytest.mark.parametrize("prefix", PREFIXES)
def test_libretranslatepy(server: Server, expected: str, prefix: str) -> None:
    client = LibreTranslateAPI(server.url + prefix, api_key=TOKEN)
    assert client.translate("A man.", "en", "de") == expected
    names = {language["code"]: language["name"] for language in client.languages()}
    assert names == {"en": "English", "de": "German"}
    assert client.detect(GERMAN)[0]["language"] == "de"
    assert client.translate(GERMAN, "auto", "en") == client.translate(GERMAN, "de", "en")
    stranger = LibreTranslateAPI(server.url + prefix, api_key="wrong")
    assert stranger.languages() == client.languages(), "they are told to everybody"
    with pytest.raises(urllib.error.HTTPError) as refused:
        stranger.translate("A man.", "en", "de")
    assert refused.value.code == 403


@pytest.mark.parametrize("prefix", PREFIXES)
def test_deep_translator(server: Server, expected: str, prefix: str) -> None:
    package = pytest.importorskip("deep_translator")
    exceptions = pytest.importorskip("deep_translator.exceptions")

    def client(key: str) -> Any:
        url = f"{server.url}{prefix}/"
        return package.LibreTranslator(source="en", target="de", api_key=key, custom_url=url)

    assert client(TOKEN).translate("A man.") == expected
    assert client(TOKEN).translate_batch(["A man.", "A dog."])[0] == expected
    with pytest.raises(exceptions.AuthorizationException):  # only if the status is 403
        client("wrong").translate("A man.")


@pytest.mark.parametrize("prefix", PREFIXES)
def test_weblate(server: Server, expected: str, prefix: str) -> None:
    python = os.environ.get("WEBLATE_PYTHON")
    if python is None:
        pytest.skip("Weblate is not installed; see above")
    done = subprocess.run(
        [python, "-c", WEBLATE, server.url + prefix, TOKEN],
        env=os.environ | {"PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    languages, brazil, found, refused = json.loads(done.stdout.splitlines()[-1])
    assert (languages, brazil) == (["de", "en"], "pt-BR")
    assert found["A man."] == expected
    assert found.keys() == {"A man.", "A dog."}
    assert refused == [403, True]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_mastodon(server: Server, prefix: str) -> None:
    """A post, its warning and two answers of a poll are one batch of HTML."""

    def ask(path: str, body: Any = None) -> Answer:
        return server.ask(prefix + path, body, headers={"Content-Type": "application/json"})

    languages = ask("/languages").json
    targets = {one["code"]: [to for to in one["targets"] if to != one["code"]] for one in languages}
    assert targets == {"en": ["de"], "de": ["en"]}
    texts = [f"<p>{ENGLISH}</p>", ENGLISH, "A <b>dog</b> runs.", "A cat sleeps."]
    post = {"q": texts, "source": "en", "target": "de", "format": "html"}
    data = ask("/translate", post | KEY).json
    assert len(data["translatedText"]) == 4
    assert data["translatedText"][0].startswith("<p>")
    assert "detectedLanguage" not in data
    unknown = {"q": [ENGLISH, GERMAN], "source": "auto", "target": "de", "format": "html"}
    data = ask("/translate", unknown | KEY).json
    assert [one["language"] for one in data["detectedLanguage"]] == ["en", "de"]
    assert data["translatedText"][1] == GERMAN
    assert ask("/translate", post | {"api_key": "wrong"}).status == 403  # its QuotaExceededError
    assert ask("/translate", post | {"api_key": None}).status == 400


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_file_is_translated_and_fetched_without_a_key(server: Server, prefix: str) -> None:
    def send(name: str, content: bytes, **fields: str) -> Answer:
        values = {"source": "en", "target": "de", "api_key": TOKEN} | fields
        form = "".join(
            f'--x-y\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'
            for field, value in values.items()
        )
        form += f'--x-y\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
        body = form.encode() + content + b"\r\n--x-y--\r\n"
        kind = "multipart/form-data; boundary=x-y"
        return server.ask(f"{prefix}/translate_file", body, headers={"Content-Type": kind})

    sentences = "A man.\n\nA dog runs."
    page = f'<html><head><title>A man.</title></head><body class="a"><p>{ENGLISH}</p></body></html>'
    for name, text, layout in (
        ("a.txt", sentences, "text"),
        ("\ufeffa.txt", sentences, "text"),
        ("../../größe 1.HTML", page, "html"),
        ("a.htm", page, "html"),
    ):
        body = TO_GERMAN | KEY | {"q": text, "format": layout}
        translated = server.ask("/libretranslate/translate", body).json["translatedText"]
        content = b"\xef\xbb\xbf" * name.startswith("\ufeff") + text.encode()
        answer = send(name.lstrip("\ufeff"), content)
        assert answer.status == 200, answer.body
        url = answer.json["translatedFileUrl"]
        assert url.startswith(f"{server.url}{prefix}/download_file/")
        with urllib.request.urlopen(url) as file:
            assert file.read().decode() == translated
            header = file.headers["Content-Disposition"]
            assert file.headers["Content-Security-Policy"].startswith("sandbox")
        kept_name = unquote(header.partition("UTF-8''")[2])
        ending = PurePath(name).suffix.lower()
        assert kept_name == ("größe_1_de.html" if "1" in name else f"a_de{ending}")
        assert file.headers["Content-Type"].startswith(
            "text/plain" if ending == ".txt" else "text/html"
        )
        assert url.partition("/download_file/")[2].partition(".")[2].lower() == (
            "gr%c3%b6%c3%9fe_1_de.html" if "1" in name else kept_name
        )
        other = send(name.lstrip("\ufeff"), content).json["translatedFileUrl"]
        assert other != url
        near = url.removeprefix(server.url).replace("download_file/", "download_file/x")
        assert server.ask(near).status == 404
    assert send("a.txt", ENGLISH.encode(), source="auto").status == 200
    for name, content, fields in (
        ("a.pdf", b"%PDF", {}),
        ("a", b"A man.", {}),
        ("", b"A man.", {}),
        ("a.txt", b"\xff\xfeA\x00", {}),
        ("a.txt", b"A man. " * 20_000, {}),
        ("a.txt", b"A man.", {"target": ""}),
        ("a.txt", b"A man.", {"target": "xx"}),
        ("a.txt", b"A man.", {"api_key": ""}),
    ):
        refused = send(name, content, **fields)
        assert refused.status == 400, (name, fields)
        assert refused.json["error"]
    assert send("a.txt", b"A man.", api_key="wrong").status == 403
    assert send("a.txt", b"A man. " * 150_000).status == 413
    for path in ("x", "x.txt", "", "..", "../models", "%2e%2e%2fmodels", "x" * 5000):
        assert server.ask(f"{prefix}/download_file/{path}").status in (401, 404), path


FIRST = "1\r\n00:00:01,000 --> 00:00:02,500\r\n"
SECOND = "\r\n\r\n2\r\n00:00:03,000 --> 00:00:04,000\r\n"
DOCUMENTS = {
    "a.srt": (
        f"{FIRST}<i>A man.</i>{SECOND}A dog runs.\r\n",
        rf"{FIRST}<i>(.+)</i>{SECOND}(.+)\r\n",
    ),
    "a.VTT": (
        "WEBVTT\n\n00:01.000 --> 00:02.500\nA man.\n",
        r"WEBVTT\n\n00:01\.000 --> 00:02\.500\n(.+)\n",
    ),
    "a.md": (
        "# A man.\n\n- A **dog** runs.\n\n```\nA man.\n```\n",
        r"# (.+)\n\n- .+\n\n```\nA man\.\n```\n",
    ),
    "b.md": ("```\nx\n```\n", r"```\nx\n```\n"),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_all_but_the_text_of_a_document_is_kept(server: Server, name: str) -> None:
    content, kept = DOCUMENTS[name]
    form = "".join(
        f'--x\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'
        for field, value in ({"source": "en", "target": "de"} | KEY).items()
    )
    form += (
        f'--x\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n{content}'
    )
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = server.ask("/translate_file", f"{form}\r\n--x--\r\n".encode(), headers=headers)
    path = urlsplit(answer.json["translatedFileUrl"]).path
    found = re.fullmatch(kept, server.ask(path).body.decode())
    assert found
    assert "A man." not in found.groups()


def test_pages_of_a_named_site_may_ask_and_read_and_others_may_not(server: Server) -> None:
    def ask(origin: str, **more: Any) -> Answer:
        headers = {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
        return server.ask("/translate", TO_GERMAN | KEY, headers=headers, **more)

    answer = ask(SITE)
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == SITE
    headers = {"Origin": SITE}
    refused = server.ask("/translate", TO_GERMAN | {"api_key": "x"}, headers=headers)
    assert refused.status == 403
    assert refused.headers["access-control-allow-origin"] == SITE, "the page can read the error"
    stranger = ask("https://elsewhere.example")
    assert stranger.status == 403
    assert "access-control-allow-origin" not in stranger.headers
    wanted = {"Access-Control-Request-Method": "POST"}
    wanted["Access-Control-Request-Headers"] = "content-type"
    for origin, status in ((SITE, 200), ("https://elsewhere.example", 400)):
        asked = wanted | {"Origin": origin}
        before = server.ask("/translate", headers=asked, method="OPTIONS")
        assert before.status == status
        assert before.headers.get("access-control-allow-origin") == (
            SITE if status == 200 else None
        )


def test_curl(server: Server, expected: str, tmp_path: Path) -> None:
    def curl(*arguments: str) -> Any:
        done = subprocess.run(["curl", "-s", *arguments], capture_output=True, check=True)
        return json.loads(done.stdout)

    form = urlencode(TO_GERMAN | KEY)
    asked = curl(f"{server.url}/translate", "-d", form)
    assert asked == {"translatedText": expected}
    (tmp_path / "a.txt").write_text("A man.")
    sent = [f"{server.url}/translate_file", "-F", f"file=@{tmp_path}/a.txt"]
    sent += [part for name in ("source", "target") for part in ("-F", f"{name}={TO_GERMAN[name]}")]
    url = curl(*sent, "-F", f"api_key={TOKEN}")["translatedFileUrl"]
    with urllib.request.urlopen(url) as file:
        assert file.read().decode() == expected
    # curl's own type of body is a form: the answer names the header that is missing.
    missing = curl(f"{server.url}/translate", "-d", '{"text": "A man."}',
                   "-H", f"Authorization: Bearer {TOKEN}")  # fmt: skip
    assert "Content-Type must be application/json" in missing["error"]
