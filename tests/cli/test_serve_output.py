"""`octavo serve` serves on, and ends when it is asked to, whatever becomes of its output."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from octavo.env import child_environment

LIMIT = 300.0  # seconds; no test depends on it
NUM_REQUESTS = 1500  # whose lines are far more than a pipe holds


@contextlib.contextmanager
def server(tiny: str, stdout: int, stderr: int, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the real program, and end it in any case."""
    command = [sys.executable, "-W", "ignore", "-m", "octavo", "serve", tiny, "--port", "0"]
    process = subprocess.Popen(
        [*command, "--num-gpu-blocks-override", "20", "--silence-seconds", "300", *words],
        stdout=stdout,
        stderr=stderr,
        env=child_environment({"OMP_NUM_THREADS": "1", "OCTAVO_API_KEY": ""}),
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def engine_of(process: subprocess.Popen[bytes]) -> int | None:
    """Return the process of the server's engine, if there is one."""
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        with contextlib.suppress(OSError):  # one has just ended
            for number in (task / "children").read_text().split():
                if b"octavo.engine.process" in Path(f"/proc/{number}/cmdline").read_bytes():
                    return int(number)
    return None


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for a condition by polling."""
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.slow
def test_a_log_that_is_not_read_stops_neither_requests_nor_restarts_nor_the_end(tiny: str) -> None:
    with server(tiny, subprocess.PIPE, subprocess.PIPE) as process:
        assert process.stdout is not None
        text = ""
        while (found := re.search(r"http://127.0.0.1:(\d+)", text)) is None:
            text = process.stdout.readline().decode()
            assert text, "it has ended"
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=LIMIT)

        def status(path: str) -> int:
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
            return response.status

        for _ in range(NUM_REQUESTS):
            assert status("/version") == 200
        number = engine_of(process)
        assert number is not None
        os.kill(number, signal.SIGSEGV)  # it writes its stacks
        eventually(lambda: engine_of(process) != number)
        eventually(lambda: status("/health/ready") == 200)
        connection.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0


@pytest.mark.slow
def test_a_full_disk_behind_both_streams_changes_nothing(tiny: str, tmp_path: Path) -> None:
    path = tmp_path / "admin"
    with open("/dev/full", "wb") as full:
        streams = full.fileno(), full.fileno()
        with server(tiny, *streams, "--admin-socket", str(path)) as process:
            with socket.socket(socket.AF_UNIX) as client:
                eventually(lambda: process.poll() is not None or not client.connect_ex(str(path)))
                assert process.poll() is None
                client.settimeout(LIMIT)
                client.sendall(b"GET /in_flight HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert client.recv(100).startswith(b"HTTP/1.1 200")
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT) == 0
