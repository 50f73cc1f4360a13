"""Documents keep every byte but those of their text."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from dragoman.base.errors import ConfigError
from dragoman.inference.documents import TextDocumentFormat, cut_document, format_of_file

SRT = """\ufeff1\r
00:00:01,000 --> 00:00:02,500 X1:40\r
<i>Where are you going</i>\r
so late at night?\r
\r
2\r
00:00:03,000 --> 00:00:04,000\r
{\\an8}- Home.\r
- Me too!\r
\r
...after a blank line\r
"""
VTT = """WEBVTT - of a film
Kind: captions

STYLE
::cue { color: red }

NOTE for the translator

intro
00:01.000 --> 00:02.000 align:start
<v Ann>Bread &amp; <00:01.500>butter.
"""
MARKDOWN = """---
title: Kept
---
# The *first* page

Click the button,
then [open the `file`](https://example.org/a_(b) "kept"). See <https://example.org>.

> Quoted text
> goes on.

* [x] Done \\* and ![a picture](p.png)
  of a _house_ with snake_case_name

| Name | Size |
|------|-----:|
| File | 3    |

```python
print("kept")
```

    kept, too

Heading
=======

[ref]: https://example.org "kept"
"""


def upper(text: str, document_format: TextDocumentFormat) -> str:
    """The document with every text in capitals."""
    document = cut_document(text, document_format)
    return document.put_together(one.upper() for one in document.texts()).decode()


@pytest.mark.parametrize(
    ("text", "document_format", "kept"),
    [
        (SRT, "srt", ["<i>", "</i>", "{\\an8}", "00:00:01,000 --> 00:00:02,500 X1:40"]),
        (VTT, "vtt", ["Kind: captions", "::cue { color: red }", "NOTE for the translator",
                      "WEBVTT - of a film", "intro", "align:start",
                      "<v Ann>"]),
        (MARKDOWN, "markdown", ["title: Kept", "`file`", 'https://example.org/a_(b) "kept"',
                                "<https://example.org>", "p.png", "[x]", '```python\nprint("kept")',
                                "    kept, too", '[ref]: https://example.org "kept"']),
        ("<p>A\nb.</p>\r\n", "html", []),
    ],
)  # fmt: skip
def test_only_text_changes(text: str, document_format: TextDocumentFormat, kept: list[str]) -> None:
    pieces = cut_document(text, document_format).pieces
    assert "".join(piece.text for piece in pieces) == text
    translated = upper(text, document_format)
    assert translated.upper().split() == text.upper().split()
    for one in kept:
        assert one in translated
        assert all(one not in piece.text for piece in pieces if piece.translated)
    if kept:  # the rest is translated
        left = translated
        for one in kept:
            left = left.replace(one, "")
        assert re.findall("[a-z]{2,}", left) == []


@pytest.mark.parametrize(
    ("text", "document_format", "texts"),
    [
        ("- **Note**: close it.\n", "markdown", ["Note", "close it."]),
        ("*Ann*, who reads, and *Bob*.\n", "markdown", ["Ann", "who reads, and", "Bob"]),
        ("A dog (**large**) – *one* – runs!\n", "markdown",
         ["A dog", "large", "one", "runs!"]),
        ("[Save](x.md): the *file*?! Yes.\n", "markdown", ["Save", "the", "file", "Yes."]),
        ("Is it *so*?\n", "markdown", ["Is it", "so"]),
        ("**Tu viens ?** Oui. Combien ? *Dix* !\n", "markdown",
         ["Tu viens ?", "Oui. Combien ?", "Dix"]),
        ("1\n00:01,000 --> 00:02,000\n- Tu viens ?\n- <i>Oui !</i>\n", "srt",
         ["Tu viens ?", "Oui !"]),
        ("Set $HOME or $PATH now. It costs 5 US$ or 6 US$.\n", "markdown",
         ["Set $HOME or $PATH now. It costs 5 US$ or 6 US$."]),
        ("Here $a^2 + b$ and $x$.\n\n$$\nE = mc^2\n$$\n\n> [!NOTE]\n> Text\n", "markdown",
         ["Here", "and", "Text"]),
        ("1\r00:01,000 --> 00:02,000\rOne.\r\r2\r00:03,000 --> 00:04,000\rTwo.\r", "srt",
         ["One.", "Two."]),
        ("A note[^1].\n\n[^1]: It is small.\n", "markdown", ["A note", "It is small."]),
        ("Use ``x` now.\n\nA \\``y` dog, `` ` `` z.\n", "markdown",
         ["Use ``x` now.", "A", "dog,", "z."]),
        ("| A | B |\n|---|---|\n| one \\| two | three |\n", "markdown",
         ["A", "B", "one", "two", "three"]),
        ("Term {#id}\n: What it is, $x = y$ and 5 $ more.\n\n:::note\nText\n:::\n", "markdown",
         ["Term", "What it is,", "and 5 $ more.", "Text"]),
        ("1\n00:01,000 --> 00:02,000\nOne.\n2\n00:03,000 --> 00:04,000\nTwo.\n", "srt",
         ["One.", "Two."]),
        ("WEBVTT\n\n00:01.000 --> 00:02.000\nOne.\n00:03.000 --> 00:04.000\nTwo.\n", "vtt",
         ["One.", "Two."]),
        ("1\n00:01,000 --> 00:02,000\n42\nis a number --> here.\n", "srt",
         ["42 is a number --> here."]),
    ],
)  # fmt: skip
def test_marks_times_and_what_stands_alone_beside_them_are_no_text(
    text: str, document_format: TextDocumentFormat, texts: list[str]
) -> None:
    document = cut_document(text, document_format)
    assert document.texts() == texts
    assert document.put_together(iter(texts)).decode().split() == text.split()


def test_a_sentence_over_several_lines_is_one_text() -> None:
    assert cut_document(SRT, "srt").texts() == [
        "Where are you going",
        "so late at night?",
        "Home.",
        "Me too!",
        "...after a blank line",
    ]
    cue = "1\n00:01 --> 00:02\nWhere are you going\nso late at night?\n"
    document = cut_document(cue, "srt")
    assert document.texts() == ["Where are you going so late at night?"]
    found = document.put_together(iter(["Wohin gehst du denn so spät in der Nacht?"]))
    assert found.decode().split("\n")[2:] == ["Wohin gehst du denn", "so spät in der Nacht?", ""]
    chinese = "1\n00:01 --> 00:02\n你要去哪里\n回家\n"  # the line end is the only mark
    assert cut_document(chinese, "srt").texts() == ["你要去哪里 回家"]
    thai = "ไฟล์นี้เสียหาย\nโปรดลองอีกครั้ง\n"
    assert cut_document(thai, "markdown").texts() == ["ไฟล์นี้เสียหาย โปรดลองอีกครั้ง"]
    mixed = "在 Linux\n下打开\n安装文件\n"
    assert cut_document(mixed, "markdown").texts() == ["在 Linux 下打开安装文件"]
    texts = cut_document(MARKDOWN, "markdown").texts()
    assert texts[:5] == ["The", "first", "page", "Click the button, then", "open the"]
    assert texts[-3:] == ["File", "3", "Heading"]


def test_the_ending_of_the_name_tells_the_format_or_why_there_is_none() -> None:
    names = ["a.HTML", "b.md", "c.srt", "d.vtt", "e.txt", "f"]
    found = [format_of_file(Path(name)) for name in names]
    assert found == ["html", "markdown", "srt", "vtt", None, None]
    for name, remedy in (
        ("a.odt", "HTML"),
        ("b.pdf", "HTML"),
        ("c.xlf", "xliff2po"),
        ("d.ass", "text_format"),
        ("e.JSON", "text_format"),
    ):
        with pytest.raises(ConfigError, match=f"(?s){name}.*not translated here.*{remedy}"):
            format_of_file(Path(name))


@pytest.mark.parametrize("document_format", ["markdown", "srt", "vtt"])
@pytest.mark.parametrize(
    "part",
    [
        "`",
        "[",
        "](",
        "*",
        "_",
        "<",
        "{\\",
        "\n\n",
        "\r",
        "> ",
        "- ",
        "|",
        "` `` ",
        "](a ",
        "  ",
        "$",
        " $a",
        "{#",
        ":::",
        "\n: ",
        "* ",
        " *!",
        "1 --> 2\n",
        f"x{' ' * 30_000}*x*",
        f"a{'_' * 100_000}a",
        f"{'`' * 50_000}a{'`' * 49_000}",
        " ".join("`" * length for length in range(1, 240)),
        "$a_",
        "a  $_",
    ],
)
def test_hostile_documents_take_linear_time(part: str, document_format: TextDocumentFormat) -> None:
    text = part * max(1, 30_000 // len(part))
    started = time.process_time()
    pieces = cut_document(text, document_format).pieces
    assert time.process_time() - started < 2
    assert "".join(piece.text for piece in pieces) == text
