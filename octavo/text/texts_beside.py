"""The files of a tokenizer beside a model's weights, by name; they may be read later.

An engine's process gives up files when it has loaded. It needs the tokenizer only if a request asks
for a shape, so it keeps these files open, which costs no memory.
"""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from octavo.loader.strict_json import check_size, unreadable

# Files that describe the tokens; templates are not among them.
NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "config.json",
)


class TextsBeside(Protocol):
    """The small files of a directory."""

    @property
    def directory(self) -> Path:
        """The directory, for messages."""

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is no such file."""


class Directory:
    """The files of a directory as they are when they are read."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def read(self, name: str) -> bytes | None:
        path = self.directory / name
        try:
            if not path.is_file():
                return None
            check_size(path.stat().st_size, path)
            return path.read_bytes()
        except OSError as error:
            raise unreadable(error, path) from error


class OpenTexts:
    """The files of a directory that describe tokens, kept open."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._descriptors: dict[str, int] = {}
        for name in NAMES:
            with suppress(FileNotFoundError):
                descriptor = os.open(directory / name, os.O_RDONLY | os.O_CLOEXEC)
                self._descriptors[name] = descriptor
                weakref.finalize(self, os.close, descriptor)

    def read(self, name: str) -> bytes | None:
        descriptor, path = self._descriptors.get(name), self.directory / name
        if descriptor is None:
            return None
        try:
            check_size(os.fstat(descriptor).st_size, path)
            with open(descriptor, "rb", closefd=False) as file:
                file.seek(0)
                return file.read()
        except OSError as error:
            raise unreadable(error, path) from error
