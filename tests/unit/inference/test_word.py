"""A document of Word keeps all but its text."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import docx
import pytest
from docx.oxml import OxmlElement, parse_xml
from docx.oxml.ns import nsdecls, qn

from dragoman.base.errors import ConfigError
from dragoman.inference.documents import format_of_file, read_document


def file_of(document: docx.document.Document) -> bytes:
    file = io.BytesIO()
    document.save(file)
    return file.getvalue()


def example() -> bytes:
    document = docx.Document()
    document.add_heading("a heading", level=1)
    paragraph = document.add_paragraph("click ")
    paragraph.add_run("the button").bold = True
    paragraph.add_run(". it is ")
    paragraph.add_run("green.")  # Word splits a text of one format where it likes
    paragraph._p.insert(3, OxmlElement("w:proofErr"))
    document.add_paragraph("one\ttwo\nthree", style="List Bullet")
    table = document.add_table(rows=1, cols=2)
    table.cell(0, 0).text = "in a cell"
    inner = table.cell(0, 1).add_table(rows=1, cols=1)
    inner.cell(0, 0).text = "deeper"
    document.sections[0].header.paragraphs[0].text = "at the top"
    link = parse_xml(f"<w:hyperlink {nsdecls('w')}><w:r><w:t>a link</w:t></w:r></w:hyperlink>")
    last = document.add_paragraph("see ")
    last._p.append(link)
    last.add_run(" 12 ...")
    return file_of(document)


def upper(content: bytes) -> bytes:
    document = read_document(content, "word", place="a.docx")
    return document.put_together(one.upper() for one in document.texts())


def test_texts_of_one_format_are_one_text() -> None:
    assert read_document(example(), "word", place="a.docx").texts() == [
        "a heading", "click ", "the button", ". it is green.", "one", "two", "three", "in a cell",
        "deeper", "see ", "a link", " 12 ...", "at the top",
    ]  # fmt: skip


def test_every_word_and_format_comes_back() -> None:
    found = docx.Document(io.BytesIO(upper(example())))
    texts = [paragraph.text for paragraph in found.paragraphs]
    assert texts == [
        "A HEADING",
        "CLICK THE BUTTON. IT IS GREEN.",
        "ONE\tTWO\nTHREE",
        "SEE A LINK 12 ...",
    ]
    assert [run.text for run in found.paragraphs[1].runs if run.bold] == ["THE BUTTON"]
    styles = [paragraph.style.name for paragraph in found.paragraphs if paragraph.style]
    assert styles == ["Heading 1", "Normal", "List Bullet", "Normal"]
    table = found.tables[0]
    assert table.cell(0, 0).text == "IN A CELL"
    assert table.cell(0, 1).tables[0].cell(0, 0).text == "DEEPER"
    assert found.sections[0].header.paragraphs[0].text == "AT THE TOP"
    assert len(found.paragraphs[3].hyperlinks) == 1


def test_only_text_differs_in_the_package() -> None:
    before, after = (zipfile.ZipFile(io.BytesIO(one)) for one in (example(), upper(example())))
    assert sorted(before.namelist()) == sorted(after.namelist())
    for name in before.namelist():
        if not name.endswith(".xml"):
            assert before.read(name) == after.read(name)
            continue
        shapes = []
        for package in (before, after):
            root = ElementTree.fromstring(package.read(name))
            texts = "".join(root.itertext())
            for element in root.iter(qn("w:t")):
                element.text = ""
                element.attrib.clear()
            shapes.append((ElementTree.tostring(root), texts.upper()))
        assert shapes[0] == shapes[1], name


def test_characters_that_xml_does_not_allow_are_shown() -> None:
    document = read_document(example(), "word", place="a.docx")
    content = document.put_together(f"\x00\x1b{one}" for one in document.texts())
    found = docx.Document(io.BytesIO(content))
    assert found.paragraphs[0].text == "\ufffd\ufffda heading"


def test_a_text_box_and_a_new_text_are_translated_and_a_deleted_one_is_not() -> None:
    document = docx.Document()
    word = nsdecls("w")
    body = document.add_paragraph("outside")._p
    body.append(
        parse_xml(
            f"<w:r {word}><w:pict><w:txbxContent><w:p><w:r><w:t>inside</w:t></w:r></w:p>"
            "</w:txbxContent></w:pict></w:r>"
        )
    )
    body.append(parse_xml(f"<w:del {word}><w:r><w:delText>gone</w:delText></w:r></w:del>"))
    other = document.add_paragraph("a ")._p
    other.append(parse_xml(f"<w:ins {word}><w:r><w:t>new text</w:t></w:r></w:ins>"))
    texts = read_document(file_of(document), "word", place="a.docx").texts()
    assert texts == ["outside", "inside", "a new text"]


def test_an_entity_does_not_open_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    content = with_part(
        "word/document.xml",
        lambda xml: xml.replace(
            b"<w:document", f'<!DOCTYPE a [<!ENTITY e SYSTEM "{tmp_path}/secret">]><w:document'
            .encode(), 1,
        ).replace(b"a heading", b"a &e; heading"),
    )  # fmt: skip
    texts = read_document(content, "word", place="a.docx").texts()
    assert "click " in texts
    assert not any("secret" in text for text in texts)


def bomb() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as package:
        package.writestr("word/document.xml", b" " * (80 << 20))
    return file.getvalue()


def with_part(name: str, change: Callable[[bytes], bytes]) -> bytes:
    """The example with one of its parts changed."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(example())) as old, zipfile.ZipFile(file, "w") as new:
        for one in old.namelist():
            content = old.read(one)
            new.writestr(one, change(content) if one == name else content)
    return file.getvalue()


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not a document"),
        (b"PK\x03\x04 not a package", "not a document"),
        (example()[:-200], "not a document"),
        (with_part("word/document.xml", half), "not a document"),
        (with_part("[Content_Types].xml", half), "not a document"),
        (bomb(), "250 times"),
    ],
)
def test_a_damaged_document_is_an_error_of_one_line(content: bytes, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as error:
        read_document(content, "word", place="a.docx")
    assert re.match("a.docx: [^\n]*$", str(error.value))


def test_the_ending_of_a_name_tells_the_format() -> None:
    names = ("a.docx", "B.DOCX", "c.po", "d.pot", "e.txt")
    found = [format_of_file(Path(name)) for name in names]
    assert found == ["word", "word", "gettext", "gettext", None]
