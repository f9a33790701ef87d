"""Changes of the files of a model: of JSON values, of bytes, of tensors, and of GGUF metadata."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Values that no field of a model has: of other types, at the limits of types, and not decimal.
NASTY: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    3,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    1 << 63,
    10**30,
    0.5,
    -1.5,
    1e-320,
    1e308,
    -1e308,
    "",
    "x",
    "٣",
    "\ud800",
    "a\nb\x1b[31m",
    "x" * 5000,
    [],
    [1, -1, "x", None],
    [[[]]],
    {},
    {"a": 1},
)
_MOST_ITEMS = 2  # of a list or a vocabulary, that are changed


@dataclass(frozen=True)
class Mutant:
    """A change of one file, with what the message about it may name."""

    name: str
    file: str
    change: Callable[[bytes], bytes | None]  # None: the file is removed
    fields: tuple[str, ...] = ()

    def apply(self, directory: Path) -> None:
        """Change the file in a copy of the model."""
        path = directory / self.file
        changed = self.change(path.read_bytes())
        if changed is None:
            path.unlink()
        else:
            path.write_bytes(changed)


def json_mutants(file: str, content: bytes) -> Iterator[Mutant]:
    """Yield mutants of every value in a JSON file: replaced, removed, and renamed."""
    for place in _places(json.loads(content)):
        fields = tuple(str(step) for step in place if isinstance(step, str))
        label = ".".join(map(str, place))
        for value in NASTY:
            shown = repr(value)[:30]
            yield Mutant(f"{label} = {shown}", file, _replaced(place, value), fields)
        yield Mutant(f"{label} removed", file, _replaced(place, _removed), fields)


_removed = object()


def _places(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the place of every value; of long lists and vocabularies, of the first few."""
    if place:
        yield place
    if isinstance(value, dict):
        is_long = len(value) > 40
        items = list(value.items())[: _MOST_ITEMS if is_long else None]
    elif isinstance(value, list):
        items = list(enumerate(value[:_MOST_ITEMS]))
    else:
        return
    for key, inner in items:
        yield from _places(inner, (*place, key))


def _replaced(place: tuple[str | int, ...], value: Any) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        whole = json.loads(content)
        inner = whole
        for step in place[:-1]:
            inner = inner[step]
        if value is _removed:
            del inner[place[-1]]
        else:
            inner[place[-1]] = value
        return json.dumps(whole).encode()

    return change


def byte_mutants(file: str, content: bytes) -> Iterator[Mutant]:
    """Yield mutants of a file as bytes: cut, flipped, filled, removed, and of another encoding."""
    size = len(content)
    for part in range(16):
        yield Mutant(f"cut at {part}/16", file, _spliced(size * part // 16, size, b""))
    for part in range(24):
        at = (size - 1) * part // 23
        yield Mutant(f"byte {at} = 0", file, _spliced(at, at + 1, b"\0"))
        yield Mutant(f"byte {at} = 0xff", file, _spliced(at, at + 1, b"\xff"))
        yield Mutant(f"8 bytes at {at} removed", file, _spliced(at, at + 8, b""))
        yield Mutant(f"8 bytes at {at} = 0xff", file, _spliced(at, at + 8, b"\xff" * 8))
        yield Mutant(f"8 bytes at {at} doubled", file, _spliced(at, at, content[at : at + 8]))
    wholes: Mapping[str, bytes | None] = {
        "removed": None,
        "zeros": bytes(4096),
        "null": b"null",
        "a list": b"[1, 2]",
        "a string": b'"x"',
        "nested deeply": b"[" * 100_000,
        "nested objects": b'{"a":' * 100_000,
        "a web page": b"<!DOCTYPE html><html></html>",
        "a pickle": b"\x80\x02}q\x00.",
        "NaN": b'{"a": NaN}',
        "twice": b'{"a": 1, "a": 2}',
        "a long integer": b'{"a": ' + b"9" * 5000 + b"}",
        "with a mark of its order": b"\xef\xbb\xbf" + content,
        "in UTF-16": content.decode("latin-1").encode("utf-16"),
        "followed by more": content + b"x" * 7,
    }
    for name, whole in wholes.items():
        yield Mutant(name, file, _whole(whole))


def _spliced(start: int, end: int, middle: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data[:start] + middle + data[end:]


def _whole(content: bytes | None) -> Callable[[bytes], bytes | None]:
    return lambda _: content
