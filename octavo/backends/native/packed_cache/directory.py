"""The directory of packed weights: only its owner writes there, and it stays below a size.

A file appears under its name when it is complete (it is renamed), so two processes that write the
same one at once do no harm. No file is opened through a link, and nothing is used that others could
have written; the directory's path may be a link to one that this user owns. When a file needs room,
those that were not used for the longest time go; the files that others are writing count too. A
writer has its unfinished file locked: one without a lock was left by a writer that is dead, and is
removed when a directory is opened or written to.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

_SUFFIX, _UNFINISHED = ".panels", ".unfinished"
_IS_UNFINISHED = re.compile(r".+\.[0-9a-f]{16}\.unfinished")  # no file of anything else
_MOST_TRIES = 16
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class PackedDirectory:
    """An open directory; every method raises OSError where the system refuses."""

    def __init__(self, path: Path, most_bytes: int) -> None:
        self.path = path
        self.most_bytes = most_bytes
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        self._directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.close = weakref.finalize(self, os.close, self._directory)
        _check_owner(self._directory)
        with contextlib.suppress(OSError):
            for name in os.listdir(self._directory):
                self._remove_if_left(name)

    def check_use(self) -> None:
        """Raise OSError if no file can be made here, and there is none to map either."""
        if not any(name.endswith(_SUFFIX) for name in os.listdir(self._directory)):
            unfinished, descriptor = self._make("check")
            self._remove(unfinished)
            os.close(descriptor)

    def path_of(self, name: str) -> Path:
        return self.path / (name + _SUFFIX)

    def open(self, name: str) -> int | None:
        """Open a file to read it, and note that it is used; None if there is none."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(name + _SUFFIX, flags, dir_fd=self._directory)
        except FileNotFoundError:
            return None
        try:
            _check_owner(descriptor)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise PermissionError("it is not a regular file")
            with contextlib.suppress(OSError):  # on a file system that is only read
                os.utime(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def replace(self, name: str, num_bytes: int, write: Callable[[int], None]) -> None:
        """Write a file of this size, and put it in the place of the one of that name."""
        if num_bytes > self.most_bytes:
            raise OSError(
                f"the file would have {num_bytes:,} bytes, and all together may have "
                f"{self.most_bytes:,} (packed_cache_bytes)"
            )
        unfinished, descriptor = self._make(name)
        try:
            os.ftruncate(descriptor, num_bytes)  # from now on, it counts for other writers
            self._make_room(name + _SUFFIX)
            write(descriptor)
            directories = {"src_dir_fd": self._directory, "dst_dir_fd": self._directory}
            os.rename(unfinished, name + _SUFFIX, **directories)
            os.fsync(self._directory)
        except BaseException:
            self._remove(unfinished)
            raise
        finally:
            os.close(descriptor)

    def _make(self, name: str) -> tuple[str, int]:
        """Make an unfinished file, which is locked until it is closed.

        Another process may find it before it is locked, and remove it: then another one is made.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        for _ in range(_MOST_TRIES):
            unfinished = f"{name}.{secrets.token_hex(8)}{_UNFINISHED}"
            descriptor = os.open(unfinished, flags, 0o600, dir_fd=self._directory)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.stat(unfinished, dir_fd=self._directory, follow_symlinks=False)
            except BaseException as error:
                self._remove(unfinished)
                os.close(descriptor)
                if not isinstance(error, (BlockingIOError, FileNotFoundError)):
                    raise
            else:
                return unfinished, descriptor
        raise OSError(f"other processes removed {_MOST_TRIES} files before they were locked")

    def _make_room(self, replaced: str) -> None:
        """Remove the file that is replaced, and those used longest ago, until all have room."""
        files, unfinished = [], 0
        for each, found in self._entries():
            if _IS_UNFINISHED.fullmatch(each):
                unfinished += found.st_size
            elif each.endswith(_SUFFIX):
                files.append((each != replaced, found.st_mtime_ns, each, found.st_size))
        if unfinished > self.most_bytes:
            raise OSError(
                f"with those that others are writing there would be {unfinished:,} bytes, and all "
                f"together may have {self.most_bytes:,} (packed_cache_bytes)"
            )
        total = unfinished + sum(size for *_, size in files)
        for _, _, each, size in sorted(files):
            if total <= self.most_bytes:
                break
            self._remove(each)
            total -= size

    def _entries(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield all files, without those that writers have left."""
        for name in os.listdir(self._directory):
            if self._remove_if_left(name):
                continue
            with contextlib.suppress(FileNotFoundError):
                yield name, os.stat(name, dir_fd=self._directory, follow_symlinks=False)

    def _remove_if_left(self, name: str) -> bool:
        """Remove an unfinished file unless its writer has it locked; return whether it is gone."""
        if not _IS_UNFINISHED.fullmatch(name):
            return False
        with contextlib.suppress(OSError):
            # It is opened to write, since network file systems lock only such descriptors.
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, flags, dir_fd=self._directory)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._remove(name)
                return True
            finally:
                os.close(descriptor)
        return False

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._directory)


def _check_owner(descriptor: int) -> None:
    """Refuse what belongs to another user, or what others may write."""
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid():
        raise PermissionError(f"it belongs to user {found.st_uid}, and this is {os.geteuid()}")
    if found.st_mode & _OTHERS_WRITE:
        raise PermissionError("other users may write to it (chmod go-w)")


def reason(error: OSError) -> str:
    """Return the system's description of an error, without the path."""
    return error.strerror or str(error)
