"""Reads a form of several parts (multipart/form-data) as it arrives, in pieces of any size."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import unquote

from octavo.transport.errors import ApiError, invalid

MAX_PARTS = 16
MAX_FIELD_BYTES = 4096
_MAX_HEAD_BYTES = 8192
_MAX_NAME_CHARACTERS = 256
_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_VALUE = r'(?:"((?:[^"\\]|\\.)*)"|([^\s;"]*))'
_NAME = re.compile(r";\s*name=" + _VALUE, re.IGNORECASE)
_FILENAME = re.compile(r";\s*filename=" + _VALUE, re.IGNORECASE)
_UNSAFE = re.compile(r"[\x00-\x1f\x7f/\\]")


def boundary_of(content_type: str) -> bytes:
    """Return what separates the parts; raise ApiError for another type of body."""
    kind, _, _ = content_type.partition(";")
    found = _BOUNDARY.search(content_type)
    if kind.strip().lower() != "multipart/form-data" or found is None:
        raise ApiError(
            415,
            "the body must be a form with a file: send 'Content-Type: multipart/form-data' with "
            "its boundary",
        )
    return (found[1] or found[2]).encode("latin-1", "replace")


class FormReader:
    """A form whose one file goes to `write`, piece by piece; its other parts are `fields`."""

    def __init__(self, boundary: bytes, write: Callable[[bytes], object]) -> None:
        self._delimiter = b"\r\n--" + boundary
        self._write = write
        self._data = b"\r\n"  # what has not been read; the first delimiter may begin the body
        # Not bound to this object: a cycle would keep it until a collection.
        self._state: Callable[[FormReader], bool] = FormReader._read_contents
        self._name: str | None = None  # of the part; None: before the first
        self._is_file = False
        self._value = b""  # of the part, if it is a field
        self._num_parts = 0
        self.fields: dict[str, str] = {}
        self.filename: str | None = None  # None: there is no file yet
        self.is_complete = False

    def feed(self, piece: bytes) -> None:
        """Read the next piece; raise ApiError for what is no form."""
        self._data += piece
        while self._state(self):
            pass

    def finish(self) -> None:
        """Raise ApiError for a form that has no end or no file."""
        if not self.is_complete:
            raise invalid("the form is not complete: its last boundary is missing")
        if self.filename is None:
            raise invalid("file is missing: send it as the part of this name", "file")

    def _read_contents(self) -> bool:
        """Read the contents of a part up to the next delimiter."""
        end = self._data.find(self._delimiter)
        if end < 0:
            end = max(0, len(self._data) - len(self._delimiter) + 1)
            self._take(self._data[:end])
            self._data = self._data[end:]
            return False
        self._take(self._data[:end])
        self._data = self._data[end + len(self._delimiter) :]
        self._end_part()
        self._state = FormReader._read_delimiter
        return True

    def _read_delimiter(self) -> bool:
        """Read what is behind a delimiter: the end of the line, or of the form."""
        if len(self._data) < 2:
            return False
        mark, self._data = self._data[:2], self._data[2:]
        if mark == b"--":
            self.is_complete = True
            self._state = FormReader._skip
        elif mark == b"\r\n":
            self._data = b"\r\n" + self._data  # a part may have no headers
            self._state = FormReader._read_head
        else:
            raise invalid("the form is damaged: a boundary is not at the end of its line")
        return True

    def _read_head(self) -> bool:
        """Read the headers of a part."""
        head, blank, rest = self._data.partition(b"\r\n\r\n")
        if len(head) > _MAX_HEAD_BYTES:
            raise invalid(f"the headers of a part have more than {_MAX_HEAD_BYTES} bytes")
        if not blank:
            return False
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise invalid(f"the form has more than {MAX_PARTS} parts")
        self._begin_part(head.decode("utf-8", "replace"))
        self._data = rest
        self._state = FormReader._read_contents
        return True

    def _skip(self) -> bool:
        """Drop what follows the end."""
        self._data = b""
        return False

    def _begin_part(self, head: str) -> None:
        disposition = next(
            (
                line
                for line in head.split("\r\n")
                if line.lower().startswith("content-disposition:")
            ),
            "",
        )
        name = _value(_NAME, disposition)
        if not name:
            raise invalid("a part of the form has no name")
        filename = _value(_FILENAME, disposition)
        self._name, self._value = name[:_MAX_NAME_CHARACTERS], b""
        self._is_file = self._name == "file"
        if self._is_file:
            if self.filename is not None:
                raise invalid("file: the form has two; send one", "file")
            self.filename = _UNSAFE.sub("_", filename or "")[:_MAX_NAME_CHARACTERS] or "file"

    def _take(self, data: bytes) -> None:
        if self._is_file:
            if data:
                self._write(data)
        elif self._name is not None:
            self._value += data
            if len(self._value) > MAX_FIELD_BYTES:
                message = f"{self._name} has more than {MAX_FIELD_BYTES} bytes"
                raise invalid(message, self._name)

    def _end_part(self) -> None:
        if self._name is not None and not self._is_file:
            self.fields[self._name] = self._value.decode("utf-8", "replace")
        self._is_file, self._name = False, None


def _value(pattern: re.Pattern[str], disposition: str) -> str | None:
    """Return a parameter of a header, as browsers and curl write it."""
    found = pattern.search(disposition)
    if found is None:
        return None
    if found[1] is None:
        return found[2]
    return unquote(re.sub(r"\\(.)", r"\1", found[1]))
