"""Where a document in markup may be cut into lines."""

from __future__ import annotations

import pytest

from dragoman.serve.text import cut, paragraphs

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
        ("Two dogs&nbsp;<b>run</b>&#160; fast.", ["Two dogs", "run", "fast."]),
        ("<li> &nbsp;&#xA0;One&nbsp;dog.&nbsp;</li>", ["One&nbsp;dog."]),
        ("&nbsp;" * 3, []),
        (" One. &nbsp; ", ["One."]),
    ],
)
def test_space_beside_a_tag_stays_however_it_is_spelt(text: str, translated: list[str]) -> None:
    parts = cut(text, "markup")
    assert "".join(part.text for part in parts) == text
    assert [part.text for part in parts if part.translated] == translated
