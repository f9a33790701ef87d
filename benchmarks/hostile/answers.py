"""Parses the responses on one connection strictly, while they arrive."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_STATUS = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) [ -~]*\Z")
_HEADER = re.compile(rb"([A-Za-z0-9!#$%&'*+.^_`|~-]+): ?([\t -~\x80-\xff]*)\Z")
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,8}\Z")
_END = b"\r\n\r\n"


class MalformedError(Exception):
    """Bytes from the server that are no valid HTTP response."""


@dataclass
class Answer:
    """One response, perhaps incomplete."""

    status: int
    headers: list[tuple[str, str]]
    body: bytearray = field(default_factory=bytearray)
    is_whole: bool = False

    def header(self, name: str) -> str | None:
        """Return the first header of this name."""
        return next((value for given, value in self.headers if given == name), None)


class AnswerReader:
    """The responses on one connection so far, without interim ones (1xx)."""

    def __init__(self, *, has_body: bool = True) -> None:
        self.answers: list[Answer] = []
        self._has_body = has_body
        self._rest = bytearray()
        self._missing = 0  # bytes of the body, or of the chunk with its line end
        self._is_chunked = False

    @property
    def num_whole(self) -> int:
        """The number of complete responses."""
        return sum(answer.is_whole for answer in self.answers)

    def feed(self, data: bytes) -> None:
        """Take bytes from the server; raise MalformedError if they are no response."""
        self._rest += data
        while self._advance():
            pass

    def end(self) -> None:
        """Take the end of the connection; raise MalformedError if it cuts a response off."""
        if self._rest or (self.answers and not self.answers[-1].is_whole):
            raise MalformedError(f"the connection ended within a response: {self._tail()!r}")

    def _tail(self) -> bytes:
        body = self.answers[-1].body if self.answers else b""
        return bytes(body[-60:] + self._rest[:60])

    def _advance(self) -> bool:
        """Parse the next part; return whether there was one."""
        if not self.answers or self.answers[-1].is_whole:
            return self._take_head()
        if self._is_chunked and not self._missing:
            return self._take_size()
        return self._take_body()

    def _take_head(self) -> bool:
        end = self._rest.find(_END)
        if end < 0:
            return False
        lines = bytes(self._rest[:end]).split(b"\r\n")
        del self._rest[: end + len(_END)]
        status = _STATUS.match(lines[0])
        if status is None:
            raise MalformedError(f"no status line: {lines[0][:200]!r}")
        headers = []
        for line in lines[1:]:
            found = _HEADER.match(line)
            if found is None:
                raise MalformedError(f"no header: {line[:200]!r}")
            headers.append((found[1].decode().lower(), found[2].decode("latin-1")))
        answer = Answer(int(status[1]), headers)
        if answer.status < 200:
            return True
        self.answers.append(answer)
        length = answer.header("content-length")
        self._is_chunked = answer.header("transfer-encoding") == "chunked"
        if self._is_chunked == (length is not None) and answer.status != 204:
            raise MalformedError(f"a response without a length, or with two: {headers}")
        self._missing = int(length or 0)
        if not self._has_body or (not self._is_chunked and not self._missing):
            answer.is_whole = True
        return True

    def _take_body(self) -> bool:
        part = self._rest[: self._missing]
        if not part:
            return False
        del self._rest[: len(part)]
        self._missing -= len(part)
        answer = self.answers[-1]
        answer.body += part
        if self._missing:
            return True
        if not self._is_chunked:
            answer.is_whole = True
        elif answer.body[-2:] != b"\r\n":
            raise MalformedError(f"a chunk has no end: {self._tail()!r}")
        else:
            del answer.body[-2:]
        return True

    def _take_size(self) -> bool:
        end = self._rest.find(b"\r\n")
        if end < 0:
            return False
        size = bytes(self._rest[:end])
        if not _SIZE.match(size):
            raise MalformedError(f"no size of a chunk: {size[:60]!r}")
        number = int(size, 16)
        if not number:  # no trailers are expected
            if len(self._rest) < end + 4:
                return False
            end += 2
            self.answers[-1].is_whole = True
        del self._rest[: end + 2]
        self._missing = number + 2 if number else 0
        return True
