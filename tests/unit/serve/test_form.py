"""Forms as clients of LibreTranslate send them, and as nobody should."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from dragoman.serve.bodies import fields_of

CURL = (
    b'--------d7\r\nContent-Disposition: form-data; name="q"\r\n\r\nZwei\r\n\r\nM\xc3\xa4nner\n\r\n'
    b'--------d7\r\nContent-Disposition: form-data; x="n.txt"; name="target"\r\n'
    b"Content-Type: text/plain\r\n\r\nde\r\n--------d7--\r\n"
)
FORM = "application/x-www-form-urlencoded"
PARTS = "multipart/form-data; boundary=x"


def read(body: bytes, content_type: str) -> dict[str, Any]:
    return asyncio.run(fields_of(body, content_type))


@pytest.mark.parametrize(
    "content_type",
    [
        "multipart/form-data; boundary=------d7",
        'Multipart/Form-Data;charset=UTF-8; boundary="------d7"',
    ],
)
def test_a_multipart_form_has_its_fields(content_type: str) -> None:
    assert read(CURL, content_type) == {"q": "Zwei\r\n\r\nMänner\n", "target": "de"}


def test_a_malformed_form_is_refused_without_a_word_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for body in (b"--|x\r\n", b"x-|", b"--x|", b"-|x"):
        with pytest.raises(ValueError, match="Invalid multipart data"):
            read(body, PARTS)
    assert not caplog.records


def test_a_body_is_read_by_its_content_type() -> None:
    assert read(b' {"q": ["a"]}', "application/json; charset=utf-8") == {"q": ["a"]}
    assert read(b"q=a+b&target=de&source=", FORM) == {"q": "a b", "target": "de", "source": ""}
    assert read(b"", "application/json") == read(b"", FORM) == read(b"", PARTS) == {}
    for other in ("", "text/plain", "text/json", "application/octet-stream"):
        assert read(b'{"q": "a"}', other) == read(b"q=a", other) == {}


def test_a_field_that_is_there_twice_is_refused() -> None:
    part = b'--x\r\nContent-Disposition: form-data; name="q"\r\n\r\na\r\n'
    for body, kind in ((b"q=a&target=de&q=a", FORM), (part * 2 + b"--x--\r\n", PARTS)):
        with pytest.raises(ValueError, match="given more than once"):
            read(body, kind)


def test_a_long_body_is_read_like_a_short_one() -> None:
    long = "Männer " * 20_000
    part = f'--x\r\nContent-Disposition: form-data; name="q"\r\n\r\n{long}\r\n--x--\r\n'
    assert read(part.encode(), PARTS) == {"q": long}
    assert read(f"q={long}".encode(), FORM) == {"q": long}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--x",
        b"--x--",
        b"--x\r\n\r\n",
        b'--x\r\nContent-Disposition: form-data; name="',
        b'--xContent-Disposition: form-data; filename="q"\r\n\r\nfile',
        b'--x\r\nContent-Disposition: form-data; name="q"; filename="f"\r\n\r\na\r\n--x--',
        b"\x00\xff" * 1000,
        b"--x" * 300_000,
        b'--x\r\nContent-Disposition: form-data; name="q"' + b"; name=" * 100_000,
        b"--x" + b"\r\ncontent-disposition:" * 40_000,
    ],
    ids=range(11),
)
def test_malformed_forms_have_no_fields(body: bytes) -> None:
    with suppress(ValueError):
        assert read(body, PARTS) == {}


@pytest.mark.parametrize("kind", ["application/json", FORM, PARTS])
def test_no_more_than_64_fields_are_read(kind: str) -> None:
    def body(count: int) -> bytes:
        if kind == PARTS:
            head = b'--x\r\nContent-Disposition: form-data; name="%d"\r\n\r\n1\r\n'
            return b"".join(head % n for n in range(count)) + b"--x--\r\n"
        if kind == FORM:
            return b"&".join(b"%d=1" % n for n in range(count))
        return b"{" + b",".join(b'"%d":1' % n for n in range(count)) + b"}"

    assert len(read(body(64), kind)) == 64
    with pytest.raises(ValueError, match=r"64|number of fields"):
        read(body(65), kind)


def test_character_sets_that_take_minutes_are_refused() -> None:
    with pytest.raises(ValueError, match="UTF-8"):
        read(b"--x--", f"{PARTS}; charset=punycode")


@pytest.mark.parametrize("kind", [PARTS, "application/json"])
def test_a_content_type_without_end_is_not_read(kind: str) -> None:
    """Its parameters are read on the thread of all clients, and some parsers take a minute."""
    with pytest.raises(ValueError, match="content type is too long"):
        read(b"{}", f'{kind}; a="' + ";" * 60_000)


def test_a_header_of_a_part_without_end_is_refused_at_once() -> None:
    head = b'--x\r\nContent-Disposition: form-data; name="' + b";" * 900_000
    for body in (head + b'"\r\n\r\na\r\n--x--', b"--x\r\n" + b"A: b\r\n" * 100_000 + b"\r\n"):
        with pytest.raises(ValueError, match="Invalid multipart data"):
            read(body, PARTS)
