"""A file of requests: where its lines are, what is wrong with them, and one line at a time."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Collection
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from octavo.serving.batches.lines import InvalidLineError, LineError, RequestLine, read_line

PIECE_BYTES = 1 << 16  # less than a millisecond's work, unless its lines are blank
MAX_ERRORS = 100  # reported of one file
ENVELOPE_BYTES = 4096  # of a line, beside its body


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a file of requests."""

    urls: Collection[str]  # the routes that its lines may ask for
    max_lines: int
    max_body_bytes: int


@dataclass(frozen=True, slots=True)
class FoundError:
    """An error in a line, which is counted from 1."""

    line: int | None
    error: LineError


class InputFile:
    """An open file of requests, whose lines are found and checked piece by piece."""

    def __init__(
        self,
        path: Path,
        bounds: Bounds,
        on_line: Callable[[int, RequestLine], None] = lambda number, line: None,
    ) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._bounds = bounds
        self._on_line = on_line  # takes each valid line, with its number from 1
        self._starts = array("Q")  # of the lines that are not blank
        self._lengths = array("Q")
        self._rest: list[bytes] = []  # the beginning of a line whose end has not been read
        self._num_rest = 0  # bytes of it
        self._is_too_long = False  # it is, and nothing of it is kept
        self._at = 0  # where the next piece begins
        self._num_seen = 0  # lines, blank ones included
        self._seen: set[bytes] = set()  # digests of ids
        self._digest = blake2b(digest_size=16)
        self.errors: list[FoundError] = []

    @property
    def digest(self) -> bytes:
        """The digest of the contents, when all pieces have been read."""
        return self._digest.digest()

    @property
    def num_lines(self) -> int:
        """The number of requests that were found."""
        return len(self._starts)

    def read_piece(self, *, checks: bool = True) -> bool:
        """Find the lines of the next piece, and check them; return whether there may be more."""
        piece = os.pread(self._descriptor, PIECE_BYTES, self._at)
        self._digest.update(piece)
        begin = self._at - self._num_rest
        self._at += len(piece)
        *ends, rest = piece.split(b"\n")
        if not piece and self._num_rest:
            ends = [b""]  # of the last line
        for end in ends:
            length = self._num_rest + len(end)
            if self._is_too_long:
                self._num_seen += 1
            else:
                self._take(begin, b"".join((*self._rest, end)), checks=checks)
            self._rest, self._num_rest, self._is_too_long = [], 0, False
            begin += length + 1
        self._hold(rest)
        if not (piece or self.num_lines or self.errors):
            self._refuse(None, "empty_file", "the file has no requests: write one on each line")
        return bool(piece) and len(self.errors) < MAX_ERRORS

    def line(self, number: int) -> RequestLine:
        """Return one request, by its number from 0."""
        data = os.pread(self._descriptor, self._lengths[number], self._starts[number])
        return read_line(data, self._bounds.urls, self._bounds.max_body_bytes)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _hold(self, part: bytes) -> None:
        """Keep a part of a line whose end has not been read; what is too long is passed over."""
        self._num_rest += len(part)
        limit = self._bounds.max_body_bytes + ENVELOPE_BYTES
        if self._num_rest <= limit:
            self._rest.append(part)
        elif not self._is_too_long:
            self._rest, self._is_too_long = [], True
            self._refuse(self._num_seen + 1, "line_too_long", f"a line has more than {limit} bytes")

    def _take(self, begin: int, data: bytes, *, checks: bool) -> None:
        self._num_seen += 1
        if not data.strip() or len(self.errors) >= MAX_ERRORS:
            return
        limit = self._bounds.max_lines
        if self.num_lines == limit:
            message = f"the file has more than {limit} requests; divide it"
            self._refuse(None, "too_many_requests", message)
            self.errors = self.errors[-1:] * MAX_ERRORS  # nothing behind it is read
            return
        self._starts.append(begin)
        self._lengths.append(len(data))
        if checks:
            self._check(data)

    def _check(self, data: bytes) -> None:
        try:
            line = read_line(data, self._bounds.urls, self._bounds.max_body_bytes)
        except InvalidLineError as error:
            self.errors += [FoundError(self._num_seen, each) for each in error.errors]
            del self.errors[MAX_ERRORS:]
            return
        name = blake2b(line.custom_id.encode(), digest_size=16).digest()
        if name in self._seen:
            message = f"custom_id {line.custom_id[:64]!r} is that of an earlier line too"
            self._refuse(self._num_seen, "duplicate_custom_id", message, "custom_id")
        self._seen.add(name)
        self._on_line(self._num_seen, line)

    def _refuse(self, line: int | None, code: str, message: str, param: str | None = None) -> None:
        self.errors.append(FoundError(line, LineError(code, message, param)))
