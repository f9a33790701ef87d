"""A reader of files for an engine in the caller's own process, which has no loader beside it.

It reads as a loader does, in a thread: into sealed memory, below the named directories alone.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from octavo.loader_process.connection import NO_MEMORY, FileError, TensorFile, open_sealed
from octavo.loader_process.messages import FileRead, close_all
from octavo.loader_process.read import Directories, FileRefusedError, read_file


class OwnReader:
    """A thread that reads files; implements `octavo.engine.tensor_files.FileReader`."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = Directories(directories)
        self._thread = ThreadPoolExecutor(1, "octavo files")
        self._errors: deque[tuple[int, FileError]] = deque()  # filled by the thread
        self._next_number = 0

    def request(
        self,
        path: str,
        then: Callable[[TensorFile], object],
        beside: Sequence[str] = (),
        names: Sequence[str] = (),
    ) -> int:
        """Begin to read a file, which `then` gets in the thread; return the request's number."""
        number, self._next_number = self._next_number, self._next_number + 1
        self._thread.submit(self._read, number, Path(path), then, tuple(beside), tuple(names))
        return number

    def take(self) -> list[tuple[int, FileError]]:
        """Return the requests that have failed since the last call."""
        taken = []
        while self._errors:
            taken.append(self._errors.popleft())
        return taken

    def _read(
        self,
        number: int,
        path: Path,
        then: Callable[[TensorFile], object],
        beside: Sequence[str],
        names: Sequence[str],
    ) -> None:
        try:
            opened = read_file(self._directories, path, beside, names)
            try:
                sizes = [os.fstat(descriptor).st_size for descriptor in opened]
                file = open_sealed(path, FileRead(number, *sizes), *opened)
            finally:
                close_all(opened)
        except FileRefusedError as error:
            self._errors.append((number, FileError(error.code, str(error))))
        except Exception as error:
            why = f"it cannot be read: {type(error).__name__}: {error}"
            self._errors.append((number, FileError(NO_MEMORY, why)))
        else:
            then(file)
