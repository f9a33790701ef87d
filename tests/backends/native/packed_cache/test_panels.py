"""Packed weights on disk: the same panels as packed anew, whatever happens to the files."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from octavo.backends.native import _native
from octavo.backends.native.packed_cache import panels, sources
from octavo.backends.native.packed_cache.directory import PackedDirectory
from octavo.backends.native.packed_cache.panels import PackedCache
from octavo.backends.native.packed_cache.sources import SourceFile
from octavo.backends.native.packing import Matrix, Packer
from octavo.backends.stored_rows import StoredRows
from octavo.layers import GateUpLinear, Linear
from octavo.loader.mapped_file import MappedFile
from octavo.options.cpu_types import CpuWeights
from tests.backends.native.test_packing import INPUTS, KEPT, OF_ITS_VALUES, stored

OUTPUTS = 70


@pytest.fixture(autouse=True)
def new_files_are_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files count that a test has just written."""
    monkeypatch.setattr(sources, "SETTLED_SECONDS", -1.0)


class Model:
    """A file of rows of every type, and a directory for their panels."""

    def __init__(self, directory: Path) -> None:
        self.path, self.cache = directory / "weights", directory / "packed"
        self.names = [*KEPT, *OF_ITS_VALUES]
        self.path.write_bytes(
            b"".join(stored(name, OUTPUTS).array.tobytes() for name in self.names)
        )

    @property
    def files(self) -> list[Path]:
        return sorted(self.cache.glob("*.panels"))

    def start(
        self, most_bytes: int = 1 << 30, *, is_cached: bool = True, weights: CpuWeights = "auto"
    ) -> list[bytes]:
        """Pack or map everything, as an engine does that starts; return all panels."""
        file = MappedFile(self.path)
        content = np.frombuffer(file.buffer, np.uint8)
        source = SourceFile.of(self.path, file.opened, content)
        cache = PackedCache(self.cache, most_bytes, (source,), weights)
        team = _native.Team(2, False)
        packer = Packer(team, weights, cache.panels) if is_cached else Packer(team, weights)
        made: list[Matrix] = []
        at = 0
        for name in self.names:
            rows = stored(name, OUTPUTS)
            mapped = content[at : at + rows.array.size].reshape(rows.array.shape)
            at += mapped.size
            parts = [replace(rows, rows=mapped, is_file=True)]
            made.append(packer.matrix(parts, Linear(INPUTS, OUTPUTS)))
            if name == "Q4_K":
                gates = [parts[0].cut(0, 35), parts[0].cut(35, 70)]
                made.append(packer.matrix(gates, GateUpLinear(INPUTS, 35)))
        computed = StoredRows.of(np.arange(INPUTS * 3, dtype=np.float32).reshape(3, -1))
        made.append(packer.matrix([computed], Linear(INPUTS, 3)))
        packer.begin()
        packer.finish()
        assert packer.num_bytes >= sum(matrix.num_bytes for matrix in made)
        return [piece.native.panels.tobytes() for matrix in made for piece in matrix.pieces]


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model(tmp_path)


def test_panels_of_every_type_are_mapped_as_they_were_packed(model: Model) -> None:
    expected = model.start(is_cached=False)
    assert model.start() == expected
    (file,) = model.files
    assert (model.cache.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    written = file.stat().st_ino
    before = file.read_bytes()
    assert model.start() == expected
    assert (file.stat().st_ino, file.read_bytes()) == (written, before)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 4096)


def empty(file: Path) -> None:
    os.truncate(file, 0)


def flip(place: int) -> Callable[[Path], None]:
    """Return what flips one bit of the byte at a place."""

    def change(file: Path) -> None:
        content = bytearray(file.read_bytes())
        content[place] ^= 0x80
        file.write_bytes(content)

    return change


def clear(file: Path) -> None:
    """Make a file of zeros, such as a crash of the machine may leave."""
    file.write_bytes(bytes(file.stat().st_size))


def grow(file: Path) -> None:
    os.truncate(file, file.stat().st_size + 4096)


class Incomparable:
    """Panels whose comparison ends its thread, or fails."""

    def __init__(self, error: type[BaseException]) -> None:
        self._error = error

    @property
    def panels(self) -> None:
        raise self._error


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("threads", "error"), [(0, MemoryError), (1, MemoryError), (1, SystemExit)]
)
def test_a_matrix_that_was_not_compared_is_not_taken_as_intact(
    threads: int, error: type[BaseException]
) -> None:
    checks = panels._Checks()
    matrix: Any = SimpleNamespace(num_bytes=1)
    entry: Any = Incomparable(error)
    rows: Any = None
    check = panels._Check(matrix, entry, rows)
    checks.add(check)
    checks.begin(threads)
    for thread in checks._threads:
        thread.join()
    assert checks.results() == [check]


