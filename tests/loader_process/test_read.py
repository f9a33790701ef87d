"""A loader reads regular tensor files below its directories, within bounds, into sealed memory."""

from __future__ import annotations

import errno
import json
import mmap
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.loader_process import read as reading
from octavo.loader_process.messages import (
    MAX_BESIDE_BYTES,
    MAX_FILE_BYTES,
    MAX_HEADER_BYTES,
    close_all,
)
from octavo.loader_process.read import (
    DAMAGED,
    OUTSIDE,
    TOO_LARGE,
    UNREADABLE,
    Directories,
    FileRefusedError,
    read_file,
)
from octavo.loader_process.sealed import SpareMemory
from tests.loader.make_files import safetensors_bytes, with_header, write_safetensors
from tests.loader_process.files import ARRAYS, no_descriptor_left, read_both_ends, write_file


def code_of(directory: Path, path: Path, *beside: str) -> str:
    """Return why a file is refused; nothing is left open."""
    with no_descriptor_left(), pytest.raises(FileRefusedError) as caught:
        read_file(Directories([directory]), path, beside)
    return caught.value.code


def test_the_engine_gets_every_tensor_and_what_lies_beside_the_file(tmp_path: Path) -> None:
    path = write_file(tmp_path)
    (tmp_path / "config.json").write_text('{"r": 8}')
    with no_descriptor_left():
        file = read_both_ends(tmp_path, path, "config.json", "absent.json")
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(file.checkpoint.read(name), array)
        assert dict(file.checkpoint.metadata) == {"sum": "66"}
        assert file.beside == {"config.json": b'{"r": 8}'}
        content = path.read_bytes()
        assert file.num_bytes == len(content)
        del file


def test_memory_that_was_taken_before_has_the_next_file_whatever_its_size(tmp_path: Path) -> None:
    spare = SpareMemory(1 << 20)
    rows = (8, 8, 4000, 2, 1 << 16, 8)  # equal, larger, smaller, above the bound, and none then
    was_there = []
    with no_descriptor_left():
        for number, count in enumerate(rows):
            array = np.full((count, 8), number, np.float32)
            path = tmp_path / f"{number}.safetensors"
            write_safetensors(path, {"numbers": array})
            spare.fill()
            was_there.append(spare.is_there)
            opened = read_file(Directories([tmp_path]), path, (), (), spare)
            assert not spare.is_there, "each file has memory of its own"
            assert os.pread(opened[0], 1 << 22, 0) == path.read_bytes()
            with pytest.raises(OSError, match="not permitted"):
                os.pwrite(opened[0], b"x", 0)
            close_all(opened)
    assert was_there == [False, True, True, True, True, False]


@pytest.mark.parametrize("call", ["memfd_create", "posix_fallocate"])
def test_a_system_without_memory_leaves_the_next_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    spare, path = SpareMemory(1 << 20), write_file(tmp_path)
    with no_descriptor_left():
        close_all(read_file(Directories([tmp_path]), path, (), (), spare))
        with monkeypatch.context() as idle:
            idle.setattr(os, call, refuse)
            spare.fill()
        assert not spare.is_there
        close_all(read_file(Directories([tmp_path]), path, (), (), spare))


def test_nobody_can_change_what_was_read(tmp_path: Path) -> None:
    path = write_file(tmp_path)
    content, table = opened = read_file(Directories([tmp_path]), path, ())
    path.write_bytes(b"something else")
    for descriptor in (content, table):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, 1)
        with pytest.raises(PermissionError):
            os.pwrite(descriptor, b"x", 0)
        with pytest.raises(PermissionError):
            mmap.mmap(descriptor, 1, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    close_all(opened)


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda d: d / "absent", UNREADABLE),
        (lambda d: Path("numbers.safetensors"), OUTSIDE),
        (lambda d: d / ".." / "other" / "numbers.safetensors", OUTSIDE),
        (lambda d: d / "link", OUTSIDE),
        (lambda d: d / "loop", UNREADABLE),
        (lambda d: d, UNREADABLE),
        (lambda d: d / "pipe", UNREADABLE),
        (lambda d: Path("/proc/self/mem"), OUTSIDE),
        (lambda d: Path("/dev/zero"), OUTSIDE),
        (lambda d: d / "nul\0", UNREADABLE),
        (lambda d: d / ("long" * 100), UNREADABLE),
        (lambda d: d / "empty", DAMAGED),
        (lambda d: d / "sparse", TOO_LARGE),
    ],
)
def test_only_regular_files_below_the_directories_are_opened(
    tmp_path: Path, make: Any, code: str
) -> None:
    inside, other = tmp_path / "inside", tmp_path / "other"
    inside.mkdir()
    other.mkdir()
    write_file(other)
    (inside / "link").symlink_to(other / "numbers.safetensors")
    (inside / "loop").symlink_to(inside / "loop")
    os.mkfifo(inside / "pipe")
    (inside / "empty").touch()
    with (inside / "sparse").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    assert code_of(inside, make(inside)) == code


