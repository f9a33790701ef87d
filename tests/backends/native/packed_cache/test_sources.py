"""Files of weights: which are the same, by times that the kernel keeps or by their content."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from octavo.backends.native import _native
from octavo.backends.native.packed_cache import sources
from octavo.backends.native.packed_cache.sources import SourceFile, Sources
from octavo.backends.native.panels import MatrixRows
from octavo.backends.stored_rows import StoredRows
from octavo.quant.methods.tables import table_rows

EXT4, SQUASHFS, OVERLAY, NFS = 0xEF53, 0x73717368, 0x794C7630, 0x6969
SIZE = 40 << 20  # three pieces of a checksum
UNSAMPLED = (20 << 20) + 300_000


@pytest.fixture
def content() -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.zeros(SIZE, np.uint8)


def inode(number: int = 7, *, fraction: int = 0) -> Any:
    """Return what the system says of a file whose times are fixed, but for a fraction."""
    return SimpleNamespace(
        st_ino=number, st_size=SIZE, st_mtime_ns=10**18, st_ctime_ns=10**18 + fraction
    )


def on(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "file_system", lambda path: kind)


@pytest.mark.parametrize(
    ("kind", "fraction", "is_whole"),
    [(EXT4, 1, False), (EXT4, 0, True), (SQUASHFS, 0, True), (OVERLAY, 1, True), (NFS, 1, True)],
)
def test_where_times_are_not_the_kernels_own_only_the_content_counts(
    kind: int,
    fraction: int,
    is_whole: bool,
    content: np.ndarray[Any, np.dtype[np.uint8]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on(kind, monkeypatch)
    one = SourceFile.of(tmp_path, inode(fraction=fraction), content)
    copy = SourceFile.of(tmp_path, inode(8, fraction=fraction), content)
    content[UNSAMPLED] = 1
    other = SourceFile.of(tmp_path, inode(fraction=fraction), content)
    assert one.is_whole == is_whole
    assert (copy.digest == one.digest) == is_whole
    assert (other.digest != one.digest) == is_whole  # else their times differ


def test_files_of_two_file_systems_differ(
    content: np.ndarray[Any, np.dtype[np.uint8]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(EXT4, monkeypatch)
    found = []
    for number in (1, 2):
        monkeypatch.setattr(os, "statvfs", lambda _, n=number: SimpleNamespace(f_fsid=n))
        found.append(SourceFile.of(tmp_path, inode(fraction=1), content).digest)
    assert found[0] != found[1]


def test_a_change_without_a_time_is_noticed_before_panels_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "SETTLED_SECONDS", -1.0)
    monkeypatch.setattr(sources, "_facts", lambda path, found: (found.st_size,))
    on(SQUASHFS, monkeypatch)
    path = tmp_path / "weights"
    path.write_bytes(bytes(100))
    file = SourceFile.of(path, path.stat(), np.fromfile(path, np.uint8))
    Sources([file]).check(0.0)
    path.write_bytes(bytes(99) + b"1")
    with pytest.raises(OSError, match="has just been changed"):
        Sources([file]).check(0.0)
    assert replace(file, is_whole=False).is_unchanged(0.0)  # by its times alone it is the same
    path.write_bytes(b"")  # too short to be mapped
    monkeypatch.setattr(sources, "_facts", lambda path, found: (100,))
    assert not replace(file, is_whole=True).is_unchanged(0.0)
    path.unlink()
    assert not file.is_unchanged(0.0)


def test_equal_codes_of_unequal_tables_are_of_unequal_recipes() -> None:
    """A table that comes with a file is no part of the rows' bytes."""
    codes, scales = np.zeros((2, 1, 16), np.uint8), np.ones((2, 1), np.float32)
    found = set()
    for first in (0.0, 0.0, 1.0):
        table = np.arange(first, first + 16, dtype=np.float32)
        layout, rows = table_rows(codes, scales, table, "NF4")
        matrix = MatrixRows([StoredRows(layout, 32, rows)], _native.Format.U8, 32)
        found.add(Sources([]).recipe(matrix))
    assert len(found) == 2


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="this system has no /proc")
def test_the_kind_of_a_file_system_is_the_systems_number(tmp_path: Path) -> None:
    assert sources.file_system(Path("/proc")) == 0x9FA0
    assert sources.file_system(tmp_path / "none") == 0
