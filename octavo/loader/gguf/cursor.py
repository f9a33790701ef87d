"""A reader of little-endian numbers and strings that never reads past the end of a file."""

import struct
from struct import Struct, calcsize, unpack_from
from typing import NoReturn

from octavo.loader.errors import CorruptFileError
from octavo.loader.gguf.strings import find_lengths, split, split_pairs
from octavo.loader.gguf.types import BOOL_CODE, SCALAR_FORMATS
from octavo.loader.mapped_file import MappedFile

_U32 = Struct("<I")
_U64 = Struct("<Q")
_LENGTH_BYTES = _U64.size

DAMAGED = "the file is truncated or damaged: download it again"

# Names longer than this exist only in damaged files; the format's own bound for keys is the same.
MAX_NAME_BYTES = 65_535


class Cursor:
    """A position in a mapped file, which each read moves forward."""

    def __init__(self, file: MappedFile, position: int) -> None:
        self.file = file
        self.position = position

    @property
    def remaining_bytes(self) -> int:
        return self.file.num_bytes - self.position

    def take(self, num_bytes: int, what: str) -> int:
        """Move over `num_bytes` that must exist; return their start."""
        if num_bytes > self.remaining_bytes:
            raise CorruptFileError(
                f"{what} at byte {self.position:,} needs {num_bytes:,} bytes"
                f" but the file ends at byte {self.file.num_bytes:,}",
                path=self.file.path,
                advice=DAMAGED,
            )
        start = self.position
        self.position += num_bytes
        return start

    def u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self.file.buffer, self.take(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self.file.buffer, self.take(8, what))[0]
        return value

    def u64s(self, count: int, what: str) -> tuple[int, ...]:
        return unpack_from(f"<{count}Q", self.file.buffer, self.take(8 * count, what))

    def name(self, what: str) -> str:
        """Read a key or a tensor's name: short, not empty, valid UTF-8."""
        length = self.u64(f"the length of {what}")
        if not 0 < length <= MAX_NAME_BYTES:
            raise self.corrupt(
                f"{what} has a length of {length:,} bytes, must be 1 to {MAX_NAME_BYTES:,}"
            )
        start = self.take(length, what)
        try:
            return self.file.buffer[start : start + length].decode()
        except UnicodeDecodeError:
            raise self.corrupt(f"{what} at byte {start:,} is not valid UTF-8") from None

    def scalars(self, code: int, count: int, what: str) -> list[int] | list[float] | list[bool]:
        """Read `count` numbers of one metadata type."""
        start = self.position
        self.skip_scalars(code, count, what)
        if code == BOOL_CODE:
            stored = self.file.buffer[start : start + count]
            if stored.strip(b"\0\1"):
                raise self.corrupt(f"{what}: a boolean is stored as neither 0 nor 1")
            return [byte == 1 for byte in stored]
        return list(unpack_from(f"<{count}{SCALAR_FORMATS[code]}", self.file.buffer, start))

    def skip_scalars(self, code: int, count: int, what: str) -> None:
        self.take(count * calcsize("<" + SCALAR_FORMATS[code]), what)

    def skip_string(self, what: str) -> int:
        """Move over one string; return the start of its text."""
        return self.take(self.u64(f"the length of {what}"), what)

    def string(self, what: str) -> bytes:
        return self.file.buffer[self.skip_string(what) : self.position]

    def strings(self, count: int, end: int, what: str) -> list[str] | list[bytes]:
        """Read `count` strings that fill the bytes up to `end`, as skip_strings found them."""
        places = find_lengths(self.file.buffer, self.position, count)
        if places is not None and self.position + places[-1] == end:
            found = split(self.file.buffer, self.position, places)
            self.position = end
            return found
        stored, unpack, start = self.file.buffer[self.position : end], _U64.unpack_from, 0
        texts = []
        try:
            for _ in range(count):
                text = start + _LENGTH_BYTES
                start = text + unpack(stored, start)[0]
                texts.append(stored[text:start])
        except struct.error:
            start = -1
        if start != len(stored):
            raise self.corrupt(f"{what} changed while it was in use")
        self.position = end
        return texts

    def pairs(self, count: int, end: int) -> list[tuple[str, str]] | None:
        """Read the two words of each string, as `strings` does; return None for other strings."""
        places = find_lengths(self.file.buffer, self.position, count)
        if places is None or self.position + places[-1] != end:
            return None
        return split_pairs(self.file.buffer, self.position, places)

    def skip_strings(self, count: int, what: str) -> None:
        """Move over `count` strings; this loop is fast, since vocabularies have 100,000s."""
        self.require_room(count, _LENGTH_BYTES, what)
        places = find_lengths(self.file.buffer, self.position, count)
        if places is not None:
            self.position += int(places[-1])
            return
        buffer, unpack = self.file.buffer, _U64.unpack_from
        position, last_start = self.position, self.file.num_bytes - _LENGTH_BYTES
        for index in range(count):
            if position > last_start:
                self._runs_out(f"{what}[{index:,}]", position)
            position += _LENGTH_BYTES + unpack(buffer, position)[0]
        if position > self.file.num_bytes:
            self._runs_out(f"{what}[{count - 1:,}]", position)
        self.position = position

    def require_room(self, count: int, least_bytes: int, what: str) -> None:
        """Refuse a count that the rest of the file cannot hold, before memory is allocated."""
        if count * least_bytes > self.remaining_bytes:
            raise self.corrupt(
                f"{what}: {count:,} entries need at least {count * least_bytes:,} bytes"
                f" but {self.remaining_bytes:,} are left"
            )

    def _runs_out(self, what: str, position: int) -> NoReturn:
        raise self.corrupt(
            f"{what} or the string before it reaches past the end of the file:"
            f" byte {position:,} of {self.file.num_bytes:,}"
        )

    def corrupt(self, problem: str) -> CorruptFileError:
        return CorruptFileError(problem, path=self.file.path, advice=DAMAGED)
