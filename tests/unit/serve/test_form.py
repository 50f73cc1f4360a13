"""Forms as clients of LibreTranslate send them, and as nobody should."""

from __future__ import annotations

import pytest

from dragoman.serve.form import fields_of

CURL = (
    b'--------d7\r\nContent-Disposition: form-data; name="q"\r\n\r\nZwei\r\n\r\nM\xc3\xa4nner\n\r\n'
    b'--------d7\r\nContent-Disposition: attachment; filename="n.txt"; name="target"\r\n'
    b"Content-Type: text/plain\r\n\r\nde\r\n--------d7--\r\n"
)


@pytest.mark.parametrize(
    "content_type",
    [
        "multipart/form-data; boundary=------d7",
        'Multipart/Form-Data;charset=utf-8; boundary="------d7"',
    ],
)
def test_a_multipart_form_has_its_fields(content_type: str) -> None:
    assert fields_of(CURL, content_type) == {"q": "Zwei\r\n\r\nMänner\n", "target": "de"}


def test_json_and_urlencoded_forms_do_not_need_their_type() -> None:
    assert fields_of(b' {"q": ["a"]}', "") == {"q": ["a"]}
    assert fields_of(b"q=a+b&target=de&q=", "text/plain") == {"q": "", "target": "de"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--x",
        b"--x--",
        b"--x\r\n\r\n",
        b'--x\r\nContent-Disposition: form-data; name="',
        b'--xContent-Disposition: form-data; filename="q"\r\n\r\nfile',
        b"\x00\xff" * 1000,
        b"--x" * 300_000,
        b'--x\r\nContent-Disposition: form-data; name="q"' + b"; name=" * 100_000,
        b"--x" + b"\r\ncontent-disposition:" * 40_000,
    ],
    ids=range(10),
)
def test_what_is_no_form_has_no_fields(body: bytes) -> None:
    assert set(fields_of(body, "multipart/form-data; boundary=x")) <= {"q"}


def test_no_more_than_64_parts_are_read() -> None:
    parts = b"".join(
        b'--x\r\nContent-Disposition: form-data; name="%d"\r\n\r\n1\r\n' % n for n in range(100)
    )
    assert len(fields_of(parts, "multipart/form-data; boundary=x")) == 64
