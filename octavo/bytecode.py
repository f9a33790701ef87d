"""The bytecode of this package in one file, so that a start reads one file instead of hundreds.

Python looks for the source of each module, compares its age with that of a file of bytecode, and
reads that: a tenth of the time to a first token for some three hundred modules. Here the files that
Python has written are put together in Octavo's cache when a process ends. A module is taken from
there while its source has the times and the size that it had then; all others are imported as
always. A cache that cannot be read or written changes nothing but the time. As with Python's files,
a user who may write it decides what this one runs: it is read only if it belongs to this user and
others may not write it.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import marshal
import os
import re
import stat
import sys
import zlib
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import MAGIC_NUMBER, cache_from_source, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from octavo.env import bytecode_directory

_PACKAGE = __name__.partition(".")[0]
_HOME = os.path.dirname(os.path.abspath(__file__))  # Path takes longer at each start
# The version of this layout, then Python's. The checksum and the place of the index follow, of four
# bytes each, then the bytecode of all modules, and the index.
_MAGIC = b"octavo2\0" + MAGIC_NUMBER
_HEADER = len(_MAGIC) + 8
_PYTHON_HEADER = 16  # of a file of bytecode: magic, flags, time and size of the source
_MOST_FILES = 8  # in the cache: one for each place of this package and version of Python
_NAME = re.compile(r"[0-9a-f]{16}\..+")  # of such a file
# The module of the finder that an editable installation puts before Python's own.
_EDITABLE = f"_editable_skbc_{_PACKAGE}"
Facts = tuple[int, int, int]


class _Kept(NamedTuple):
    """A module of the file, and the place of its bytecode there."""

    is_package: bool
    cached: str  # Python's own file
    source: Facts
    begin: int
    end: int
    checksum: int


class _Loader(SourceFileLoader):
    """A loader whose bytecode has been read."""

    def __init__(self, name: str, path: str, code: bytes) -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the module's code, which says where its source is, as tracebacks show."""
        code: CodeType = marshal.loads(self._code)  # noqa: S302 — as Python's own files
        return code if code.co_filename == self.path else super().get_code(fullname)


class _Finder(MetaPathFinder):
    """A finder of the modules that the file has; those it lacks are noted and found by Python's."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._missing: set[str] = set()
        self._process = os.getpid()
        self._index: dict[str, Any] = {}
        self._file = -1
        with contextlib.suppress(OSError, ValueError, EOFError, TypeError):
            self._file = _open(place)
            self._index = _read_index(self._file)
            os.utime(place)  # what is used stays, when old files are removed

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of a module that the file has and whose source is the same."""
        if not fullname.startswith(_PACKAGE + "."):
            return None
        found = self._index.get(fullname)
        if found is None:
            self._missing.add(fullname)
            return None
        kept = _Kept._make(found)
        source = _source_of(fullname, is_package=kept.is_package)
        home = os.path.dirname(os.path.dirname(source) if kept.is_package else source)
        if path is None or home not in path:  # another copy of this package is imported
            return None
        code = self._read(kept) if _facts(source) == kept.source else None
        if code is None:
            self._missing.add(fullname)
            return None
        places = [os.path.dirname(source)] if kept.is_package else None
        loader = _Loader(fullname, source, code)
        spec = spec_from_file_location(
            fullname, source, loader=loader, submodule_search_locations=places
        )
        if spec is not None:
            spec.cached = kept.cached
        return spec

    def _read(self, kept: _Kept) -> bytes | None:
        """Read a module's bytecode; return None if the file has something else there."""
        try:
            code = os.pread(self._file, kept.end - kept.begin, kept.begin)
        except OSError:
            return None
        return code if zlib.crc32(code) == kept.checksum else None

    def write(self) -> None:
        """Write the file anew, if this process has imported what it lacks and Python has kept."""
        if not self._missing or os.getpid() != self._process or sys.dont_write_bytecode:
            return
        self._missing, missing = set(), self._missing
        with contextlib.suppress(OSError):
            if any(_is_compiled(name) for name in missing):
                _write(self._place)


def use_kept_bytecode() -> None:
    """Take modules of this package from the file from now on, and bring it up to date at the end.

    Nothing is done where the cache has no place, as for a user without a home.
    """
    with contextlib.suppress(OSError, RuntimeError):
        finder = _Finder(_place())
        place = next((i for i, each in enumerate(sys.meta_path) if _is_later(each)), 0)
        sys.meta_path.insert(place, finder)
        atexit.register(finder.write)


