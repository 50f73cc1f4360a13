"""A catalogue of gettext keeps all but the messages that nobody has translated."""

from __future__ import annotations

import gettext
import io
import shutil
import subprocess
from pathlib import Path

import polib
import pytest

from dragoman.base.errors import ConfigError
from dragoman.inference.documents import read_document

HEADER = r"""# Notes of the translator.
msgid ""
msgstr ""
"Project-Id-Version: files 1\n"
"MIME-Version: 1.0\n"
"Content-Type: text/plain; charset=CHARSET\n"
"Content-Transfer-Encoding: 8bit\n"
"Plural-Forms: nplurals=2; plural=n != 1;\n"
"""
MESSAGES = r"""
#. for the button
#: main.c:10
msgctxt "menu"
msgid "open the file"
msgstr ""

#: main.c:12
#, c-format
msgid ""
"the file %s has\n"
"%d lines. it is full.\n"
msgstr ""

#, fuzzy
#| msgid "close it"
msgid "close them"
msgstr "schließ sie"

msgid "a file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""

msgid "done"
msgstr "fertig"

msgid "..."
msgstr ""

#~ msgid "old"
#~ msgstr ""
"""


def translated(text: str) -> polib.POFile:
    """The catalogue with every text in capitals; %s becomes %S, which is not the placeholder."""
    document = read_document(text.encode(), "gettext", place="a.po")
    content = document.put_together(
        one.upper().replace("%D", "%d") for one in document.texts()
    ).decode()
    return polib.pofile(f"\n{content}")


def test_only_new_messages_are_translated() -> None:
    found = translated(HEADER + MESSAGES)
    assert [(one.msgid, one.msgstr) for one in found] == [
        ("open the file", "OPEN THE FILE"),
        ("the file %s has\n%d lines. it is full.\n", ""),
        ("close them", "schließ sie"),
        ("a file", ""),
        ("done", "fertig"),
        ("...", "..."),
        ("old", ""),
    ]
    first, _, fuzzy, plural, *_, old = found
    assert (first.msgctxt, first.comment, first.occurrences) == (
        "menu", "for the button", [("main.c", "10")],
    )  # fmt: skip
    assert (fuzzy.fuzzy, fuzzy.previous_msgid, old.obsolete) == (True, "close it", True)
    assert plural.msgstr_plural == {0: "", 1: ""}
    assert found.header == "Notes of the translator."
    assert found.metadata["Plural-Forms"] == "nplurals=2; plural=n != 1;"
    assert found.metadata["Content-Type"] == "text/plain; charset=UTF-8"


def test_a_remark_counts_what_stays() -> None:
    document = read_document((HEADER + MESSAGES).encode(), "gettext", place="a.po")
    document.put_together(one.upper() for one in document.texts())
    remark = document.remark()
    for words in ("1 fuzzy", "1 with a plural", "1 translated already", "1 obsolete", "1 whose"):
        assert words in remark


@pytest.mark.parametrize(
    ("message", "translation", "taken"),
    [
        ("%s of %s", "%s von %s", True),
        ("%s of %s", "%s von", False),
        ("%(name)s has {count}", "{count} hat %(name)s", True),
        ("%(name)s has {count}", "(name) hat {count}", False),
        ("100% of <b>it</b>", "100 % von <b>ihm</b>", True),
        ("see <b>it</b>", "sieh <b>es", False),
        ("%%", "%", False),
        ("cost: %5.2f", "Preis: %5.2f", True),
        ("to $HOME", "nach $HOME", True),
    ],
)
def test_a_translation_has_the_placeholders_of_its_message(
    message: str, translation: str, taken: bool
) -> None:
    text = f'{HEADER}\nmsgid "{message}"\nmsgstr ""\n'
    document = read_document(text.encode(), "gettext", place="a.po")
    assert document.texts() == [message]
    (entry,) = polib.pofile(f"\n{document.put_together(iter([translation])).decode()}")
    assert entry.msgstr == (translation if taken else "")


@pytest.mark.skipif(shutil.which("msgfmt") is None, reason="msgfmt of gettext is not installed")
def test_gettext_reads_what_is_written(tmp_path: Path) -> None:
    text = HEADER + '\nmsgid "open \\"it\\""\nmsgstr ""\n\nmsgid "tab\\tand\\n"\nmsgstr ""\n'
    document = read_document(text.encode(), "gettext", place="a.po")
    written = document.put_together(f"ÄÖ {one}" for one in document.texts())
    (tmp_path / "a.po").write_bytes(written)
    subprocess.run(
        ["msgfmt", "--check", "a.po", "-o", "a.mo"], cwd=tmp_path, check=True, capture_output=True
    )
    found = gettext.GNUTranslations(io.BytesIO((tmp_path / "a.mo").read_bytes()))
    assert found.gettext('open "it"') == 'ÄÖ open "it"'
    assert found.gettext("tab\tand\n") == "ÄÖ tab\tand\n"


@pytest.mark.parametrize(
    "text",
    [
        'msgid "a"\nmsgid "b"\n',
        "not a catalogue\n",
        '\nmsgid "a"\nmsgstr[x] ""\n',
    ],
)
def test_a_damaged_catalogue_is_an_error_of_one_line(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_document(text.encode(), "gettext", place="a.po")
    assert str(error.value).startswith("a.po")
    assert "\n" not in str(error.value)


def test_a_text_that_is_the_name_of_a_file_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "secret.po").write_text('msgid "secret"\nmsgstr ""\n')
    with pytest.raises(ConfigError):
        read_document(str(tmp_path / "secret.po").encode(), "gettext", place="a.po")