def test_without_another_thread_everything_is_compared_all_the_same(
    model: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    expected = model.start()
    flip(200_000)(model.files[0])
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert model.start() == expected
    assert "1 matrices are damaged" in caplog.text


@pytest.mark.parametrize(
    "damage",
    [cut, empty, clear, grow, flip(0), flip(9), flip(20), flip(500), flip(200_000), flip(-1)],
)
def test_a_damaged_file_is_packed_anew_and_replaced(
    model: Model, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    expected = model.start()
    (file,) = model.files
    intact, inode = file.read_bytes(), file.stat().st_ino
    damage(file)
    assert file.read_bytes() != intact
    assert model.start() == expected
    assert [record.levelname for record in caplog.records].count("WARNING") == 1
    assert (file.read_bytes(), model.files) == (intact, [file])
    assert file.stat().st_ino != inode


def test_a_matrix_that_the_file_has_not_is_packed_and_added(model: Model) -> None:
    every = model.names
    model.names = every[:3]
    model.start()
    model.names = every
    expected = model.start(is_cached=False)
    assert model.start() == expected
    (file,) = model.files
    inode = file.stat().st_ino
    assert model.start() == expected
    model.names = every[:3]  # a start that needs fewer leaves the file as it is
    model.start()
    assert file.stat().st_ino == inode


def test_a_change_of_what_converts_weights_is_another_build(tmp_path: Path) -> None:
    source = tmp_path / "quant" / "fp8.py"
    source.parent.mkdir()
    source.write_text("a = 1")
    before = panels.build_digest(tmp_path)
    source.with_name(f".#{source.name}").symlink_to("an-editor@locks-it")
    assert panels.build_digest(tmp_path) == before
    source.write_text("a = 2")
    assert panels.build_digest(tmp_path) != before
    assert panels.build_digest() not in (before, panels.build_digest(tmp_path))


def test_another_build_and_a_changed_source_have_files_of_their_own(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = model.start()
    found = model.path.stat()
    content = bytearray(model.path.read_bytes())
    content[100_000] ^= 1  # in no sample, and size and time stay
    with model.path.open("r+b") as file:
        file.write(content)
    os.utime(model.path, ns=(found.st_atime_ns, found.st_mtime_ns))
    changed = model.start()
    assert changed != before
    assert changed == model.start(is_cached=False)
    assert len(model.files) == 2
    monkeypatch.setattr(panels, "build_digest", lambda: b"another")
    assert model.start() == changed
    assert len(model.files) == 3


def test_a_source_that_changes_while_it_is_packed_is_not_kept(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "SETTLED_SECONDS", 1e6)
    model.start()
    assert list(model.cache.iterdir()) == []


def test_each_setting_of_weights_has_a_file_that_stays(model: Model) -> None:
    settings: list[CpuWeights] = ["auto", "int8", "auto", "int8"]
    found = [model.start(weights=each) for each in settings[:2]]
    inodes = [file.stat().st_ino for file in model.files]
    assert len(inodes) == 2
    assert [model.start(weights=each) for each in settings[2:]] == found
    assert [file.stat().st_ino for file in model.files] == inodes


def test_files_stay_below_a_size_and_the_longest_unused_go_first(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Path] = []
    for build in (b"1", b"2", b"3"):
        monkeypatch.setattr(panels, "build_digest", lambda build=build: build)
        model.start()
        (new,) = set(model.files) - set(kept)
        kept.append(new)
        os.utime(new, (len(kept), len(kept)))
    size = kept[0].stat().st_size
    monkeypatch.setattr(panels, "build_digest", lambda: b"1")
    model.start()  # is used again
    monkeypatch.setattr(panels, "build_digest", lambda: b"4")
    model.start(most_bytes=3 * size)
    assert kept[0].exists()
    assert not kept[1].exists()
    assert len(model.files) == 3
    model.start(most_bytes=size - 1)
    assert len(model.files) == 3
    monkeypatch.setattr(panels, "build_digest", lambda: b"5")
    model.start(most_bytes=size - 1)  # too small for one file, which is then not kept
    assert len(model.files) == 3


def test_a_full_disk_leaves_nothing_behind(
    model: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    expected = model.start(is_cached=False)
    for name in ("posix_fallocate", "fsync", "rename"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            assert model.start() == expected
        assert list(model.cache.iterdir()) == []
    assert caplog.text.count("packed weights are not kept") == 3


def test_a_limit_of_file_sizes_is_a_warning_too(model: Model) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        assert len(model.start()) > 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(model.cache.iterdir()) == []


def shared(directory: Path) -> None:
    directory.mkdir()
    directory.chmod(0o770)


def linked(directory: Path) -> None:
    shared(directory.parent / "elsewhere")
    directory.symlink_to(directory.parent / "elsewhere")


def occupied(directory: Path) -> None:
    directory.write_text("a file")


@pytest.mark.parametrize("make", [shared, linked, occupied])
def test_a_directory_that_others_could_write_is_not_used(
    model: Model, make: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    make(model.cache)
    assert model.start() == model.start(is_cached=False)
    assert "packed weights are not kept" in caplog.text
    assert model.cache.is_file() or list(model.cache.iterdir()) == []


def test_the_directory_may_be_a_link(model: Model) -> None:
    (model.cache.parent / "elsewhere").mkdir(0o700)
    model.cache.symlink_to(model.cache.parent / "elsewhere")
    assert model.start() == model.start(is_cached=False)
    assert len(model.files) == 1


def test_neither_links_nor_pipes_are_opened(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    expected = model.start()
    (file,) = model.files
    other = file.parent.parent / "other"
    file.rename(other)
    intact = other.read_bytes()
    file.symlink_to(other)
    assert model.start() == expected
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    assert model.start() == expected
    assert other.read_bytes() == intact
    assert caplog.text.count("the weights are packed anew") == 2
    assert "not kept" not in caplog.text


def test_writers_at_once_and_killed_ones_do_no_harm(tmp_path: Path) -> None:
    """The last one to finish counts; what a killed writer left is removed by the next one."""
    directory = PackedDirectory(tmp_path / "packed", 1 << 20)

    def first(descriptor: int) -> None:
        os.write(descriptor, b"first")
        directory.replace("name", 6, lambda to: void(os.write(to, b"second")))
        assert directory.path_of("name").read_bytes() == b"second"
        assert len(list(directory.path.iterdir())) == 2  # the unfinished one is still there

    def void(_: int) -> None:
        """Discard the number of bytes."""

    left = directory.path / f"name.{16 * '0'}.unfinished"
    left.write_bytes(b"left")
    directory.replace("name", 5, first)
    assert directory.path_of("name").read_bytes() == b"first"
    assert list(directory.path.iterdir()) == [directory.path_of("name")]
    written = directory.open("name")
    assert written is not None
    fcntl.flock(written, fcntl.LOCK_EX | fcntl.LOCK_NB)  # its writer holds it no more
    os.close(written)
    directory.close()


def test_a_file_that_another_writes_counts_and_one_of_a_dead_writer_is_removed(
    tmp_path: Path,
) -> None:
    directory = PackedDirectory(tmp_path / "packed", 10)
    directory.replace("old", 4, lambda to: None)
    left = directory.path / f"name.{16 * '0'}.unfinished"

    def both(_: int) -> None:
        """Write two more while the first one, of five bytes, is not finished."""
        left.write_bytes(bytes(50))  # counts nothing: its writer is dead
        directory.replace("second", 5, lambda to: None)
        assert not left.exists()
        assert not directory.path_of("old").exists()
        with pytest.raises(OSError, match="would be 11 bytes"):
            directory.replace("third", 6, lambda to: None)
        assert directory.path_of("second").exists()

    directory.replace("first", 5, both)
    assert {path.name for path in directory.path.iterdir()} == {"first.panels", "second.panels"}
    left.write_bytes(b"left")
    PackedDirectory(tmp_path / "packed", 10).close()
    assert not left.exists()
    directory.close()


@pytest.mark.parametrize("is_over", [False, True], ids=["it holds the lock", "it is gone again"])
def test_a_file_that_another_start_removes_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_over: bool
) -> None:
    """The other one takes it for that of a dead writer: nothing is refused, and nothing lost."""
    directory = PackedDirectory(tmp_path / "packed", 1 << 20)
    system = fcntl.flock

    def flock(descriptor: int, flags: int) -> None:
        monkeypatch.setattr(fcntl, "flock", system)
        (made,) = directory.path.iterdir()
        other = os.open(made, os.O_RDWR)
        system(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        made.unlink()
        if is_over:
            os.close(other)
        try:
            system(descriptor, flags)
        finally:
            if not is_over:
                os.close(other)

    monkeypatch.setattr(fcntl, "flock", flock)
    directory.check_use()
    monkeypatch.setattr(fcntl, "flock", flock)
    directory.replace("name", 5, lambda to: os.ftruncate(to, 5))
    assert [path.name for path in directory.path.iterdir()] == ["name.panels"]
    directory.close()


def test_files_that_are_none_of_the_cache_stay(tmp_path: Path) -> None:
    """A directory of the user's own may have files that are called unfinished."""
    (tmp_path / "thesis.unfinished").write_bytes(b"chapter one")
    directory = PackedDirectory(tmp_path, 10)
    directory.replace("name", 5, lambda to: None)
    directory.close()
    assert (tmp_path / "thesis.unfinished").read_bytes() == b"chapter one"


def test_the_file_that_is_replaced_goes_first_where_both_have_no_room(tmp_path: Path) -> None:
    directory = PackedDirectory(tmp_path / "packed", 10)
    directory.replace("other", 4, lambda to: None)
    directory.replace("name", 5, lambda to: None)

    def write(_: int) -> None:
        sizes = [path.stat().st_size for path in directory.path.iterdir()]
        assert sorted(sizes) == [4, 6]

    directory.replace("name", 6, write)
    assert directory.path_of("other").exists()
    directory.close()


@pytest.mark.parametrize("size", [0, 1, 7, 63, 64, 65, 200])
def test_every_flipped_bit_changes_the_checksum(size: int) -> None:
    content = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    found = {_native.checksum(content), _native.checksum(np.append(content, np.uint8(0)))}
    for bit in range(8 * size):
        content[bit // 8] ^= 1 << bit % 8
        found.add(_native.checksum(content))
        content[bit // 8] ^= 1 << bit % 8
    assert len(found) == 2 + 8 * size
