"""Bodies as clients of LibreTranslate send them, and as nobody should."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from dragoman.serve.app import TranslateRequest
from dragoman.serve.bodies import fields_of, valid

CURL = (
    b'--------d7\r\nContent-Disposition: form-data; name="q"\r\n\r\nZwei\r\n\r\nM\xc3\xa4nner\n\r\n'
    b'--------d7\r\nContent-Disposition: form-data; x="n.txt"; name="target"\r\n'
    b"Content-Type: text/plain\r\n\r\nde\r\n--------d7--\r\n"
)
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
PARTS = "multipart/form-data; boundary=x"


def read(body: bytes, content_type: str, query: bytes = b"") -> dict[str, Any]:
    headers = [(b"content-type", content_type.encode())]
    scope = {
        "type": "http", "method": "POST", "headers": headers, "query_string": query, "app": None
    }  # fmt: skip

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    return asyncio.run(fields_of(Request(scope, receive)))


def part(name: str, value: bytes, file: str = "") -> bytes:
    head = f'--x\r\nContent-Disposition: form-data; name="{name}"'
    head += f'; filename="{file}"' * bool(file)
    return f"{head}\r\n\r\n".encode() + value + b"\r\n"


def test_a_body_is_read_by_its_content_type() -> None:
    assert read(b' {"q": ["a"]}', f"{JSON}; charset=utf-8") == {"q": ["a"]}
    assert read(b"q=a+b&target=de&source=", FORM) == {"q": "a b", "target": "de", "source": ""}
    kind = 'Multipart/Form-Data;charset=UTF-8; boundary="------d7"'
    assert read(CURL, kind) == {"q": "Zwei\r\n\r\nMänner\n", "target": "de"}
    for other in ("", "text/plain", "text/json"):
        assert read(b'{"q": "a"}', other) == read(b"q=a", other) == {}
    assert read(b"", JSON) == read(b"", FORM) == {}
    assert read(b'\xef\xbb\xbf{"q": "a"}', JSON) == {"q": "a"}, "a byte order mark is no text"
    assert read(b"\xef\xbb\xbf", JSON) == {}


def test_the_body_goes_before_the_query_and_the_first_field_of_a_form_before_the_second() -> None:
    assert read(b'{"target": "de"}', JSON, b"q=a&target=fr") == {"q": "a", "target": "de"}
    assert read(b"q=a&q=b", FORM) == {"q": "a"}
    assert read(part("q", b"a") + part("q", b"b") + b"--x--\r\n", PARTS) == {"q": "a"}


def test_a_body_of_another_type_is_read_so_that_its_limits_hold() -> None:
    """2 MB of plain text were 200, and the end of the answer came after the time of a body."""
    headers = [(b"content-type", b"text/plain")]
    scope = {"type": "http", "method": "POST", "headers": headers, "query_string": b"q=a"}

    async def receive() -> Any:
        raise HTTPException(413)

    with pytest.raises(HTTPException):
        asyncio.run(fields_of(Request(scope, receive)))
    assert read(b"words", "text/plain", b"q=a") == {"q": "a"}


def test_a_long_body_is_read_like_a_short_one() -> None:
    long = "Männer " * 20_000
    assert read(part("q", long.encode()) + b"--x--\r\n", PARTS) == {"q": long}
    assert read(f"q={long}".encode(), FORM) == {"q": long}
    file = read(part("file", long.encode(), "a.txt") + b"--x--\r\n", PARTS)["file"]
    assert (file.filename, file.file.read()) == ("a.txt", long.encode())
    assert not file.file._rolled, "it stays in memory"


@pytest.mark.parametrize("kind", [PARTS, JSON, FORM])
def test_no_more_than_64_fields_are_read(kind: str) -> None:
    def body(count: int) -> bytes:
        if kind == PARTS:
            return b"".join(part(str(n), b"1") for n in range(count)) + b"--x--\r\n"
        if kind == FORM:
            return b"&".join(b"%d=1" % n for n in range(count))
        return b"{" + b",".join(b'"%d":1' % n for n in range(count)) + b"}"

    assert len(read(body(64), kind)) == 64
    with pytest.raises(HTTPException):
        read(body(65), kind)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"{", JSON),
        (b"[1]", JSON),
        ('{"q": "a"}'.encode("utf-16"), JSON),
        (b"\xef\xbb\xbf" * 2 + b"{}", JSON),
        (b"[" * 100_000, JSON),
        (b"--x--", f"{PARTS}; charset=punycode"),  # of which Python reads some for minutes
        (b"--|x\r\n", PARTS),
        (b"\x00\xff" * 1000, PARTS),
        (part("a", b"a", "a") + part("b", b"b", "b") + b"--x--\r\n", PARTS),
        (b'--x\r\nContent-Disposition: form-data; name="' + b";" * 900_000, PARTS),
        (b"--x\r\n" + b"A: b\r\n" * 100_000 + b"\r\n", PARTS),
    ],
)
def test_a_malformed_body_is_refused_without_a_word_in_the_log(
    caplog: pytest.LogCaptureFixture, body: bytes, kind: str
) -> None:
    with pytest.raises(HTTPException) as refused:
        read(body, kind)
    assert refused.value.status_code == 400
    assert not caplog.records


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"text": 5}, "text should be a valid string or a valid list"),
        ({"text": ["A", 5, None]}, "text.1 should be a valid string; text.2 should be"),
        ({}, "text is missing"),
        ({"text": "A", "target": 1, "txt": "B"}, "target should be a valid string; txt is not a "
         "field of this request"),
        ({"text": "A", "format": "pdf"}, "format should be 'text', 'html', 'markdown', 'srt' or "
         "'vtt'"),
        ({"text": []}, "text should be a valid string; text: List should have at least 1 item"),
        ({"text": "A", "beam_size": 0}, "beam_size should be greater than or equal to 1"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_of_its_field(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(HTTPException) as refused:
        valid(TranslateRequest, fields, 422)
    assert refused.value.status_code == 422
    assert refused.value.detail.startswith(words)
