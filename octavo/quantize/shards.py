"""A safetensors file whose size and header are known before its tensors: written in any order.

It grows under another name and gets its own when it is complete and on the disk, so that a file of
its name is a complete one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import numpy as np

from octavo.loader.safetensors import TYPES
from octavo.quantize.packer import Array
from octavo.quantize.plan import Output

PARTIAL = ".partial"
_ALIGNMENT = 8
_LENGTH_BYTES = 8


class Shard:
    """A file of some tensors, as it will be."""

    def __init__(self, name: str, outputs: Sequence[Output], method: str) -> None:
        self.name = name
        # Larger types first, so that every tensor is aligned.
        order = sorted(outputs, key=lambda each: -TYPES[each.type].block_bytes)
        entries: dict[str, object] = {
            "__metadata__": {"format": "pt", "quantization_method": method}
        }
        self._places: dict[str, int] = {}
        end = 0
        for output in order:
            start, end = end, end + output.num_bytes
            entries[output.name] = {
                "dtype": output.type,
                "shape": list(output.shape),
                "data_offsets": [start, end],
            }
            self._places[output.name] = start
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        self.header = len(text).to_bytes(_LENGTH_BYTES, "little") + text
        self.num_bytes = len(self.header) + end

    def place(self, name: str) -> int:
        """Return where the bytes of a tensor begin in the file."""
        return len(self.header) + self._places[name]

    def is_in(self, directory: Path) -> bool:
        """Return whether the complete file is there."""
        try:
            with (directory / self.name).open("rb") as file:
                is_whole = os.fstat(file.fileno()).st_size == self.num_bytes
                return is_whole and file.read(len(self.header)) == self.header
        except OSError:
            return False


class ShardFile:
    """A shard while it is written; leaving the context without an error completes it."""

    def __init__(self, shard: Shard, directory: Path) -> None:
        self._shard = shard
        self._path = directory / shard.name
        self._partial = directory / (shard.name + PARTIAL)

    def __enter__(self) -> ShardFile:
        self._descriptor = new_file(self._partial)
        try:
            os.truncate(self._descriptor, self._shard.num_bytes)
            self._write(self._shard.header, 0)
        except BaseException:
            os.close(self._descriptor)
            raise
        return self

    def put(self, name: str, rows: Array, first_row: int = 0) -> None:
        """Write some rows of a tensor, or all of it; several threads may write at once."""
        row_bytes = rows.nbytes // max(len(rows), 1) if rows.ndim else 0
        data = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
        self._write(data.data, self._shard.place(name) + first_row * row_bytes)

    def put_bytes(self, name: str, data: memoryview, offset: int = 0) -> None:
        """Write bytes of a tensor."""
        self._write(data, self._shard.place(name) + offset)

    def _write(self, data: bytes | memoryview, place: int) -> None:
        left = memoryview(data)
        while left:
            written = os.pwrite(self._descriptor, left, place)
            left, place = left[written:], place + written

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)
        if kind is None:
            self._partial.rename(self._path)
            sync_directory(self._path.parent)
        else:
            with suppress(OSError):
                self._partial.unlink()


def new_file(path: Path) -> int:
    """Open a new file in the place of whatever has this name; a link there is not followed."""
    path.unlink(missing_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)


def write_whole(path: Path, content: bytes) -> None:
    """Write a small file so that it is complete or absent, also after a loss of power."""
    partial = path.with_name(path.name + PARTIAL)
    with os.fdopen(new_file(partial), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Put the names of a directory on the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
