"""The folder for browsers in a real one: as our greedy search, without a network, by keyboard."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import sentencepiece

from dragoman.cli import main
from dragoman.corpus.config import SubwordConfig
from dragoman.corpus.normalize import INVISIBLE, UNICODE_SPACES, mark_bounds, normalize
from dragoman.corpus.subword import Subword, count_words, train_on_words
from dragoman.evaluation.sentences import RULES
from dragoman.formats.bundle import Bundle
from dragoman.formats.web import PAGE, PAGE_FILES
from dragoman.inference.text import cut
from known_ends import known_paragraphs, known_sentences
from real_text import real_lines
from small_run import small_run
from web_export import (
    StaticServer,
    greedy,
    run_with,
    settings_of,
    small_web_export,
    static_server,
    web_export,
)

SCREENSHOTS = os.environ.get("DRAGOMAN_SCREENSHOTS")
"""A folder to keep pictures in, for eyes."""
PLACE: Final = "/in/a%20folder/"
UNTIDY = [
    "  Cafe\u0301\u00a0 a\tb \r", "\ufeffHello\u2009 \u3000World", "e\u0323\u0302 e\u0302\u0323",
    "\u1100\u1161\u11a8 \uac01", "x\u2581y a\u200bb", "\U0001f600\U0001f600 b", "ΑΣ ΟΔΟΣ İ I\u0307",
    "日本語。テスト！」三", "\x1c\x85a\x00b", "<s> </s> ▁ ⁇ <unk>", "", " ", "A B",
    f"a{UNICODE_SPACES}b", f"a{INVISIBLE}b", "e\u2060\u0301 e\u00ad\u200b",
    "a" + "\u0301" * 40 + "\u0323" * 400 + "b", "<de> Hallo", "a<fr>b<de>",
]  # fmt: skip
PARAGRAPHS = [
    "A man. A dog runs!", "He said “Stop.” Then he left.", "Dr. Who met J. S. Bach.",
    "Am 3. Mai, z. B. hier. Und dort.", "a.\n\n b.  \n c", "Gem. § 5, Vol. IV. VIe. पृ. ५ खं. (2)",
    "\x1ca. \x1cB", "  x. Y  ", "3.50 4. 5",
    "The U.S. is (see Fig. 3) large. Yes.", "一。二！」三", "ǅ. ǅ b. éa", " \n ", "", "...",
    "In vol. 4, on Jan. 5. MR. X et al. (2020).", "w 2014 r. Potem. COVID-19. Then", "« Oui. » Non",
    "“Really?” he asked. ３．５です。１．はじめ．次．終", "Halt.\u0085 »\n a; b: c",
    "πώ; հա: Ναι", "😀. 😀😀. 5",
]  # fmt: skip


@pytest.fixture
def server() -> Iterator[StaticServer]:
    with static_server(small_web_export().parents[1]) as server:
        yield server


def open_page(browser: Any, url: str, **options: Any) -> Any:
    """A page whose model is loaded."""
    page = browser.new_page(**options)
    page.set_default_timeout(120_000)  # a busy machine lays out a long text for half a minute
    page.goto(url)
    page.wait_for_selector("#translate:not([disabled])")
    return page


def translated(page: Any, text: str) -> str:
    """The translation of a text on the page."""
    page.fill("#source", text)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#time:text-matches('sentence$|translate$')")
    result: str = page.evaluate("document.getElementById('result').textContent")
    return result


def keep(page: Any, name: str) -> None:
    if SCREENSHOTS:
        page.screenshot(path=f"{SCREENSHOTS}/{name}.png", full_page=True)


def test_without_a_network_it_translates_as_our_greedy_search(
    browser: Any, server: StaticServer
) -> None:
    asked: list[str] = []
    problems: list[str] = []
    context = browser.new_context(viewport={"width": 1200, "height": 800})
    page = context.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(server.url + PLACE)
    page.wait_for_selector("#translate:not([disabled])")
    server.stop()
    context.set_offline(True)
    before = len(asked)
    lines = real_lines("test", "en")[:50]
    found = translated(page, "\n".join(lines)).split("\n")
    ours = greedy(small_run(), lines)
    assert sum(a == b for a, b in zip(found, ours, strict=True)) >= 48
    assert "50 sentences, " in page.inner_text("#time")
    assert page.inner_text("#time").endswith("ms a sentence")
    assert len(asked) == before
    own = (server.url + PLACE, f"blob:{server.url}")
    assert all(url.startswith(own) for url in asked), asked
    assert not problems
    keep(page, "web-wide")


def test_a_web_page_is_an_export_like_others(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bundle = Bundle.open(small_web_export())
    assert bundle.info.quantization == "int8"
    names = {path.name for path in small_web_export().iterdir()}
    assert names >= {*PAGE_FILES, *settings_of(small_web_export())["files"]}
    (tmp_path / "in").write_text("A man.\n")
    command = ["translate", str(small_web_export()), "--input", str(tmp_path / "in")]
    assert main(command) == 1
    assert "has only the weights of an export of kind web" in capfd.readouterr().err


@pytest.mark.parametrize(
    "sections",
    [
        {"search": {"no_repeat_ngram_size": 2}},
        {"search": {"max_length_ratio": 0.5, "max_length_extra": 1}},
        {"search": {"end_at_limit": True, "never_padding": True, "max_length_ratio": 0.4}},
        {"corpus": {"max_pieces": 20}},
    ],
    ids=str,
)
def test_the_page_searches_as_the_recipe_says(
    browser: Any, tmp_path: Path, sections: dict[str, dict[str, Any]]
) -> None:
    run = run_with(sections)
    lines = real_lines("test", "en")[50:80]
    ours, plain = greedy(run, lines), greedy(small_run(), lines)
    assert ours != plain
    with static_server(web_export(run, tmp_path / "web")) as server:
        found = translated(open_page(browser, server.url), "\n".join(lines)).split("\n")
    assert sum(a == b for a, b in zip(found, ours, strict=True)) >= 29


def test_neither_page_nor_model_can_reach_another_server(
    browser: Any, server: StaticServer, tmp_path: Path
) -> None:
    reach = """async (url) => {
      const tried = [];
      for (const attempt of [
        () => fetch(url, { mode: "no-cors" }),
        () => import(url + "/x.js"),
        () => new Promise((good, bad) => {
          const socket = new WebSocket(url.replace("http", "ws"));
          socket.onopen = good;
          socket.onerror = bad;
        }),
      ]) tried.push(await attempt().then(() => "reached", () => "refused"));
      return tried;
    }"""
    with static_server(tmp_path) as other:
        page = open_page(browser, server.url + PLACE)
        assert page.evaluate(reach, other.url) == ["refused"] * 3
        (worker,) = page.workers
        assert worker.evaluate(reach, other.url) == ["refused"] * 3
        page.evaluate(
            """async (url) => {
              const image = new Image();
              image.src = url + "/x.png";
              const frame = document.createElement("iframe");
              frame.src = url;
              document.body.append(image, frame);
              await new Promise((resolve) => setTimeout(resolve, 300));
            }""",
            other.url,
        )
        assert other.asked == []
        assert worker.evaluate(reach, server.url + PLACE)[0] == "reached"  # so the check can fail


def test_people_use_it_by_keyboard_on_a_narrow_dark_screen(
    browser: Any, server: StaticServer
) -> None:
    page = open_page(
        browser, server.url + PLACE, viewport={"width": 400, "height": 800}, color_scheme="dark"
    )
    page.keyboard.type("Click the button. Close the file!")  # the field has the focus
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#time:has-text('2 sentences')")
    focused = []
    for _ in range(4):
        page.keyboard.press("Tab")
        focused.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert focused == ["translate", "result", "copy", "SUMMARY"]
    page.keyboard.press("Enter")
    card = page.inner_text("#card")
    assert "## Licence\n\nCC0" in card
    assert "onnxruntime-web" in card
    facts = page.inner_text("#facts")
    assert "CC0" in facts
    assert "BLEU of dev" in facts
    assert "en to de" in facts
    assert "MB, loaded in" in page.inner_text("#ready")
    assert page.title() == "English to German"
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    keep(page, "web-narrow")


def test_text_is_never_markup(browser: Any, tmp_path: Path) -> None:
    markup = '<img src="x" onerror="document.title = 1"><b>bold</b>'
    folder = web_export(small_run(), tmp_path / "web", licence=markup)
    with static_server(folder) as server:
        page = open_page(browser, server.url)
        translated(page, markup)
        assert page.locator("main img, main b").count() == 0
        assert markup in page.inner_text("#facts")


def test_space_and_signs_stay_as_they_are(browser: Any, server: StaticServer) -> None:
    page = open_page(browser, server.url + PLACE)
    assert translated(page, " 12 + 3\n\n—") == " 12 + 3\n\n—"
    assert page.inner_text("#time") == "no words to translate"
    found = translated(page, "\n  Click it.   Close it.\n\n")
    assert found.startswith("\n  ")
    assert found.endswith("\n\n")
    page.fill("#source", "  ")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#result:empty", state="attached")
    assert page.is_disabled("#copy")


def test_a_newer_text_ends_the_translation_of_an_older_one(
    browser: Any, server: StaticServer
) -> None:
    page = open_page(browser, server.url + PLACE)
    page.fill("#source", "\n".join(real_lines("test", "en") * 4))
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#time:has-text('3 of ')")
    found = translated(page, "Click the button.")
    page.wait_for_timeout(500)
    assert found == greedy(small_run(), ["Click the button."])[0]
    assert page.evaluate("document.getElementById('result').textContent") == found


@pytest.mark.parametrize("name", ["decoder.onnx", "worker.js", "web.json", "README.md"])
def test_a_file_that_is_missing_or_cut_short_is_one_line(
    browser: Any, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "web"
    folder.mkdir()
    for file in small_web_export().iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    content = (folder / name).read_bytes()
    with static_server(folder) as server:
        (folder / name).unlink()
        page = browser.new_page()
        page.goto(server.url)
        page.wait_for_selector("#error:visible")
        said = page.inner_text("#error")
        assert name in said or "a file of this folder is missing" in said
        if name == "decoder.onnx":
            (folder / name).write_bytes(content[:-100])
            page.goto(server.url)
            page.wait_for_selector("#error:visible")
            assert page.inner_text("#error") == "decoder.onnx broke off. Load the page again."
            assert page.is_disabled("#translate")


@pytest.mark.parametrize("tags", [(), ("<de>", "<fr>")])
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_pieces_are_those_of_sentencepiece(
    browser: Any, tmp_path: Path, kind: str, tags: tuple[str, ...]
) -> None:
    words = count_words([*real_lines("train", "en")[:3000], *real_lines("train", "de")[:3000]])
    config = SubwordConfig.model_validate({"kind": kind, "vocab_size": 2000})
    content = train_on_words(words, config, tags=tags)
    subword = Subword(sentencepiece.SentencePieceProcessor(model_proto=content))
    lines = [*UNTIDY, *real_lines("train", "de")[3000:4000], *real_lines("test", "en")]
    rng = random.Random(1)
    rows = [[rng.randrange(2000) for _ in range(rng.randrange(12))] for _ in range(500)]
    (tmp_path / "any.model").write_bytes(content)
    for name in ("text.js", "pieces.js"):
        (tmp_path / name).write_bytes((PAGE / name).read_bytes())
    for lowercase in (False, True):
        given = {
            "settings": {
                "lowercase": lowercase,
                "invisible": INVISIBLE,
                "marks": mark_bounds(),
                "spaces": UNICODE_SPACES,
            },
            "lines": lines,
            "rows": rows,
        }
        normalized = [normalize(line, lowercase=lowercase) for line in lines]
        found = in_browser(
            browser,
            tmp_path,
            """async ({ settings, lines, rows }) => {
              const { Normalizer } = await import("./text.js");
              const { Pieces } = await import("./pieces.js");
              const file = await (await fetch("any.model")).arrayBuffer();
              const pieces = new Pieces(new Uint8Array(file));
              const normalizer = new Normalizer(settings);
              const texts = lines.map((line) => normalizer.normalize(line));
              return {
                texts,
                ids: texts.map((text) => pieces.encode(text)),
                decoded: rows.map((row) => pieces.decode(row)),
              };
            }""",
            given,
        )
        assert found["texts"] == normalized
        assert found["ids"] == subword.encode(normalized)
        assert found["decoded"] == subword.decode(rows)


def test_sentences_end_there_as_they_do_here(browser: Any) -> None:
    lines = [*real_lines("train", "de")[:2000], *real_lines("train", "en")[:2000]]
    paragraphs = [" ".join(lines[start : start + 5]) for start in range(0, len(lines), 5)]
    known = [paragraph for paragraph, _ in known_paragraphs().values()]
    mixed = known + [text.replace(" ", "") for text in known] + [text.upper() for text in known]
    texts = PARAGRAPHS + mixed + paragraphs
    found = in_browser(
        browser,
        PAGE,
        """async ({ rules, texts }) => {
          const { Sentences } = await import("./text.js");
          const sentences = new Sentences(rules);
          return texts.map((text) => [...sentences.parts(text)]);
        }""",
        {"rules": RULES, "texts": texts},
    )
    ours = [[[part.text, part.translated] for part in cut(text, "document")] for text in texts]
    assert found == ours


def test_text_of_which_no_letter_is_known_stays_as_it_is(browser: Any, tmp_path: Path) -> None:
    words = count_words([*real_lines("valid", "en"), *real_lines("valid", "de")])
    content = train_on_words(words, SubwordConfig(kind="bpe", vocab_size=1000))
    (tmp_path / "any.model").write_bytes(content)
    for name in ("text.js", "pieces.js", "translator.js"):
        (tmp_path / name).write_bytes((PAGE / name).read_bytes())
    known = known_sentences()
    others = (
        "bg",
        "ru",
        "el",
        "hi",
        "bn",
        "ur",
        "ar",
        "he",
        "hy",
        "am",
        "my",
        "km",
        "bo",
        "zh",
        "ja",
    )
    texts = [sentence for language in others for sentence in known[language]]
    settings = {
        "directions": [{"token": ""}], "lowercase": False, "max_pieces": 100, "sentences": RULES,
        "invisible": INVISIBLE, "marks": mark_bounds(), "spaces": UNICODE_SPACES,
    }  # fmt: skip
    found = in_browser(
        browser,
        tmp_path,
        """async ({ settings, texts }) => {
          const { Pieces } = await import("./pieces.js");
          const { Translator } = await import("./translator.js");
          const file = await (await fetch("any.model")).arrayBuffer();
          const pieces = new Pieces(new Uint8Array(file));
          let searches = 0;
          const run = { encode: () => { searches += 1; throw new Error("searched"); } };
          const translator = new Translator(settings, pieces, pieces, run);
          const found = [];
          for (const text of texts) found.push(await translator.translate(text, 0));
          await translator.translate("Datei \U0001f600", 0).catch(() => {});
          return { found, searches };
        }""",
        {"settings": settings, "texts": [*texts, "\x0c", "\U0001f600 \u2764\ufe0f", "\u200b"]},
    )
    assert found["found"][:-1] == [*texts, "\x0c", "\U0001f600 \u2764\ufe0f"]
    assert found["searches"] == 1


def in_browser(browser: Any, folder: Path, code: str, given: Any) -> Any:
    """The result of a function that runs in a page beside the files of a folder."""
    with static_server(folder) as server:
        page = browser.new_page()
        page.goto(f"{server.url}/text.js")
        found = page.evaluate(code, given)
        page.close()
        return found
