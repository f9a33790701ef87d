"""ChaCha20-Poly1305 as RFC 8439 describes it, word for word and slow, to compare sealing with."""

from __future__ import annotations

import struct

_WORDS = b"expand 32-byte k"
_QUARTERS = [
    *((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)),
    *((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)),
]
_PRIME = (1 << 130) - 5
_R_BITS = 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF


def sealed(key: bytes, nonce: bytes, text: bytes, beside: bytes = b"") -> tuple[bytes, bytes]:
    """Return the encrypted text, and its tag."""
    stream = b"".join(_block(key, 1 + at, nonce) for at in range(-(-len(text) // 64)))
    encrypted = bytes(a ^ b for a, b in zip(text, stream, strict=False))
    sizes = struct.pack("<QQ", len(beside), len(encrypted))
    said = _filled(beside) + _filled(encrypted) + sizes
    return encrypted, _tag(_block(key, 0, nonce)[:32], said)


def nonce_of(number: int) -> bytes:
    """Return the nonce of a part of a connection."""
    return struct.pack("<IQ", 0, number)


def _block(key: bytes, counter: int, nonce: bytes) -> bytes:
    begin = struct.unpack("<16I", _WORDS + key + struct.pack("<I", counter) + nonce)
    x = list(begin)
    for _ in range(10):
        for a, b, c, d in _QUARTERS:
            for one, other, to, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                x[one] = (x[one] + x[other]) & 0xFFFFFFFF
                turned = x[to] ^ x[one]
                x[to] = (turned << by | turned >> 32 - by) & 0xFFFFFFFF
    return struct.pack("<16I", *((a + b) & 0xFFFFFFFF for a, b in zip(x, begin, strict=True)))


def _tag(key: bytes, said: bytes) -> bytes:
    r, total = int.from_bytes(key[:16], "little") & _R_BITS, 0
    for at in range(0, len(said), 16):
        part = int.from_bytes(said[at : at + 16] + b"\1", "little")
        total = (total + part) * r % _PRIME
    whole = total + int.from_bytes(key[16:], "little")
    return (whole & (1 << 128) - 1).to_bytes(16, "little")


def _filled(part: bytes) -> bytes:
    return part + bytes(-len(part) % 16)
