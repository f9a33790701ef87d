"""The loader's own process: what it can reach, and how it ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from octavo.loader_process.connection import TensorFile, open_sealed
from octavo.loader_process.messages import (
    FileRead,
    FileRefused,
    ReadFile,
    close_all,
    decode_answer,
    receive,
    send_now,
)
from tests.loader.make_files import write_safetensors
from tests.loader_process.files import ARRAYS, write_file

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone")
ROOT = Path(__file__).parents[2]


@contextmanager
def loader(
    *directories: Path, more: tuple[str, ...] = ()
) -> Iterator[tuple[socket.socket, subprocess.Popen]]:
    """Yield the engine's end of a connection to a loader's process."""
    engine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "octavo.loader_process.process", *more]
    command += ["--socket", str(other.fileno()), "--log-level", "20"]
    for directory in directories:
        command += ["--directory", str(directory)]
    with other, engine:
        process = subprocess.Popen(command, pass_fds=(other.fileno(),), cwd=ROOT)
        other.close()
        try:
            yield engine, process
        finally:
            process.kill()
            process.wait()


def read(engine: socket.socket, number: int, path: Path) -> object:
    """Ask for a file; return the answer, or the file itself."""
    send_now(engine, ReadFile(number, str(path)))
    data, descriptors = receive(engine)
    answer = decode_answer(data)
    try:
        return open_sealed(path, answer, *descriptors) if isinstance(answer, FileRead) else answer
    finally:
        close_all(descriptors)


def test_a_loader_reads_one_file_after_the_other_and_ends_with_its_engine(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first, second):
        directory.mkdir()
    paths = write_file(first), write_file(second)
    with loader(first, second) as (engine, process):
        for number, path in enumerate(paths):
            file = read(engine, number, path)
            assert isinstance(file, TensorFile)
            np.testing.assert_array_equal(file.checkpoint.read("numbers"), ARRAYS["numbers"])
        for number, path in enumerate((tmp_path / "x", Path(__file__), Path("/proc/self/maps")), 2):
            answer = read(engine, number, path)
            assert isinstance(answer, FileRefused)
            assert (answer.number, answer.code) == (number, "outside")
        engine.shutdown(socket.SHUT_RDWR)
        assert process.wait(300) == 0


def test_a_loader_is_confined_in_all_its_threads(tmp_path: Path) -> None:
    with loader(tmp_path) as (engine, process):
        read(engine, 0, write_file(tmp_path))  # it is confined before it answers
        for thread in Path(f"/proc/{process.pid}/task").iterdir():
            lines = (thread / "status").read_text().splitlines()
            fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
        assert int(Path(f"/proc/{process.pid}/oom_score_adj").read_text()) == 1000
        limits = Path(f"/proc/{process.pid}/limits").read_text().splitlines()
        limit = next(line for line in limits if line.startswith("Max address space"))
        assert limit.split()[3].isdigit()


def test_a_file_that_takes_too_long_ends_the_loader(tmp_path: Path) -> None:
    path = tmp_path / "large"
    write_safetensors(path, {f"tensor {number}": np.zeros(1, np.uint8) for number in range(50_000)})
    with loader(tmp_path, more=("--seconds", "0.001")) as (engine, process):
        send_now(engine, ReadFile(0, str(path)))
        assert receive(engine) == (b"", [])
        assert process.wait(300) == -signal.SIGALRM


@pytest.mark.parametrize("data", [b"\xc1", bytes(1 << 16), b"\x94\x01\x00\xa2/x\x90"])
def test_a_loader_ends_if_its_engine_breaks_the_protocol(tmp_path: Path, data: bytes) -> None:
    with loader(tmp_path) as (engine, process):
        engine.send(data)
        assert receive(engine) == (b"", [])
        assert process.wait(300) == 1
