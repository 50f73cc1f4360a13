"""Where a document in markup may be cut into lines."""

from __future__ import annotations

import pytest

from dragoman.inference.tags import OPENING
from dragoman.inference.text import cut, paragraphs

PAGE = """<p
 class="x">One.</p>
<!-- kept
  as it is -->
<script>
var x = "one";
</script>

1 < 2 &amp; 3
"""


def test_a_line_does_not_end_within_a_tag_a_comment_or_a_script() -> None:
    assert paragraphs(PAGE, "markup") == [
        '<p\n class="x">One.</p>',
        "<!-- kept\n  as it is -->",
        '<script>\nvar x = "one";\n</script>',
        "",
        "1 < 2 &amp; 3",
        "",
    ]
    assert paragraphs(PAGE, "document") == PAGE.split("\n")


@pytest.mark.parametrize("text", ["", "\n", "\n\n", PAGE, "<p\n", "<!--\n<b>\n", "a\n<b\n>\nc"])
def test_lines_and_the_whole_text_have_the_same_translated_parts(text: str) -> None:
    lines = paragraphs(text, "markup")
    assert "\n".join(lines) == text
    whole = [part.text for part in cut(text, "markup") if part.translated]
    parts = [part.text for line in lines for part in cut(line, "markup") if part.translated]
    assert parts == whole


@pytest.mark.parametrize("text", ["&nbsp;", "&copy; 2026", "&mdash;", "&#160;", "&nbsp;&nbsp;1"])
def test_characters_that_are_written_with_letters_are_no_words(text: str) -> None:
    """Text that normalises to nothing would be lost, and a sign translated as if it were a word."""
    assert [part.text for part in cut(f"<td>{text}</td>", "markup") if part.translated] == []
    assert "".join(part.text for part in cut(f"<td>{text}</td>", "markup")) == f"<td>{text}</td>"
    (word,) = [part for part in cut("<td>&Auml;</td>", "markup") if part.translated]
    assert word.source() == "Ä"


@pytest.mark.parametrize(
    "tag",
    [
        '<a title="a > b">',
        "<img alt='x < y' src=z/>",
        '<a\nhref = "?a>b"\n>',
        "<a title=it's>",
        '<a title="not closed>',
        f'<a href="{"x" * 5000}">',
        "<![CDATA[ if (a > b) <i> ]]>",
    ],
)
def test_a_tag_ends_after_its_values_and_a_section_where_it_says_so(tag: str) -> None:
    assert [(part.text, part.translated) for part in cut(f"{tag}Open it.", "markup")] == [
        (tag, False),
        ("Open it.", True),
    ]
    assert paragraphs(f"{tag}\nOne", "markup") == [tag, "One"]


@pytest.mark.parametrize(
    ("text", "translated"),
    [
        ("Two dogs&nbsp;<b>run</b>&#160; fast.", ["Two dogs&nbsp;<b>run</b>&#160; fast."]),
        ("<li> &nbsp;&#xA0;One&nbsp;dog.&nbsp;</li>", ["One&nbsp;dog."]),
        ("&nbsp;" * 3, []),
        (" One. &nbsp; ", ["One."]),
    ],
)
def test_space_beside_a_tag_stays_however_it_is_spelt(text: str, translated: list[str]) -> None:
    parts = cut(text, "markup")
    assert "".join(part.text for part in parts) == text
    assert [part.text for part in parts if part.translated] == translated


def kept_and_translated(text: str) -> tuple[list[str], list[str]]:
    """Parts with words that are kept, and those that are translated."""
    parts = cut(text, "markup")
    assert "".join(part.text for part in parts) == text
    lines = paragraphs(text, "markup")
    assert "\n".join(lines) == text
    translated = [part.source() for part in parts if part.translated]
    by_line = [one.source() for line in lines for one in cut(line, "markup") if one.translated]
    assert by_line == translated
    kept = [part.text for part in parts if not part.translated and not part.text.startswith("<")]
    return [text for text in kept if not text.isspace()], translated


@pytest.mark.parametrize(
    ("text", "translated"),
    [
        ("<p>Open the file and\nclick the button.\nThen wait.</p>",
         ["Open the file and\nclick the button.", "Then wait."]),
        ("फ़ाइल खोलें और\nबटन दबाएँ।\nफिर रुकें।", ["फ़ाइल खोलें और\nबटन दबाएँ।", "फिर रुकें।"]),
        ("<pre>Open the file\nand click</pre>", ["Open the file", "and click"]),
        ("<div><TEXTAREA rows=2>One\n<b>two\nthree</b></TEXTAREA>four\nfive</div>",
         ["One", "two", "three", "four\nfive"]),
        ("He said &quot;Stop.&quot; Then&nbsp;he left.&#160;Why? &rdquo;", ['He said "Stop."',
         "Then\xa0he left.", "Why?"]),
        ("यह सच है&#2404; वह आया&#x964;", ["यह सच है।", "वह आया।"]),
    ],
)  # fmt: skip
def test_a_line_end_inside_running_text_is_a_space(text: str, translated: list[str]) -> None:
    assert kept_and_translated(text)[1] == translated


@pytest.mark.parametrize(
    ("text", "kept", "translated"),
    [
        ('A <span translate="no">:smile:</span> here', [":smile:"], ["A", "here"]),
        ("<p TRANSLATE=no>Blue <b>Sky</b>\nLtd</p> sells", ["Blue ", "Sky", "\nLtd"], ["sells"]),
        ("<i class='x notranslate'>Word</i> is", ["Word"], ["is"]),
        ('<i class="notranslated">Word</i>', [], ["Word"]),
        ("Run <code>make\n<b>test</b></code> and <kbd>Ctrl</kbd>, see <samp>ok</samp> <var>x</var>",
         ["make\n", "test", "Ctrl", "ok", "x"], ["Run", "and", ", see"]),
        ('<div translate="no">Name <em translate="yes">means\nthis</em> end</div> out',
         ["Name ", " end"], ["means\nthis", "out"]),
        ('<code translate="yes">in words</code>', [], ["in words"]),
        ("<ul><li class=notranslate>One<li>two</ul><p>three", ["One"], ["two", "three"]),
        ("<div><b class=notranslate>One</div>two", ["One"], ["two"]),
        ('<br translate="no">One <img class=notranslate> two', [], [f"One {OPENING[0]} two"]),
        ('<p data-translate="no" title="translate=no">One</p>', [], ["One"]),
        ("</code>One", [], ["One"]),
        ("<code/>One", [], ["One"]),
    ],
)  # fmt: skip
def test_what_an_element_says_is_not_translated_stays(
    text: str, kept: list[str], translated: list[str]
) -> None:
    assert kept_and_translated(text) == (kept, translated)


@pytest.mark.parametrize("empty", ["<br>", "<kbd> </kbd>", "<hr>"])
@pytest.mark.parametrize("space", [" ", "\n", "&nbsp;", ""])
def test_text_around_an_empty_element_keeps_its_space(empty: str, space: str) -> None:
    parts = cut(f"One{space}{empty}{space}two", "markup")
    written = "".join(part.written("X") if part.translated else part.text for part in parts)
    assert written == f"X{space}{empty}{space}X"


@pytest.mark.system
@pytest.mark.parametrize("run", ["<b>", "<code>", "</b><i>", "<p>", "<a class=", "&amp;", "a\n"])
def test_elements_that_never_end_take_linear_time(run: str) -> None:
    text = run * (300_000 // len(run))
    assert "\n".join(paragraphs(text, "markup")) == text