def _is_later(finder: object) -> bool:
    """Return whether a finder would find this package's sources; hooks of others come before."""
    return finder is PathFinder or type(finder).__module__ == _EDITABLE


def _place() -> Path:
    """Return the file for this place of the package, this Python and its level of optimisation."""
    tag = f"{sys.implementation.cache_tag}-{sys.flags.optimize}"
    digest = hashlib.blake2b(os.fsencode(_HOME), digest_size=8).hexdigest()
    return bytecode_directory() / f"{digest}.{tag}"


def _open(place: Path) -> int:
    """Open the file; raise ValueError if anyone but this user can write it."""
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    facts = os.fstat(descriptor)
    is_ours = facts.st_uid == os.geteuid() and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not is_ours or not stat.S_ISREG(facts.st_mode):
        os.close(descriptor)
        raise ValueError("others can write this file")
    return descriptor


def _read_index(file: int) -> dict[str, Any]:
    """Return the index of a file; raise ValueError if it is damaged or of another version."""
    size = len(_MAGIC)
    header = os.pread(file, _HEADER, 0)
    checksum, begin = (int.from_bytes(header[at : at + 4], "little") for at in (size, size + 4))
    index = os.pread(file, os.fstat(file).st_size, begin)
    if header[:size] != _MAGIC or zlib.crc32(index) != checksum:
        raise ValueError("no index of this version")
    read: dict[str, Any] = marshal.loads(index)  # noqa: S302 — only this user can write it
    return read


def _source_of(name: str, *, is_package: bool) -> str:
    """Return where a module's source is."""
    path = os.path.join(_HOME, *name.split(".")[1:])
    return os.path.join(path, "__init__.py") if is_package else f"{path}.py"


def _facts(path: str) -> Facts | None:
    """Return the time and the size of a source as Python writes them, and when it came there.

    The last differs also where a package is replaced by another version whose sources all have one
    time. Return None if there is no source.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    return int(found.st_mtime) & 0xFFFFFFFF, found.st_size & 0xFFFFFFFF, found.st_ctime_ns


def _compiled(source: str) -> tuple[str, Facts, bytes] | None:
    """Return Python's file of a source, what it is for, and its bytecode, if it is valid."""
    cached, facts = cache_from_source(source), _facts(source)
    try:
        with open(cached, "rb") as file:
            data = file.read()
    except OSError:
        return None
    known = tuple(int.from_bytes(data[at : at + 4], "little") for at in (8, 12))
    if facts is None or data[:8] != MAGIC_NUMBER + bytes(4) or facts[:2] != known:
        return None
    return cached, facts, data[_PYTHON_HEADER:]


def _is_compiled(name: str) -> bool:
    sources = (_source_of(name, is_package=is_package) for is_package in (False, True))
    return any(_compiled(source) is not None for source in sources)


def _modules() -> Iterator[tuple[str, str, bool]]:
    """Yield the name and the source of each module below the package, and whether it is one."""
    for directory, below, files in os.walk(_HOME):
        below[:] = [name for name in below if name != "__pycache__"]
        package = [_PACKAGE, *Path(directory).relative_to(_HOME).parts]
        for file in files:
            stem, ending = os.path.splitext(file)
            if ending == ".py":
                is_package = stem == "__init__"
                name = ".".join(package if is_package else [*package, stem])
                yield name, os.path.join(directory, file), is_package


def _write(place: Path) -> None:
    """Write all modules that Python has compiled, in the place of what is there."""
    index: dict[str, Any] = {}
    parts: list[bytes] = []
    begin = _HEADER
    for name, source, is_package in _modules():
        if (found := _compiled(source)) is not None:
            cached, facts, code = found
            end = begin + len(code)
            index[name] = (is_package, cached, facts, begin, end, zlib.crc32(code))
            parts.append(code)
            begin = end
    listing = marshal.dumps(index)
    numbers = [zlib.crc32(listing), begin]
    header = _MAGIC + b"".join(number.to_bytes(4, "little") for number in numbers)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = place.with_name(f"{place.name}.{os.getpid()}.new")
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.writelines([header, *parts, listing])
        os.replace(new, place)  # a process that has opened the old one keeps it
    except OSError:
        new.unlink(missing_ok=True)
        raise
    ours = [each for each in place.parent.iterdir() if _NAME.fullmatch(each.name)]
    for old in sorted(ours, key=_last_use, reverse=True)[_MOST_FILES:]:
        old.unlink(missing_ok=True)


def _last_use(path: Path) -> float:
    return path.stat().st_mtime
