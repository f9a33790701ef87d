"""Panels from the file of an earlier start, checked before they are used; packed if there is none.

Threads compare the checksum of every matrix with that of the file, while the program is recorded
and the tokenizer is read. This reads the panels once, as the first step would have to. A damaged
matrix is packed from its rows into private copies of the pages, and the file is replaced.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

from octavo.backends.native import _native
from octavo.backends.native.packed_cache.directory import PackedDirectory, reason
from octavo.backends.native.packed_cache.file import Entry, LaidOutFile, map_file
from octavo.backends.native.packed_cache.sources import SourceFile, Sources
from octavo.backends.native.panels import FreshPanels, MatrixRows, PackableRows

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PackedCache:
    """The place of packed weights, and the files that the weights of one model come from."""

    path: Path
    most_bytes: int
    files: tuple[SourceFile, ...]
    weights: str  # the formats that were asked for, each of which has a file of its own
    share: str = ""  # what a rank has of them, likewise

    def panels(self, store: _native.Store, team: _native.Team) -> CachedPanels:
        return CachedPanels(store, team, self)


_ROOT = Path(__file__).parents[3]
# What weights pass through before they are packed: some types are converted in Python.
_CONVERTING = ("quant", "models", "loader", "backends")


def build_digest(root: Path = _ROOT) -> bytes:
    """Return a digest of the code that reads, converts and packs: other code may pack otherwise."""
    content = np.fromfile(str(_native.__file__), np.uint8)
    found = blake2b(_native.checksum(content).to_bytes(8, "little"), digest_size=16)
    for package in _CONVERTING:
        for path in sorted((root / package).rglob("*.py")):
            if path.name.startswith("."):  # the lock of an editor, a link that leads nowhere
                continue
            source = path.read_bytes()
            found.update(f"{path.relative_to(root)} {len(source)}\n".encode() + source)
    return found.digest()


class CachedPanels:
    """Panels that are kept on disk; implements `octavo.backends.native.panels.Panels`."""

    def __init__(self, store: _native.Store, team: _native.Team, cache: PackedCache) -> None:
        self._store, self._team = store, team
        self._fresh = FreshPanels(store, team)
        self._sources = Sources(cache.files)
        key = blake2b(self._sources.digest + build_digest(), digest_size=16)
        key.update(f"{cache.weights}\n{cache.share}".encode())
        self._name = key.hexdigest()
        self._made: dict[str, tuple[_native.Matrix, bool]] = {}  # by recipe; whether it is whole
        self._must_write = False
        self._checks = _Checks()
        self._entries: dict[str, Entry] = {}
        self._directory: PackedDirectory | None = None
        self._path = cache.path
        try:
            self._directory = PackedDirectory(cache.path, cache.most_bytes)
        except OSError as error:
            _log.warning("packed weights are not kept: %s: %s", self._path, reason(error))
            return
        self._path = self._directory.path_of(self._name)
        try:
            self._open(self._directory)
        except (OSError, ValueError) as error:
            why = reason(error) if isinstance(error, OSError) else error
            _log.warning("%s: %s; the weights are packed anew", self._path, why)

    def _open(self, directory: PackedDirectory) -> None:
        descriptor = directory.open(self._name)
        if descriptor is None:
            return
        try:
            self._entries = map_file(descriptor)
        finally:
            os.close(descriptor)

    def matrix(self, rows: MatrixRows) -> _native.Matrix:
        if rows.held == "nothing":
            return self._fresh.matrix(rows)
        is_whole = rows.held == "whole"
        recipe = self._sources.recipe(rows)
        entry = self._entries.get(recipe)
        if entry is None:
            native = self._fresh.matrix(rows)
            self._must_write = True
        else:
            native = self._store.place(
                rows.format, rows.outputs, rows.inputs, entry.panels, entry.panels, is_whole
            )
            check = _Check(native, entry, rows)
            if rows.is_file:
                self._checks.add(check)
            elif not check.is_intact():  # at once, so that the memory of the rows can be freed
                self._repair([check])
        self._made[recipe] = native, is_whole
        return native

    def begin(self) -> None:
        self._checks.begin(self._team.size - 1)
        self._fresh.begin()

    def finish(self) -> None:
        self._repair(self._checks.results())
        self._fresh.finish()
        if self._must_write:
            self._write()
        elif self._made:
            _log.info("packed weights: %d matrices mapped from %s", len(self._made), self._path)
        self._must_write, self._made, self._entries = False, {}, {}

    def _repair(self, damaged: list[_Check]) -> None:
        if not damaged:
            return
        self._must_write = True
        _log.warning("%s: %d matrices are damaged; they are packed anew", self._path, len(damaged))
        for check in damaged:
            found = PackableRows(check.rows)
            self._store.pack_over(
                matrix=check.matrix,
                type=found.stored,
                rows=found.places,
                owner=found.owner,
                file_pages=found.pages,
                tensors=found.tensors,
                factors=found.factors,
                whole=check.rows.held == "whole",
            )
        self._fresh.finish()

    def _write(self) -> None:
        """Write all matrices for the next start; where that fails, log why."""
        if self._directory is None:
            return
        made = {}
        for recipe, (matrix, is_whole) in self._made.items():
            panels = self._store.panels(matrix, is_whole)
            made[recipe] = (panels, _native.checksum(panels))
        file = LaidOutFile(made)

        def write(descriptor: int) -> None:
            self._sources.check(os.fstat(descriptor).st_mtime)
            file.write(descriptor)

        try:
            self._directory.replace(self._name, file.num_bytes, write)
        except OSError as error:
            _log.warning("packed weights are not kept: %s: %s", self._path, reason(error))
            return
        _log.info("packed weights: %d matrices kept in %s", len(made), self._path)


@dataclass(frozen=True, slots=True)
class _Check:
    """A matrix from the file, and the rows that it is packed from if it is damaged."""

    matrix: _native.Matrix
    entry: Entry
    rows: MatrixRows

    def is_intact(self) -> bool:
        """Return whether the panels have their checksum; False where that cannot be found out."""
        try:
            return _native.checksum(self.entry.panels) == self.entry.checksum
        except Exception:
            _log.exception("a matrix cannot be compared with its checksum")
            return False


class _Checks:
    """Comparisons of checksums, in threads that run beside the interpreter.

    A matrix is used as it is only if a comparison has ended well, whatever becomes of its thread.
    """

    def __init__(self) -> None:
        self._added: list[_Check] = []
        self._waiting: deque[int] = deque()  # their numbers, until a thread takes them
        self._intact: set[int] = set()
        self._threads: list[threading.Thread] = []

    def add(self, check: _Check) -> None:
        self._added.append(check)

    def begin(self, count: int) -> None:
        """Start this many threads for what was added."""
        self._waiting = deque(
            # The largest first, so that threads end together.
            sorted(range(len(self._added)), key=lambda each: -self._added[each].matrix.num_bytes)
        )
        for _ in range(min(count, len(self._added))):
            thread = threading.Thread(target=self._work, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system has no more threads: `results` does what is left
                return
            self._threads.append(thread)

    def results(self) -> list[_Check]:
        """Make what is left, wait for the threads, and return what is not known to be intact."""
        self._work()
        for thread in self._threads:
            thread.join()
        found = [check for each, check in enumerate(self._added) if each not in self._intact]
        self._added, self._intact, self._threads = [], set(), []
        return found

    def _work(self) -> None:
        while True:
            try:
                each = self._waiting.popleft()
            except IndexError:
                return
            if self._added[each].is_intact():
                self._intact.add(each)
