"""Bodies whose length is wrong, or given twice: chunks, trailers, lengths, smuggled requests."""

from __future__ import annotations

import json
import random

from benchmarks.hostile.attack import (
    ATTACK_KEY,
    COMPLETIONS,
    Attack,
    Kinds,
    Right,
    head,
    request,
)
from benchmarks.hostile.bodies import BASE

KINDS = Kinds()
BODY = json.dumps(BASE[COMPLETIONS]).encode()
CHUNKED = ("Transfer-Encoding", "chunked")


def chunk(data: bytes, size: bytes | None = None) -> bytes:
    """Return a chunk, with its right size or another one."""
    return (b"%x" % len(data) if size is None else size) + b"\r\n" + data + b"\r\n"


@KINDS.add(share=5)
def sizes_of_chunks(chance: random.Random) -> Attack:
    size = chance.choice(
        [
            b"-1",
            b"+5",
            b"0x1d",
            b"g",
            b"",
            b" ",
            b"ffffffffffffffffffff",
            b"1 1",
            b"5\x00",
            b"\xd9\xa3",
            b"1.5",
            b"5" * 300,
        ]
    )
    return Attack((head(COMPLETIONS, headers=[CHUNKED]) + chunk(BODY, size) + b"0\r\n\r\n",))


@KINDS.add(share=3)
def ends_of_chunks(chance: random.Random) -> Attack:
    """Make chunks that are longer or shorter than their size."""
    start = head(COMPLETIONS, headers=[CHUNKED])
    size = b"%x" % (len(BODY) - 3)
    body = chance.choice(
        [
            size + b"\r\n" + BODY + b"\r\n0\r\n\r\n",
            b"%x\r\n%bXX0\r\n\r\n" % (len(BODY), BODY),
            b"%x\r\n%b0\r\n\r\n" % (len(BODY), BODY),
        ]
    )
    return Attack((start + body,))


@KINDS.add(share=5)
def transfer_encodings(chance: random.Random) -> Attack:
    value = chance.choice(
        [
            "gzip",
            "gzip, chunked",
            "chunked, chunked",
            "chunked, identity",
            "xchunked",
            "chunkedx",
            "chunked\x0b",
            '"chunked"',
            "",
            ", ,",
            "c\u0127unked",
        ]
    )
    start = head(COMPLETIONS, headers=[("Transfer-Encoding", value)])
    return Attack((start + chunk(BODY) + b"0\r\n\r\n",))


@KINDS.add(share=4)
def two_lengths(chance: random.Random) -> Attack:
    """Make requests that two servers on the way would divide differently."""
    smuggled = request("/v1/models", method="GET", key=ATTACK_KEY)
    length = ("Content-Length", str(len(BODY)))
    headers = chance.choice(
        [
            [length, CHUNKED],
            [CHUNKED, length],
            [length, ("Content-Length", "1")],
            [("Content-Length", f"{len(BODY)}, {len(BODY)}")],
            [CHUNKED, ("Transfer-Encoding", "identity")],
            [("Content-Length", "4"), CHUNKED],
        ]
    )
    return Attack((head(COMPLETIONS, headers=headers) + chunk(BODY) + b"0\r\n\r\n" + smuggled,))


@KINDS.add(share=4)
def lengths(chance: random.Random) -> Attack:
    length = chance.choice(
        ["-1", "+5", "0x10", "1e3", "5 5", "x", "", "9" * 30, "٣", "18446744073709551617", "1.0"]
    )
    return Attack((request(COMPLETIONS, BODY, length=length),))


@KINDS.add(share=1)
def announced_too_large(chance: random.Random) -> Attack:
    length = chance.choice([8 << 20 | 1, 1 << 31, 1 << 40])
    return Attack((request(COMPLETIONS, BODY, length=str(length)),))


@KINDS.add(share=0.3)
def chunks_too_large(chance: random.Random) -> Attack:
    part = chunk(b" " * (1 << 20))
    return Attack((head(COMPLETIONS, headers=[CHUNKED]), *([part] * 12), b"0\r\n\r\n"))


@KINDS.add(share=3)
def keys_in_trailers(chance: random.Random) -> Attack:
    """Make requests without a key in the head, and with one in the trailer."""
    start = request(COMPLETIONS, headers=[CHUNKED], key=None) + chunk(BODY)
    name = chance.choice(["Authorization: Bearer ", "X-Api-Key: "])
    return Attack((start + f"0\r\n{name}{ATTACK_KEY}\r\n\r\n".encode(),))


@KINDS.add(share=2)
def trailers(chance: random.Random) -> Attack:
    """Make valid requests whose trailers would change their meaning, were they headers."""
    lines = chance.choice(
        [
            "Content-Type: text/plain\r\n",
            "Host: evil.example\r\n",
            "Origin: https://evil.example\r\n",
            "Content-Length: 5\r\nTransfer-Encoding: gzip\r\n",
            "X-Request-Id: from-the-trailer\r\n",
        ]
    )
    start = head(COMPLETIONS, headers=[CHUNKED]) + chunk(BODY)
    valid = Attack((start + f"0\r\n{lines}\r\n".encode(),), Right.SERVED)
    return valid.followed() if chance.random() < 0.5 else valid


@KINDS.add(share=1)
def large_trailers(chance: random.Random) -> Attack:
    start = head(COMPLETIONS, headers=[CHUNKED]) + chunk(BODY) + b"0\r\n"
    lines = chance.choice([b"a: " + b"x" * 200_000 + b"\r\n", b"a: 1\r\n" * 5000])
    return Attack((start + lines + b"\r\n",))


@KINDS.add(share=1)
def large_extensions_of_chunks(chance: random.Random) -> Attack:
    size = b"%x;" % len(BODY) + b"a=b;" * chance.choice([20_000, 200_000])
    return Attack((head(COMPLETIONS, headers=[CHUNKED]) + chunk(BODY, size) + b"0\r\n\r\n",))


@KINDS.add(share=2)
def tiny_chunks(chance: random.Random) -> Attack:
    """Make a valid body in chunks of one byte each."""
    body = BODY + b" " * chance.choice([0, 20_000])
    chunks = b"".join(chunk(bytes([each])) for each in body)
    return Attack((head(COMPLETIONS, headers=[CHUNKED]), chunks, b"0\r\n\r\n"), Right.SERVED)
