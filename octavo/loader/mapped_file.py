"""Files of tensors, mapped into memory for reading."""

import mmap
import os
import stat
from pathlib import Path
from typing import Self

from octavo.loader.errors import CheckpointError, CorruptFileError

# Kinds of files that are named by mistake, by their first bytes.
_KNOWN_STARTS = (
    (b"PK\x03\x04", "a zip archive, perhaps a pickled PyTorch checkpoint"),
    (b"\x80\x02", "a pickle"),
    (b"version https://git-lfs", "a Git LFS pointer, which `git lfs pull` replaces by the file"),
    (b"<!DOCTYPE", "a web page, so the download went wrong"),
    (b"<html", "a web page, so the download went wrong"),
    (b"GGUF", "a GGUF file"),
    (b"lmgg", "a GGML file from before GGUF"),
    (b"tjgg", "a GGJT file from before GGUF"),
)


class MappedFile:
    """The bytes of one regular file; pages come from disk when touched, shared by all processes.

    The mapping exists as long as any array made from it. The file must not be truncated during that
    time: the system kills a process that touches a page beyond the end. Write a new version beside
    the old one, or rename it over the old one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # Opening a pipe would block until there is a writer, so the kind is checked first.
            if not stat.S_ISREG(path.stat().st_mode):
                raise CheckpointError("not a regular file", path=path)
            with path.open("rb") as file:
                self._map(file.fileno())
        except FileNotFoundError:
            raise CheckpointError("no such file", path=path) from None
        except OSError as error:
            raise CheckpointError(
                f"cannot be read: {error.strerror or error}", path=path
            ) from error

    @classmethod
    def of_descriptor(cls, path: Path, descriptor: int) -> Self:
        """Map what is open already, such as a sealed copy; `path` is for messages."""
        mapped = cls.__new__(cls)
        mapped.path = path
        mapped._map(descriptor)
        return mapped

    def _map(self, descriptor: int) -> None:
        self.opened = os.fstat(descriptor)  # of this version of the file
        self.num_bytes = self.opened.st_size
        if self.num_bytes == 0:
            raise CorruptFileError("the file is empty", path=self.path, advice="download it again")
        self.buffer = mmap.mmap(descriptor, self.num_bytes, access=mmap.ACCESS_READ)

    def describe_start(self) -> str:
        """Describe the kind of the file, for the message that it is not the expected one."""
        start = self.buffer[:32]
        for prefix, kind in _KNOWN_STARTS:
            if start.startswith(prefix):
                return kind
        return f"a file that starts with the bytes {start[:8].hex(' ')}; download it again"