def test_links_within_the_directories_are_followed(tmp_path: Path) -> None:
    path = write_file(tmp_path)
    link = tmp_path / "link"
    link.symlink_to(path)
    assert len(read_both_ends(tmp_path, link).checkpoint) == 3


def test_everything_in_a_file_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = np.zeros(1, np.uint8)
    path = tmp_path / "file"
    write_safetensors(path, {"n" * 513: one})
    assert code_of(tmp_path, path) == TOO_LARGE
    write_safetensors(path, {"n": one.reshape((1,) * 9)})
    assert code_of(tmp_path, path) == TOO_LARGE
    path.write_bytes(with_header(b"{" + b" " * MAX_HEADER_BYTES + b"}"))
    assert code_of(tmp_path, path) == DAMAGED
    write_safetensors(path, {"a": one, "b": one, "c": one})
    (tmp_path / "big.json").write_text(json.dumps({"text": "x" * MAX_BESIDE_BYTES}))
    assert code_of(tmp_path, path, "big.json") == TOO_LARGE
    for name, value in (("MAX_TENSORS", 2), ("MAX_TABLE_BYTES", 20), ("MAX_FILE_BYTES", 100)):
        with monkeypatch.context() as patch:
            patch.setattr(reading, name, value)
            assert code_of(tmp_path, path) == TOO_LARGE
    assert len(read_both_ends(tmp_path, path).checkpoint) == 3


@pytest.mark.parametrize(
    "text", ['{"r": NaN}', '{"r": 1, "r": 2}', "[1]", "{", '{"r": "\\ud800"}', "[" * 100_000]
)
def test_a_json_file_beside_it_that_is_damaged_refuses_the_file(tmp_path: Path, text: str) -> None:
    path = write_file(tmp_path)
    (tmp_path / "config.json").write_text(text)
    assert code_of(tmp_path, path, "config.json") == DAMAGED


def test_a_file_that_becomes_shorter_while_it_is_copied_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, sendfile = write_file(tmp_path), os.sendfile

    def cut(target: int, source: int, offset: None, count: int) -> int:
        os.truncate(path, 10)
        return sendfile(target, source, offset, count)

    monkeypatch.setattr(os, "sendfile", cut)
    assert code_of(tmp_path, path) == UNREADABLE


def test_damaged_files_are_refused_or_read_whole(tmp_path: Path) -> None:
    """A thousand files with a few wrong bytes each: both ends agree on what is in each."""
    rng = random.Random(7)
    whole = safetensors_bytes(ARRAYS, {"format": "pt"})
    header = 8 + int.from_bytes(whole[:8], "little")
    path, num_read, codes = tmp_path / "damaged", 0, set()
    with no_descriptor_left():
        for _ in range(1000):
            data = bytearray(whole)
            for _ in range(rng.randint(1, 3)):
                at = rng.randrange(header)
                data[at : at + rng.randint(0, 2)] = rng.choice(
                    [b"\0", b"9", b'"', b"\xff\xff", b"-", b"[", b"", b"1e9", data[at : at + 9]]
                )
            path.write_bytes(data[: rng.choice((len(data), rng.randrange(len(data))))])
            try:
                file = read_both_ends(tmp_path, path)
            except FileRefusedError as error:
                codes.add(error.code)
                continue
            num_read += 1
            sizes = {name: info.num_bytes for name, info in file.checkpoint.tensors.items()}
            assert sizes == {name: file.checkpoint.read(name).nbytes for name in sizes}
            del file
    assert 5 < num_read < 900
    assert codes <= {DAMAGED, TOO_LARGE}
