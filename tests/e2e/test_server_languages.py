"""Several models at once: pairs of languages that two of them make, and detected languages."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from libretranslatepy import LibreTranslateAPI

from dragoman.cli import main
from foreign_models import marian_folder
from real_text import real_lines
from served import Server, served_bundle, serving

FRENCH = "Un homme joue de la guitare devant une grande maison."


def called(folder: Path, source: str, target: str) -> Path:
    """The bundle of the small run under other languages: what is translated how is all the same."""
    bundle = folder / f"{source}-{target}"
    shutil.copytree(served_bundle(), bundle)
    description = bundle / "bundle.json"
    info = json.loads(description.read_bytes())
    languages = {"source_language": source, "target_language": target}
    description.write_text(json.dumps(info | languages | {"name": bundle.name}))
    recipe = bundle / "recipe.toml"
    text = re.sub(
        r'(?m)^source_language = ".*"', f'source_language = "{source}"', recipe.read_text()
    )
    recipe.write_text(re.sub(r'(?m)^target_language = ".*"', f'target_language = "{target}"', text))
    digests = bundle / "digests.json"
    listed = json.loads(digests.read_bytes())
    for file in (description, recipe):
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        listed[file.name] = {"sha256": sha256, "bytes": file.stat().st_size}
    digests.write_text(json.dumps(listed))
    return bundle


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("bundles")
    pairs = (("de", "en"), ("en", "fr"), ("fr", "de"))
    return [called(folder, source, target) for source, target in pairs]


@pytest.fixture(scope="module")
def server(bundles: list[Path]) -> Iterator[Server]:
    first, *others = bundles
    with serving(first, *map(str, others)) as server:
        yield server


def translate(server: Server, **body: Any) -> Any:
    answer = server.ask("/translate", body)
    assert answer.status == 200, answer.body
    return answer.json


def test_two_models_in_a_row_make_a_pair_and_say_so(server: Server) -> None:
    texts = [*real_lines("test", "en")[:20], "", "A man.\n\nA dog runs. It barks."]
    between = translate(server, text=texts, source="de", target="en")
    assert between["via"] is None
    middle = [one["text"] for one in between["translations"]]
    expected = translate(server, text=middle, source="en", target="fr", alternatives=2)
    found = translate(server, text=texts, source="de", target="fr", alternatives=2)
    assert found["translations"] == expected["translations"]
    assert (found["source"], found["via"], found["target"]) == ("de", "en", "fr")
    assert found["model"] == "de-en + en-fr"
    assert found["detected"] is None
    lines = server.ask("/translate/stream", {"text": texts[-1], "source": "de", "target": "fr"})
    streamed = [json.loads(line)["text"] for line in lines.body.decode().splitlines()]
    assert streamed == found["translations"][-1]["text"].split("\n")


def test_a_model_goes_before_two(server: Server) -> None:
    assert translate(server, text="A man.", source="fr", target="de")["via"] is None
    pairs = server.ask("/languages").json["pairs"]
    assert [(one["source"], one["target"], one["via"]) for one in pairs] == [
        ("de", "en", None),
        ("en", "fr", None),
        ("fr", "de", None),
        ("de", "fr", "en"),
        ("en", "de", "fr"),
        ("fr", "en", "de"),
    ]
    libre = {one["code"]: one for one in server.ask("/libretranslate/languages").json}
    assert libre["de"]["targets"] == ["en", "fr"]
    assert libre["de"]["via"] == {"fr": "en"}


def test_a_pair_that_nobody_makes_is_refused_with_those_that_are_there(bundles: list[Path]) -> None:
    with serving(bundles[0], str(bundles[1])) as server:
        answer = server.ask("/translate", {"text": "a", "source": "fr", "target": "en"})
        assert answer.status == 404
        assert answer.json["error"].endswith("there is: de to en, en to fr, de to fr via en")


@pytest.mark.parametrize(
    ("languages", "problem"),
    [
        ({}, "several models fit: name the source and the target; there is: de to en, "),
        ({"source": "xx"}, "no model for these languages; there is: de to en, "),
        ({"target": "xx"}, "no model for these languages; there is: de to en, "),
    ],
    ids=["none named", "no source", "no target"],
)
def test_several_models_that_fit_and_none_are_two_errors(
    server: Server, languages: dict[str, str], problem: str
) -> None:
    answer = server.ask("/translate", {"text": "a", **languages})
    assert answer.status == 404
    assert answer.json["error"].startswith(problem)


def test_one_of_several_targets_must_be_named(bundles: list[Path], tmp_path: Path) -> None:
    other = called(tmp_path, "de", "it")
    with serving(bundles[0], str(other)) as server:
        for source in ("de", "auto"):
            answer = server.ask("/translate", {"text": "a", "source": source})
            assert answer.status == 404
            assert answer.json["error"].startswith("several models fit: name the target; there is:")


def test_the_source_is_detected(server: Server) -> None:
    german, english = (" ".join(real_lines("test", code)[:3]) for code in ("de", "en"))
    for text, language in ((german, "de"), (english, "en")):
        answer = translate(server, text=text, source="auto", target="fr")
        assert answer["source"] == answer["detected"]["language"] == language
        assert answer["detected"]["confidence"] > 50
        named = translate(server, text=text, source=language, target="fr")
        assert answer["translations"] == named["translations"]
        body = {"text": f"{text}\n{text}", "source": "auto", "target": "fr"}
        lines = server.ask("/translate/stream", body).body.decode().splitlines()
        first, second = map(json.loads, lines)
        assert first["detected"]["language"] == language
        assert first["detected"]["confidence"] > 50
        assert "detected" not in second
        assert first["text"] == second["text"] == named["translations"][0]["text"]
    # Text that is in the target language already is taken for the likeliest of the others.
    assert translate(server, text=FRENCH, source="auto", target="fr")["source"] in ("de", "en")
    found = server.ask("/detect", {"text": f"<b lang='en'>{FRENCH}</b>"}).json["languages"]
    assert sorted(one["language"] for one in found) == ["de", "en", "fr"]
    assert found[0]["language"] == "fr"
    assert found[0]["confidence"] > 50 > found[1]["confidence"]
    answer = server.ask("/translate", {"text": "a", "source": "auto", "target": "xx"})
    assert answer.status == 404


def test_a_client_of_libretranslate_has_its_language_detected(server: Server) -> None:
    client = LibreTranslateAPI(f"{server.url}/libretranslate")
    assert client.detect(FRENCH)[0]["language"] == "fr"
    german = "Ein Mann mit einem Hut spielt Gitarre."
    assert client.translate(german, "auto", "fr") == client.translate(german, "de", "fr")
    for q in (german, [german, german]):
        body = {"q": q, "source": "auto", "target": "fr"}
        detected = server.ask("/libretranslate/translate", body).json["detectedLanguage"]
        for one in detected if isinstance(q, list) else [detected]:
            assert one["language"] == "de"
            assert 50 < one["confidence"] <= 100
    assert server.ask("/libretranslate/detect", {}).status == 422
    assert server.ask("/libretranslate/detect", {"q": "a" * 100_001}).status == 413


def test_no_text_is_long_to_detect(server: Server) -> None:
    for text in ("<" * 100_000, "<a " * 33_000, "a" * 100_000, "\0" * 100_000, "😀" * 50_000):
        started = time.monotonic()
        assert len(server.ask("/detect", {"text": text}).json["languages"]) == 3
        assert time.monotonic() - started < 3


def test_without_the_detector_the_answer_names_the_package_to_install(
    bundles: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['py3langid'] = None\n")
    monkeypatch.setenv("PYTHONPATH", ":".join([str(tmp_path), *sys.path]))
    body = {"text": "A man.", "source": "auto"}
    with serving(bundles[0]) as server:  # one language needs no detector
        answer = translate(server, **body)
        assert answer["detected"] == {"language": "de", "confidence": 0}
    with serving(bundles[0], str(bundles[1])) as server:
        answer = server.ask("/translate", body | {"target": "fr"})
        assert answer.status == 501
        assert "py3langid" in answer.json["error"]
        assert 'pip install "dragoman[clean]"' in answer.json["error"]
        libre = {"q": "A man.", "source": "auto", "target": "fr"}
        assert server.ask("/libretranslate/translate", libre).status == 501
        assert server.ask("/libretranslate/detect", {"q": "A man."}).status == 501
        assert server.ask("/languages").json["detects"] is False
        assert translate(server, text="A man.", source="de", target="fr")["via"] == "en"


def test_the_page_offers_pairs_by_way_of_two_models_and_detection(
    server: Server, browser: Any
) -> None:
    page = browser.new_page()
    page.goto(server.url)
    page.wait_for_selector("#model option", state="attached")
    offered = page.locator("#model option").all_text_contents()
    assert offered[3:] == [
        *("de to fr, via en", "en to de, via fr", "fr to en, via de"),
        *("detected language to fr", "detected language to de", "detected language to en"),
    ]
    page.select_option("#model", label="de to fr, via en")
    assert page.locator("#card").text_content().count("## ") >= 8  # of both models
    page.select_option("#model", label="detected language to de")
    page.fill("#source", FRENCH)
    page.click("button[type=submit]")
    page.wait_for_selector("#time:text-matches('^from fr, .*s$')")
    page.close()


def test_the_language_of_an_imported_model_is_that_of_the_whole_text(tmp_path: Path) -> None:
    """It is named once, by the code at the start."""
    folder = marian_folder(tmp_path / "model", loud=True, codes=(">>fra<<", ">>deu<<"))
    bundle = tmp_path / "bundle"
    assert main(["import", str(folder), "--to", str(bundle)]) == 0
    sentences = real_lines("test", "en")[:5]
    with serving(bundle) as server:

        def translated(text: str) -> str:
            found: str = translate(server, text=text)["translations"][0]["text"]
            return found

        with_code = [translated(f">>fra<< {one}") for one in sentences]
        assert with_code != [translated(one) for one in sentences], "the code is seen"
        assert translated(f">>fra<< {' '.join(sentences)}") == " ".join(with_code)
        lines = server.ask("/translate/stream", {"text": "\n".join([">>fra<<", *sentences])})
        streamed = [json.loads(line)["text"] for line in lines.body.decode().splitlines()]
        assert streamed == ["", *with_code]
