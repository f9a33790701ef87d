"""The files of an adapter where its owner keeps them: which they are, and how they are opened.

An adapter is a directory as PEFT saves it, settings and tensors, or one file of GGUF. Files may be
symbolic links, as in the Hugging Face cache; what they lead to must be a regular file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from octavo.adapter_copies.errors import (
    MISSING,
    NOT_AN_ADAPTER,
    TOO_LARGE,
    UNREADABLE,
    AdapterFileError,
)

SETTINGS, TENSORS, GGUF = "adapter_config.json", "adapter_model.safetensors", "adapter.gguf"
MAX_SETTINGS_BYTES = 1 << 20
_PICKLES = ("adapter_model.bin", "adapter_model.pt")
FileIdentity = tuple[str, int, int, int, int]
Fingerprint = tuple[FileIdentity, ...]
_MOST_LISTED = 1000  # entries of a directory that is searched for a file of GGUF


class OpenFile(NamedTuple):
    """A file of an adapter, opened for reading."""

    name: str  # in a copy
    path: Path
    descriptor: int
    num_bytes: int


def sources(path: Path) -> dict[str, Path]:
    """Return the files of an adapter by their names in a copy; raise AdapterFileError if none is.

    Nothing is opened.
    """
    try:
        if not path.is_dir():
            if path.suffix.lower() == ".gguf" and path.exists():
                return {GGUF: path}
            raise _no_adapter(path)
        if (path / TENSORS).exists():
            return {SETTINGS: path / SETTINGS, TENSORS: path / TENSORS}
        for name in _PICKLES:
            if (path / name).exists():
                raise AdapterFileError(
                    NOT_AN_ADAPTER,
                    f"{path} has {name}, a pickle, which could run code, and no {TENSORS}: save "
                    "the adapter again with safe_serialization=True",
                )
        found = [each for each in _listed(path) if each.endswith(".gguf")]
        if len(found) == 1:
            return {GGUF: path / found[0]}
        raise _no_adapter(path, f"; it has {len(found)} files of GGUF" if found else "")
    except (OSError, ValueError) as error:  # a name that is too long, or has a zero byte
        raise _unreadable(path, error) from None


def _listed(path: Path) -> list[str]:
    names = []
    with os.scandir(path) as entries:
        for entry in entries:
            names.append(entry.name)
            if len(names) > _MOST_LISTED:
                raise AdapterFileError(
                    NOT_AN_ADAPTER, f"{shown(path)} has more than {_MOST_LISTED} entries"
                )
    return names


@contextmanager
def opened(path: Path, most_bytes: int) -> Iterator[list[OpenFile]]:
    """Open an adapter's files; raise AdapterFileError for what is missing, special or too large."""
    with ExitStack() as stack:
        files: list[OpenFile] = []
        for name, place in sources(path).items():
            limit = min(MAX_SETTINGS_BYTES, most_bytes) if name == SETTINGS else most_bytes
            descriptor, num_bytes = _open(place, limit)
            stack.callback(os.close, descriptor)
            files.append(OpenFile(name, place, descriptor, num_bytes))
        total = sum(each.num_bytes for each in files)
        if total > most_bytes:
            raise _too_large(path, total, most_bytes)
        yield files


def _open(path: Path, most_bytes: int) -> tuple[int, int]:
    """Open a regular file of at most so many bytes; return its descriptor and its size."""
    try:
        # Without waiting: a pipe's other end may never come.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size <= most_bytes:
        return descriptor, status.st_size
    os.close(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise AdapterFileError(UNREADABLE, f"{shown(path)} is not a regular file")
    raise _too_large(path, status.st_size, most_bytes)


def fingerprint(path: Path) -> Fingerprint:
    """Return what changes whenever a file of an adapter does; raise AdapterFileError if none is."""
    found = []
    for name, place in sources(path).items():
        try:
            status = os.stat(place)
        except OSError as error:
            raise _unreadable(place, error) from None
        found.append(identity(name, status))
    return tuple(found)


def identity(name: str, status: os.stat_result) -> FileIdentity:
    """Return what changes whenever a file does, or another takes its place."""
    times = status.st_mtime_ns, status.st_ctime_ns
    return name, status.st_ino, status.st_size, *times


def shown(path: Path) -> str:
    """Return a path for an error: quoted, and not longer than a line."""
    return repr(str(path)[:256])


def _unreadable(path: Path, error: OSError | ValueError) -> AdapterFileError:
    if isinstance(error, FileNotFoundError):
        return AdapterFileError(MISSING, f"there is no {shown(path)}, which an adapter needs")
    why = error.strerror if isinstance(error, OSError) else str(error)
    return AdapterFileError(UNREADABLE, f"{shown(path)} cannot be read: {why}")


def _too_large(path: Path, num_bytes: int, most_bytes: int) -> AdapterFileError:
    return AdapterFileError(
        TOO_LARGE,
        f"{shown(path)} has {num_bytes:,} bytes, of at most {most_bytes:,} (max_lora_bytes)",
    )


def _no_adapter(path: Path, more: str = "") -> AdapterFileError:
    return AdapterFileError(
        MISSING if not path.exists() else NOT_AN_ADAPTER,
        f"{shown(path)} is no adapter: it must be a directory with {SETTINGS} and {TENSORS}, as "
        f"PEFT saves them, or a file of GGUF{more}",
    )
