"""The socket of an engine is private, and an engine ends with its front end."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.client.launcher import ProcessLauncher
from octavo.client.socket_directory import remove_abandoned_sockets
from tests.client import clients
from tests.client.clients import (
    Caller,
    check,
    eventually,
    open_files,
    process_of,
    request,
    run,
    running,
)

PARENT = """
import sys
from tests.client import clients
client = clients.start("step=0.01")
print(clients.process_of(client).pid, client.engines[0].supervisor.launcher.address, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The sockets' directory: engines that other tests start do not tidy up there."""
    with tempfile.TemporaryDirectory() as name:  # pytest's own can be too long for a socket
        monkeypatch.setenv("XDG_RUNTIME_DIR", name)
        yield Path(name)


@pytest.mark.parametrize("in_thread", [False, True])
def test_an_engine_ends_with_its_killed_front_end(sockets: Path, in_thread: bool) -> None:
    program = PARENT
    if in_thread:  # the kernel's signal would come too early there: the heartbeat thread watches
        program = PARENT.replace(
            'client = clients.start("step=0.01")',
            "from concurrent.futures import ThreadPoolExecutor\n"
            "with ThreadPoolExecutor() as pool:\n"
            '    client = pool.submit(clients.start, "step=0.01").result()',
        )
    root = Path(__file__).parent.parent.parent
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pid, path = parent.stdout.readline().split()
        assert _is_alive(int(pid))
        parent.kill()
        parent.wait()
    asyncio.run(eventually(lambda: not _is_alive(int(pid))))
    assert Path(path).exists()  # no process was left to tidy up
    assert Path(path).parents[1] == sockets
    remove_abandoned_sockets(sockets)
    assert not Path(path).parent.exists()


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_the_socket_is_private_and_nothing_is_left_after_close() -> None:
    threads, files = {*threading.enumerate()}, open_files()
    client = clients.start()
    launcher = client.engines[0].supervisor.launcher
    assert isinstance(launcher, ProcessLauncher)
    path, process = Path(launcher.address), process_of(client)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700

    async def world() -> None:
        caller = Caller(client)
        caller.send(request("r"))
        await caller.all_ended()
        client.close()
        client.close()
        loop = asyncio.get_running_loop()
        timers: Any = loop._scheduled  # type: ignore[attr-defined]
        assert not [timer for timer in timers if not timer.cancelled()]

    run(world)
    assert process.poll() is not None
    assert not path.parent.exists()
    assert {*threading.enumerate()} <= threads
    assert open_files() <= files


@pytest.mark.parametrize("name", ["none", "x" * 90])
def test_an_engine_needs_no_directory_for_its_socket(
    name: str, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may be full or read-only, or a path too long."""
    if name == "none":
        monkeypatch.setattr(tempfile, "mkdtemp", _full_disk)
    else:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(sockets / name))
        (sockets / name).mkdir()
    one = request("r")
    with running("step=0.001") as client:
        launcher = client.engines[0].supervisor.launcher
        assert isinstance(launcher, ProcessLauncher)
        assert launcher.address.startswith("@octavo-engine-")

        async def world() -> None:
            caller = Caller(client)
            caller.send(one)
            await caller.some_tokens("r")
            process_of(client).kill()
            await caller.all_ended()
            check(caller, one)

        run(world)


CONNECT = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
peer = socket.socket(socket.AF_UNIX)
peer.connect("\\0" + sys.argv[1])
print(len(peer.recv(100)))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_socket_without_a_file_refuses_other_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "mkdtemp", _full_disk)
    launcher = ProcessLauncher()
    received = {}
    for user in (0, 65534):
        command = [sys.executable, "-c", CONNECT, launcher.address[1:], str(user)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        received[user] = int(output)
    launcher.close()
    assert received[0] > 0, "the greeting"
    assert received[65534] == 0, "it is disconnected"


def _full_disk(*_: object, **__: object) -> str:
    raise OSError(errno.ENOSPC, "No space left on device")
