"""The framing of a journal's records: a mark, the length and a checksum before each payload.

    magic, mark, key │ mark, length, checksum, payload │ mark, length, checksum, payload │ …

Mark and key are drawn for each file, and the checksum depends on the key. So a text of a client
can neither look like a record nor make reading slow, wherever the file is damaged.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from dataclasses import dataclass

MAGIC = b"octavo journal 1"
_MARK_BYTES = 8
_KEY_BYTES = 16
HEADER_BYTES = len(MAGIC) + _MARK_BYTES + _KEY_BYTES
_CHECKSUM_BYTES = 8
_LENGTH = struct.Struct("<I")
MAX_PAYLOAD_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Framing:
    """The mark before the records of one file, and the key of their checksums."""

    mark: bytes
    key: bytes

    @classmethod
    def draw(cls) -> Framing:
        """Return a new framing, which no client can guess."""
        return cls(secrets.token_bytes(_MARK_BYTES), secrets.token_bytes(_KEY_BYTES))

    @property
    def header(self) -> bytes:
        """The first bytes of the file."""
        return MAGIC + self.mark + self.key

    def frame(self, payload: bytes) -> bytes:
        """Return a payload as a record."""
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise ValueError(f"a record of {len(payload)} bytes; at most {MAX_PAYLOAD_BYTES} fit")
        length = _LENGTH.pack(len(payload))
        return b"".join((self.mark, length, self._checksum(length, payload), payload))

    def payload_at(self, data: bytes, at: int) -> bytes | None:
        """Return the payload of the record that begins there; None if no valid one does."""
        begin = at + len(self.mark) + _LENGTH.size + _CHECKSUM_BYTES
        if data[at : at + len(self.mark)] != self.mark or begin > len(data):
            return None
        length = data[at + len(self.mark) : at + len(self.mark) + _LENGTH.size]
        end = begin + _LENGTH.unpack(length)[0]
        payload = data[begin:end]
        if end > len(data) or end - begin > MAX_PAYLOAD_BYTES:
            return None
        found = data[begin - _CHECKSUM_BYTES : begin]
        return payload if found == self._checksum(length, payload) else None

    @property
    def num_bytes(self) -> int:
        """The bytes of a record before its payload."""
        return len(self.mark) + _LENGTH.size + _CHECKSUM_BYTES

    def length_in(self, data: bytes) -> int | None:
        """Return the length of the payload behind these bytes; None if no record begins so."""
        if len(data) < self.num_bytes or not data.startswith(self.mark):
            return None
        length: int = _LENGTH.unpack_from(data, len(self.mark))[0]
        return length

    def size_of(self, payload: bytes) -> int:
        """Return the length of a payload's record."""
        return self.num_bytes + len(payload)

    def _checksum(self, length: bytes, payload: bytes) -> bytes:
        digest = hashlib.blake2b(length, key=self.key, digest_size=_CHECKSUM_BYTES)
        digest.update(payload)
        return digest.digest()


def framing_of(header: bytes) -> Framing | None:
    """Return how the records behind a file's first bytes are framed; None for no such file."""
    if not header.startswith(MAGIC) or len(header) < HEADER_BYTES:
        return None
    key_at = len(MAGIC) + _MARK_BYTES
    return Framing(header[len(MAGIC) : key_at], header[key_at:HEADER_BYTES])
