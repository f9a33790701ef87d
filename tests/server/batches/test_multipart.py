"""Forms are read in the same way however they arrive, and what is no form is refused."""

from __future__ import annotations

import random

import pytest

from octavo.serving.batches.multipart import MAX_FIELD_BYTES, MAX_PARTS, FormReader, boundary_of
from octavo.transport.errors import ApiError

FILE = b"\r\n-- line\r\n--bound\r\n\r\n--boun\r\n{}\n" + bytes(range(256))
FORM = (
    b'preamble\r\n--boundary\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch'
    b'\r\n--boundary\r\ncontent-disposition: form-data; name="file"; filename="a \\"b\\"/%0a.jsonl"'
    b"\r\nContent-Type: text/plain\r\n\r\n" + FILE + b"\r\n--boundary\r\n"
    b"Content-Disposition: form-data; name=x\r\n\r\n\r\n--boundary--\r\nepilogue"
)


def read(form: bytes, cuts: list[int]) -> tuple[FormReader, bytes]:
    """Return a form that arrives in pieces, and its file."""
    pieces: list[bytes] = []
    reader = FormReader(b"boundary", pieces.append)
    for begin, end in zip([0, *cuts], [*cuts, len(form)], strict=True):
        reader.feed(form[begin:end])
    reader.finish()
    return reader, b"".join(pieces)


def test_a_form_is_the_same_in_whatever_pieces_it_arrives() -> None:
    chance = random.Random(5)
    every = list(range(1, len(FORM)))
    for cuts in ([], every, *(sorted(chance.sample(every, 9)) for _ in range(60))):
        reader, file = read(FORM, cuts)
        assert file == FILE
        assert reader.fields == {"purpose": "batch", "x": ""}
        assert reader.filename == 'a "b"___.jsonl'.replace("___", "__")


def part(head: str, value: bytes = b"") -> bytes:
    """Return a part of a form, and the boundary behind it."""
    return f"\r\n{head}\r\n\r\n".encode() + value + b"\r\n--boundary"


NAMED = 'Content-Disposition: form-data; name="a"'


@pytest.mark.parametrize(
    "form",
    [
        b"",
        b"--boundary--",
        FORM.replace(b"--boundary--", b""),
        b"--boundaryx",
        b"--boundary" + part("Content-Type: text/plain"),
        b"--boundary" + part(NAMED, b"x" * (MAX_FIELD_BYTES + 1)),
        b"--boundary" + part(NAMED) * (MAX_PARTS + 1),
        b"--boundary" + part(NAMED.replace('"a"', '"file"')) * 2,
        b"--boundary\r\nX: " + b"x" * 10_000,
    ],
)
def test_what_is_no_form_is_refused(form: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        read(form, [])
    assert refused.value.status == 400


def test_the_boundary_is_in_the_type() -> None:
    assert boundary_of("multipart/form-data; boundary=abc") == b"abc"
    assert boundary_of('Multipart/Form-Data; charset=x; boundary="a b;c"') == b"a b;c"
    for kind in ("", "application/json", "multipart/form-data", "text/x; boundary=a"):
        with pytest.raises(ApiError) as refused:
            boundary_of(kind)
        assert refused.value.status == 415
