"""Several models at once: pairs of languages that two of them make, and detected languages."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli import main
from foreign_models import marian_folder
from real_text import real_lines
from served import Server, called, serving

FRENCH = "Un homme joue de la guitare devant une grande maison."


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


def about(value: Any) -> Any:
    """The same, but of numbers only about: they depend on the rows that share a batch."""
    if isinstance(value, dict):
        return {name: about(one) for name, one in value.items()}
    if isinstance(value, list):
        return [about(one) for one in value]
    return pytest.approx(value, rel=1e-4) if isinstance(value, float) else value


def test_two_models_in_a_row_make_a_pair_and_say_so(server: Server) -> None:
    texts = [*real_lines("test", "en")[:8], "", "A man.\n\nA dog runs. It barks."]
    for text in texts:
        (between,) = translate(server, text=text, source="de", target="en")["translations"]
        middle = {"text": between["text"], "source": "en"}
        (expected,) = translate(server, **middle, target="fr", alternatives=2)["translations"]
        whole = translate(server, text=text, source="de", target="fr", alternatives=2)
        (found,) = whole["translations"]
        assert between["via"] is found["detected"] is None
        by_two = {"source": "de", "via": "en", "target": "fr", "model": "de-en + en-fr"}
        assert found == about(expected | by_two)
    lines = server.ask("/translate/stream", {"text": texts[-1], "source": "de", "target": "fr"})
    streamed = [json.loads(line)["text"] for line in lines.body.decode().splitlines()]
    assert streamed == found["text"].split("\n")


def test_a_model_goes_before_two(server: Server) -> None:
    (found,) = translate(server, text="A man.", source="fr", target="de")["translations"]
    assert found["via"] is None
    answer = server.ask("/pairs").json
    assert answer["names"] == {"de": "German", "en": "English", "fr": "French"}
    pairs = answer["pairs"]
    assert [(one["source"], one["target"], one["via"]) for one in pairs] == [
        ("de", "en", None),
        ("en", "fr", None),
        ("fr", "de", None),
        ("de", "fr", "en"),
        ("en", "de", "fr"),
        ("fr", "en", "de"),
    ]
    libre = {one["code"]: one for one in server.ask("/libretranslate/languages").json}
    assert [one["name"] for one in libre.values()] == ["German", "English", "French"]
    assert libre["de"]["targets"] == ["de", "en", "fr"]
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
        (found,) = translate(server, text=text, source="auto", target="fr")["translations"]
        assert found["source"] == found["detected"]["language"] == language
        assert found["detected"]["confidence"] > 50
        (same,) = translate(server, text=text, source="AUTO", target="fr")["translations"]
        libre = {"q": text, "source": "Auto", "target": "fr"}
        assert server.ask("/libretranslate/translate", libre).json["detectedLanguage"]
        assert same == found
        named = translate(server, text=text, source=language, target="fr")
        assert [found | {"detected": None}] == named["translations"]
        body = {"text": f"{text}\n{text}", "source": "auto", "target": "fr"}
        lines = server.ask("/translate/stream", body).body.decode().splitlines()
        first, second = map(json.loads, lines)
        assert first["detected"]["language"] == language
        assert first["detected"]["confidence"] > 50
        assert "detected" not in second
        assert first["text"] == second["text"] == named["translations"][0]["text"]
    # Text that is in the target language already stays as it is.
    for layout in ("text", "html", "markdown"):
        body = {"text": FRENCH, "source": "auto", "target": "fr", "format": layout}
        (found,) = translate(server, **body)["translations"]
        assert (found["text"], found["source"], found["model"]) == (FRENCH, "fr", "")
        assert found["detected"]["language"] == "fr"
        assert found["detected"]["confidence"] > 50
        if layout != "markdown":
            (line,) = server.ask("/translate/stream", body).body.decode().splitlines()
            assert json.loads(line)["text"] == FRENCH
            assert json.loads(line)["detected"] == found["detected"]
    found = server.ask("/detect", {"text": f"<b lang='en'>{FRENCH}</b>"}).json["languages"]
    assert sorted(one["language"] for one in found) == ["de", "en", "fr"]
    assert found[0]["language"] == "fr"
    assert found[0]["confidence"] > 50 > found[1]["confidence"]
    answer = server.ask("/translate", {"text": "a", "source": "auto", "target": "xx"})
    assert answer.status == 404


def test_each_text_of_a_batch_has_its_own_language(server: Server) -> None:
    """One text in German does not make the English ones German."""
    german, english = real_lines("test", "de")[:6], real_lines("test", "en")[:6]
    texts = [text for pair in zip(german, english, strict=True) for text in pair]
    found = translate(server, text=texts, source="auto", target="fr")["translations"]
    assert [one["source"] for one in found] == ["de", "en"] * 6
    assert [one["detected"]["language"] for one in found] == ["de", "en"] * 6
    assert [one["via"] for one in found] == ["en", None] * 6
    body = {"q": [*texts, FRENCH], "source": "auto", "target": "fr"}
    libre = server.ask("/libretranslate/translate", body).json
    assert [one["language"] for one in libre["detectedLanguage"]] == [*["de", "en"] * 6, "fr"]
    # Text that is in the target language already stays as it is, as in LibreTranslate.
    assert libre["translatedText"] == [*(one["text"] for one in found), FRENCH]
    alone = {"q": texts[0], "source": "auto", "target": "fr"}
    detected = server.ask("/translate", alone).json["detectedLanguage"]
    assert detected == found[0]["detected"]


STYLES = ".page-header { margin: 0 auto; color: the-value }" * 100


def test_the_language_of_a_page_is_that_of_its_text(server: Server) -> None:
    """Not that of its style sheet, which is the first thing in it."""
    german = " ".join(real_lines("test", "de")[:3])
    page = f"<style>{STYLES}</style><p>{german}</p>"
    body = {"text": page, "source": "auto", "target": "fr", "format": "html"}
    (found,) = translate(server, **body)["translations"]
    assert (found["source"], found["via"]) == ("de", "en")
    first, *_ = server.ask("/translate/stream", body).body.decode().splitlines()
    assert json.loads(first)["detected"]["language"] == "de"
    for path, fields in (("/detect", {"text": page}), ("/libretranslate/detect", {"q": page})):
        answer = server.ask(path, fields).json
        ranked = answer["languages"] if path == "/detect" else answer
        assert ranked[0]["language"] == "de"
        assert ranked[0]["confidence"] > 50

    def file_in(source: str) -> str:
        fields = {"source": source, "target": "fr"}
        form = "".join(
            f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
            for name, value in fields.items()
        )
        form += (
            f'--x\r\nContent-Disposition: form-data; name="file"; filename="a.htm"\r\n\r\n{page}'
        )
        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        answer = server.ask("/translate_file", f"{form}\r\n--x--\r\n".encode(), headers=headers)
        url: str = answer.json["translatedFileUrl"]
        return server.ask(url.removeprefix(server.url)).body.decode()

    assert file_in("auto") == file_in("de") != page


def test_a_text_that_no_model_leads_from_is_refused_by_its_language(bundles: list[Path]) -> None:
    english, french, german = " ".join(real_lines("test", "en")[:3]), FRENCH, "Ein Mann singt laut."
    with serving(bundles[0], str(bundles[2])) as server:  # de to en, fr to de
        for text, target in ((english, "de"), (french, "fr")):
            body = {"text": text, "source": "auto", "target": target}
            assert server.ask("/translate", body).status == 404
        for path, status in (("/translate", 404), ("/translate/stream", 404)):
            body = {"text": english, "source": "auto", "target": "de"}
            answer = server.ask(path, body)
            assert answer.status == status
            assert "the text is in en" in answer.json["error"]
        libre = {"q": [german, english], "source": "auto", "target": "de"}
        answer = server.ask("/libretranslate/translate", libre)
        assert answer.status == 400
        assert "text 2 is in en" in answer.json["error"]
        assert server.ask("/libretranslate/translate", libre | {"source": "en"}).status == 400
        short = server.ask("/libretranslate/translate", libre | {"q": "OK"})
        assert short.status == 200


def test_no_text_is_long_to_detect(server: Server) -> None:
    for text in ("<" * 100_000, "<a " * 33_000, "a" * 100_000, "\0" * 100_000, "😀" * 50_000):
        started = time.monotonic()
        assert len(server.ask("/detect", {"text": text}).json["languages"]) == 3
        assert time.monotonic() - started < 3


def test_the_server_corrects_languages_of_its_models(bundles: list[Path]) -> None:
    with serving(bundles[0], str(bundles[1]), "--languages", "pl-cs,") as server:
        targets = {one["code"]: one["targets"] for one in server.ask("/languages").json}
        assert "cs" in targets["pl"]
        assert "fr" in targets["en"]
        assert "de" not in targets
        assert translate(server, text="A man.", source="pl")["translations"]
        assert server.ask("/translate", {"text": "A man.", "source": "de"}).status == 404
        cards = [one["card"] for one in server.ask("/models").json]
        assert any("pl to cs" in card for card in cards)


@pytest.mark.parametrize(
    ("languages", "words"),
    [
        ("pl-cs", "names the languages of 1 of 2 models"),
        ("pl-czech,", "did you mean cs?"),
        ("pl,cs", "not a pair of languages"),
    ],
)
def test_languages_that_do_not_fit_the_models_are_refused(
    languages: str, words: str, bundles: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *map(str, bundles[:2]), "--languages", languages]) == 2
    assert words in capsys.readouterr().err


def test_without_the_detector_the_answer_names_the_package_to_install(
    bundles: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['py3langid'] = None\n")
    monkeypatch.setenv("PYTHONPATH", ":".join([str(tmp_path), *sys.path]))
    body = {"text": "A man.", "source": "auto"}
    with serving(bundles[0]) as server:  # one language needs no detector
        (found,) = translate(server, **body)["translations"]
        assert found["detected"] == {"language": "de", "confidence": 0}
        libre = {"q": ["A man.", "a"], "source": "auto", "target": "en"}
        for prefix in ("", "/libretranslate"):
            answer = server.ask(f"{prefix}/translate", libre)
            assert [one["language"] for one in answer.json["detectedLanguage"]] == ["de", "de"]
    with serving(bundles[0], str(bundles[1])) as server:
        answer = server.ask("/translate", body | {"target": "fr"})
        assert answer.status == 501
        assert "py3langid" in answer.json["error"]
        assert "pip install py3langid" in answer.json["error"]
        libre = {"q": "A man.", "source": "auto", "target": "fr"}
        assert server.ask("/libretranslate/translate", libre).status == 501
        assert server.ask("/libretranslate/detect", {"q": "A man."}).status == 501
        assert server.ask("/pairs").json["detects"] is False
        (found,) = translate(server, text="A man.", source="de", target="fr")["translations"]
        assert found["via"] == "en"


def test_the_page_offers_pairs_by_way_of_two_models_and_detection(
    server: Server, browser: Any
) -> None:
    page = browser.new_page()
    page.goto(server.url)
    page.wait_for_selector("#from option", state="attached")

    def offered(side: str) -> list[str]:
        return list(page.locator(f"#{side} option").all_text_contents())

    assert offered("from") == ["Detect language", "English", "French", "German"]
    assert page.input_value("#from") == "de"  # the first model
    assert offered("to") == ["English", "French, via English"]
    page.select_option("#to", "fr")
    assert page.locator("#card h2").count() >= 8  # of both models
    page.select_option("#from", "auto")
    assert offered("to") == ["English", "French", "German"]
    assert page.input_value("#to") == "fr"  # the choice stays if it can
    page.select_option("#to", "de")
    assert page.is_disabled("#swap")  # nothing is detected yet
    page.fill("#source", FRENCH)
    detected = page.locator("#from option[value=auto]")
    page.fill("#source", "...")
    detected.filter(has_text="(unsure)").wait_for(state="attached")
    page.fill("#source", FRENCH)
    detected.filter(has_text="French (detected)").wait_for(state="attached")
    german = page.inner_text("#result")
    page.click("#swap")
    assert (page.input_value("#from"), page.input_value("#to")) == ("de", "fr")
    assert page.input_value("#source") == german
    page.wait_for_selector("#result[lang=fr]")
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
