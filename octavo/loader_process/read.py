"""Reads one tensor file: a copy in sealed memory, and a table of what is in it, both checked.

The file is copied and sealed first, and the copy is checked: what happens to the file afterwards
changes nothing. Only regular files below the named directories are opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from octavo.loader.checkpoint import Checkpoint
from octavo.loader.errors import CheckpointError, quote
from octavo.loader.gguf.reader import MAGIC, read_gguf
from octavo.loader.mapped_file import MappedFile
from octavo.loader.safetensors import read_safetensors
from octavo.loader.strict_json import parse_object
from octavo.loader_process.messages import (
    MAX_BESIDE_BYTES,
    MAX_DIMENSIONS,
    MAX_FILE_BYTES,
    MAX_HEADER_BYTES,
    MAX_TABLE_BYTES,
    MAX_TENSOR_NAME,
    MAX_TENSORS,
    Table,
    TableEntry,
    encode,
)
from octavo.loader_process.sealed import SpareMemory, make_sealed

OUTSIDE, UNREADABLE, TOO_LARGE, DAMAGED = "outside", "unreadable", "too_large", "damaged"
_CHUNK_BYTES = 64 << 20


class FileRefusedError(Exception):
    """The reason why a file cannot be read, with a code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Directories:
    """The directories below which files may be read."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.roots = tuple([Path(os.path.realpath(path)) for path in paths])

    def has(self, path: Path) -> bool:
        """Return whether a path is below one of the directories."""
        try:
            real = Path(os.path.realpath(path))
        except (OSError, ValueError):
            return False
        return any(real.is_relative_to(root) for root in self.roots)

    def open(self, path: Path, most_bytes: int) -> tuple[int, int]:
        """Open a regular file of at most so many bytes; return its descriptor and its size."""
        if not path.is_absolute():
            raise FileRefusedError(OUTSIDE, f"{quote(str(path))} is not an absolute path")
        try:
            real = Path(os.path.realpath(path))
        except (OSError, ValueError) as error:
            raise FileRefusedError(UNREADABLE, f"{quote(str(path))}: {error}") from None
        if not any(real.is_relative_to(root) for root in self.roots):
            named = ", ".join(map(str, self.roots))
            raise FileRefusedError(
                OUTSIDE,
                f"{quote(str(path))} is in none of the directories that were named: {named}",
            )
        try:
            # Without waiting: a pipe's other end may never come.
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(real, flags)
        except OSError as error:
            why = error.strerror or error
            raise FileRefusedError(UNREADABLE, f"{quote(str(path))}: {why}") from None
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_size <= most_bytes:
            return descriptor, status.st_size
        os.close(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FileRefusedError(UNREADABLE, f"{quote(str(path))} is not a regular file")
        raise FileRefusedError(
            TOO_LARGE,
            f"{quote(str(path))} has {status.st_size:,} bytes; at most {most_bytes:,} are read",
        )


def read_file(
    directories: Directories,
    path: Path,
    beside: Sequence[str],
    names: Sequence[str] = (),
    spare: SpareMemory | None = None,
) -> tuple[int, int]:
    """Return descriptors of a file's content and of its table; raise FileRefusedError.

    In a directory, the first of `names` is read. The content is put into spare memory, if there is
    some.
    """
    name = _name_in(directories, path, names)
    path = path / name if name else path
    source, num_bytes = directories.open(path, MAX_FILE_BYTES)
    try:
        memory = None if spare is None else spare.take(num_bytes)
        copy = _copier(source, num_bytes, path)
        content = make_sealed("octavo-tensors", num_bytes, copy, memory)
    finally:
        os.close(source)
    try:
        table = encode(_table(directories, content, path, beside, name))
        if len(table) > MAX_TABLE_BYTES:
            raise FileRefusedError(
                TOO_LARGE, f"its table has {len(table):,} bytes, of at most {MAX_TABLE_BYTES:,}"
            )
        return content, make_sealed("octavo-table", len(table), lambda to: _write(to, table))
    except BaseException:
        os.close(content)
        raise


def _name_in(directories: Directories, path: Path, names: Sequence[str]) -> str | None:
    """Return the name of the file to read in a directory; None if the path is a file's own."""
    if not names or not directories.has(path) or not path.is_dir():
        return None
    name = next((each for each in names if os.path.lexists(path / each)), None)
    if name is None:
        raise FileRefusedError(
            UNREADABLE,
            f"{quote(str(path))} has none of the files {', '.join(names)}; others, such as pickled "
            "ones (.bin, .pt), are not read",
        )
    return name


def _copier(source: int, num_bytes: int, path: Path) -> Callable[[int], None]:
    def copy(target: int) -> None:
        left = num_bytes
        while left:
            count = os.sendfile(target, source, None, min(left, _CHUNK_BYTES))
            if not count:
                raise FileRefusedError(UNREADABLE, f"{quote(str(path))} became shorter meanwhile")
            left -= count

    return copy


def _write(target: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]


def _table(
    directories: Directories, content: int, path: Path, beside: Sequence[str], name: str | None
) -> Table:
    try:
        file = MappedFile.of_descriptor(path, content)
        try:
            is_gguf = file.buffer[: len(MAGIC)] == MAGIC
            checkpoint = read_gguf(file) if is_gguf else read_safetensors(file, MAX_HEADER_BYTES)
            entries = tuple(_entries(checkpoint))
            metadata = {key: str(value) for key, value in checkpoint.metadata.items()}
        finally:
            file.buffer.close()
        texts = {each: _read_beside(directories, path.parent / each) for each in beside}
    except CheckpointError as error:
        raise FileRefusedError(DAMAGED, str(error)) from None
    return Table(entries, metadata, {key: text for key, text in texts.items() if text}, name)


def _entries(checkpoint: Checkpoint) -> Iterator[TableEntry]:
    if len(checkpoint) > MAX_TENSORS:
        raise FileRefusedError(
            TOO_LARGE, f"it has {len(checkpoint):,} tensors, of at most {MAX_TENSORS:,}"
        )
    for info in checkpoint.tensors.values():
        if len(info.name) > MAX_TENSOR_NAME or len(info.shape) > MAX_DIMENSIONS:
            raise FileRefusedError(
                TOO_LARGE,
                f"tensor {quote(info.name)} has a name of {len(info.name):,} characters and "
                f"{len(info.shape)} dimensions, of at most {MAX_TENSOR_NAME} and {MAX_DIMENSIONS}",
            )
        yield TableEntry(info.name, info.type.name, info.shape, info.offset)


def _read_beside(directories: Directories, path: Path) -> bytes:
    """Return the text of a JSON file, or an empty one if there is no file; raise an error if it is
    wrong."""
    if not os.path.lexists(path):
        return b""
    descriptor, num_bytes = directories.open(path, MAX_BESIDE_BYTES)
    with os.fdopen(descriptor, "rb") as file:
        text = file.read(num_bytes)
    parse_object(text, path, path.name)
    return text
