"""The page in a real browser: by keyboard alone, on a narrow screen, with the server gone."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.formats.card import card_html
from served import FAR_NAME, Server, served_bundle, serving

SCREENSHOTS = os.environ.get("DRAGOMAN_SCREENSHOTS")
"""A folder to keep pictures in, for eyes."""


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(served_bundle()) as server:
        yield server


def keep(page: Any, name: str) -> None:
    if SCREENSHOTS:
        page.screenshot(path=f"{SCREENSHOTS}/{name}.png", full_page=True)


@pytest.mark.smoke
def test_people_translate_with_the_keyboard_alone(browser: Any, server: Server) -> None:
    page = browser.new_page(viewport={"width": 1100, "height": 800})
    asked: list[str] = []
    problems: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(server.url)
    page.wait_for_selector("#from option", state="attached")
    page.keyboard.type("A man in a red shirt.\nTwo dogs.")  # the field has the focus
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#time:text-matches('s$')")
    assert page.inner_text("#result").count("\n") == 1
    assert page.locator("#alternatives li").count() >= 1
    focused = []
    for _ in range(5):
        page.keyboard.press("Tab")
        focused.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert focused == ["BUTTON", "open", "result", "copy", "BUTTON"]  # the last: an alternative
    while page.evaluate("document.activeElement.tagName") != "SUMMARY":
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert "Licence" in page.locator("#card h2").all_text_contents()
    assert page.locator("#card pre code").count() >= 1
    card = page.inner_text("#card")
    assert "```" not in card
    assert "# " not in card.splitlines()[0]
    keep(page, "page-wide")
    assert all(url.startswith((server.url, "data:")) for url in asked), asked
    assert not problems


@pytest.mark.parametrize("host", ["127.0.0.1", FAR_NAME])
def test_copy_tells_whether_the_text_is_copied_or_selected(browser: Any, host: str) -> None:
    """Over plain http from anywhere but loopback, browsers give a page no clipboard."""
    token = "a-token-of-some-length"
    with serving(served_bundle(), token=token) as server:
        page = browser.new_page(http_credentials={"username": "any", "password": token})
        page.goto(f"http://{host}:{server.port}")
        page.fill("#source", "A man.")
        page.click("button[type=submit]")
        page.wait_for_selector("#time:text-matches('s$')")
        page.click("#copy")
        far = host == FAR_NAME
        page.wait_for_selector(f"#time:has-text('{'selected' if far else 'copied'}')")
        selected = page.evaluate("getSelection().toString()")
        assert selected == (page.inner_text("#result") if far else "")


def test_the_page_fits_400_pixels_and_tells_when_the_server_is_gone(
    browser: Any, server: Server
) -> None:
    page = browser.new_page(viewport={"width": 400, "height": 800}, color_scheme="dark")
    page.goto(server.url)
    page.fill("#source", "A man. " + "x" * 300)
    page.click("button[type=submit]")
    page.wait_for_selector("#time:text-matches('s$')")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    keep(page, "page-narrow")
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    page.click("button[type=submit]")
    page.wait_for_selector("#error:visible")
    assert "does not answer" in page.inner_text("#error")
    keep(page, "page-error")


def answer_with(page: Any, *answers: str) -> None:
    """Have /translate answer so, once each, in place of the server."""
    left = iter(answers)
    page.route("**/translate", lambda route: route.fulfill(status=200, body=next(left)))


def test_an_empty_text_clears_the_earlier_result(browser: Any, server: Server) -> None:
    page = browser.new_page()
    page.goto(server.url)
    page.fill("#source", "A man.")
    page.click("button[type=submit]")
    page.wait_for_selector("#time:text-matches('s$')")
    held: list[Any] = []
    page.route("**/translate", lambda route: held.append(route))
    page.click("button[type=submit]")
    page.wait_for_selector("#result.waiting")
    page.fill("#source", "  ")
    page.click("button[type=submit]")
    assert page.locator("#result.waiting").count() == 0
    assert page.inner_text("#result") == page.inner_text("#time") == ""
    assert page.is_disabled("#copy")
    assert page.is_hidden("#others")
    held[0].abort()
    page.wait_for_timeout(200)
    assert page.is_hidden("#error")


def test_texts_are_marked_with_their_language(browser: Any, server: Server) -> None:
    page = browser.new_page()
    page.goto(server.url)
    page.wait_for_selector("#source[lang=en]")
    page.fill("#source", "A man.")
    page.click("button[type=submit]")
    page.wait_for_selector("#time:text-matches('s$')")
    assert page.get_attribute("#result", "lang") == "de"
    assert page.get_attribute("#alternatives", "lang") == "de"


def test_a_text_that_is_in_the_target_language_already_is_named(
    browser: Any, server: Server
) -> None:
    page = browser.new_page()
    page.goto(server.url)
    page.wait_for_selector("#source[lang=en]")
    page.fill("#source", "Ein Mann spielt Gitarre vor einem Haus und singt ein Lied.")
    doubt = page.locator("#doubt")
    doubt.filter(has_text="The text seems to be German already.").wait_for()
    page.fill("#source", "A man plays the guitar in front of a house.")
    page.locator("#doubt:empty").wait_for(state="attached")


def test_no_alternative_is_shown_twice_and_half_an_answer_is_named(
    browser: Any, server: Server
) -> None:
    page = browser.new_page()
    page.goto(server.url)
    found = [{"text": text, "score": -1.0} for text in ("Ein Mann.", "Ein.", "Mann.", "Ein.")]
    best = {**found[0], "alternatives": found, "target": "de"}
    whole = json.dumps({"translations": [best], "seconds": 0.1})
    answer_with(page, whole, whole[:40])
    page.fill("#source", "A man.")
    page.click("button[type=submit]")
    page.wait_for_selector("#time:text-matches('s$')")
    assert page.locator("#alternatives li").all_inner_texts() == ["Ein.", "Mann."]
    page.click("button[type=submit]")
    page.wait_for_selector("#error:visible")
    assert "broke off" in page.inner_text("#error")


def test_names_and_texts_are_shown_as_they_are(browser: Any, server: Server) -> None:
    evil = (
        "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>\x1b[2J"
    )
    page = browser.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    model = {"name": evil, "source": evil, "target": evil, "licence": evil}
    model["card_html"] = card_html(f"{evil}\n\n![picture](https://example.org/track.png)")
    page.route("**/models", lambda route: route.fulfill(status=200, body=json.dumps([model])))
    pair = {"source": evil, "target": evil, "via": None, "models": [evil]}
    languages = json.dumps({"pairs": [pair], "names": {evil: evil}, "detects": True})
    page.route("**/pairs", lambda route: route.fulfill(status=200, body=languages))
    page.goto(server.url)
    page.wait_for_selector("#from option", state="attached")
    others = [{"text": evil + "2", "score": -1.0}]
    best = {"text": evil, "score": -1.0, "alternatives": others, "target": evil}
    answer = {"translations": [best], "seconds": 0.1}
    answer_with(page, json.dumps(answer))
    page.fill("#source", evil)
    page.click("button[type=submit]")
    page.wait_for_selector("#time:text-matches('s$')")
    assert page.locator("#result").text_content() == evil
    shown = page.locator("#card").text_content()
    assert all(part in shown for part in ("<img src=x", "<script>", "!picture"))
    assert page.locator("#from option").text_content() == evil
    assert page.locator("#to option").text_content() == evil
    assert page.locator("#alternatives li").all_text_contents() == [evil + "2"]
    assert page.locator("img").count() == 0
    page.unroute("**/translate")
    page.route("**/translate", lambda route: route.fulfill(status=503, json={"error": evil}))
    page.click("button[type=submit]")
    page.wait_for_selector("#error:visible")
    assert page.locator("#error").text_content() == evil
    assert page.title() == "dragoman"
    assert not [problem for problem in problems if "503" not in problem]


def test_what_is_typed_is_translated_after_a_pause_and_once(browser: Any, server: Server) -> None:
    page = browser.new_page(viewport={"width": 1100, "height": 800})
    asked: list[Any] = []
    page.on(
        "request",
        lambda request: (
            asked.append(request.post_data_json) if request.url.endswith("/translate") else None
        ),
    )
    page.goto(server.url)
    page.wait_for_selector("#to option", state="attached")
    assert page.locator("#from option").all_text_contents() == ["English"]
    assert page.locator("#to option").all_text_contents() == ["German"]
    assert page.is_disabled("#swap")  # no model translates back
    page.keyboard.type("Click the button.")
    page.wait_for_selector("#time:text-matches('s$')")
    assert [one["text"] for one in asked] == ["Click the button."]
    translated = page.inner_text("#result")
    page.keyboard.press("Enter")
    with page.expect_response("**/translate"):
        page.keyboard.type("Open the file.")
    page.wait_for_selector("#result:not(.waiting)")
    assert page.inner_text("#result").split("\n")[0] == translated
    page.fill("#source", "")
    page.wait_for_selector("#copy:disabled")
    assert page.inner_text("#result") == ""


def test_alternatives_of_several_paragraphs_stand_below_each(browser: Any, server: Server) -> None:
    page = browser.new_page(viewport={"width": 1100, "height": 800})
    page.goto(server.url)
    page.wait_for_selector("#to option", state="attached")
    page.fill("#source", "Click the button.\n\nOpen the file.\nClose the window.")
    page.wait_for_selector("#time:text-matches('s$')")
    best = page.inner_text("#result").split("\n")
    named = page.locator("#alternatives p").all_inner_texts()
    assert named == [line for line in best if line]
    assert page.locator("#alternatives ul").count() == 3
    for at, line in enumerate(named):
        others = page.locator("#alternatives ul").nth(at).locator("li").all_inner_texts()
        assert 1 <= len(others) <= 3
        assert line not in others
        assert all("\n" not in other for other in others)
    keep(page, "page-alternatives")
    other = page.locator("#alternatives li").first.inner_text()
    page.locator("#alternatives button").first.click()
    assert page.inner_text("#result").split("\n") == [other, *best[1:]]
    assert page.locator("#alternatives li").first.inner_text() == best[0]
    assert page.locator("#alternatives p").first.inner_text() == other


def test_a_file_is_opened_or_dropped_and_saved(
    browser: Any, server: Server, tmp_path: Path
) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.goto(server.url)
    page.wait_for_selector("#to option", state="attached")
    html = '<p class="a&b">Click the <b>button</b>.</p>\r\n<script>let p = "a";</script>\r\n'
    opened = tmp_path / "help.page.html"
    opened.write_bytes(html.encode())
    with page.expect_file_chooser() as chooser:
        page.click("#open")
    chooser.value.set_files(opened)
    page.wait_for_selector("#save:visible")
    keep(page, "page-file")
    with page.expect_download() as saved:
        page.click("#save")
    assert saved.value.suggested_filename == "help.page.de.html"
    expected = server.ask("/translate", {"text": html, "format": "html"}).json["translations"][0]
    assert Path(saved.value.path()).read_bytes() == expected["text"].encode()
    assert expected["text"].startswith('<p class="a&b">')
    assert expected["text"].endswith('</p>\r\n<script>let p = "a";</script>\r\n')

    def drop(name: str, content: bytes) -> None:
        page.evaluate(
            """([name, bytes]) => {
                const data = new DataTransfer();
                data.items.add(new File([new Uint8Array(bytes)], name));
                const event = { dataTransfer: data, bubbles: true, cancelable: true };
                document.getElementById("source").dispatchEvent(new DragEvent("drop", event));
            }""",
            [name, [*content]],
        )

    times = "1\n00:00:01,000 --> 00:00:02,500\n"
    drop("film.srt", f"{times}Open the file.\n".encode())
    page.wait_for_selector("#hint:has-text('film.srt')")
    page.wait_for_selector("#result:has-text('00:00:01,000')")
    translated = page.locator("#result").text_content()
    assert translated.startswith(times)
    assert translated != f"{times}Open the file.\n"
    drop("notes.txt", b"Open the file.\n")
    page.wait_for_selector("#hint:has-text('notes.txt')")
    page.wait_for_selector("#save:visible")
    page.locator("#result").filter(has_not_text="-->").wait_for()
    page.wait_for_selector("#time:text-matches('s$')")
    assert page.locator("#result").text_content().endswith("\n")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for name, content, problem in (
        ("a.docx", b"PK", "a.docx: open a file that ends in .txt"),
        ("html", b"a", "html: open a file that ends in .txt"),
        ("a.constructor", b"a", "a.constructor: open a file that ends in .txt"),
        ("a.txt", b"\xff\xfe", "a.txt: is not text in UTF-8"),
        ("b.txt", b"a" * 1_000_001, "b.txt: is larger than 1 MB"),
    ):
        drop(name, content)
        page.wait_for_selector(f"#error:has-text('{problem}')")
        assert page.inner_text("#hint") == "notes.txt"  # it is still there
    page.focus("#source")
    page.keyboard.type("A")
    page.wait_for_selector("#save", state="hidden")
    assert page.inner_text("#hint") == ""
    assert not problems
