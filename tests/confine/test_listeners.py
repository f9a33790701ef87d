"""The ports of a confined process, as its callers see them."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from octavo.confine.filter import why_unavailable
from tests.confine.attempts import ROOT

pytestmark = pytest.mark.skipif(
    why_unavailable() is not None, reason="this kernel has no filters of system calls"
)

# A library's thread accepts until the process is confined, and says whom it has let in afterwards.
PROGRAM = """
import select, socket, sys, threading
from octavo.confine.process import confine
family = socket.AF_INET6 if sys.argv[1] == "::1" else socket.AF_INET
listening = socket.create_server((sys.argv[1], 0), family=family)
accepted = []

def accept():
    while len(accepted) < 2:
        accepted.append(listening.accept()[0])

print(listening.getsockname()[1], flush=True)
thread = threading.Thread(target=accept)
thread.start()
sys.stdin.readline()  # two are connecting
confine(may_read=True)
thread.join()
print("confined", flush=True)
for caller in accepted:
    caller.sendall(caller.recv(5))
sys.stdin.readline()  # another has tried
print(select.select([listening], [], [], 0)[0], flush=True)
"""
TRIED_SECONDS = 0.3  # for a connection that is never made


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.fixture(params=["127.0.0.1", "::1"])
def listening(request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[str], str]]:
    if request.param == "::1" and not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, request.param],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process, request.param
    process.kill()
    process.communicate()


def _line(process: subprocess.Popen[str], *, answer: bool = False) -> str:
    """Return what the process prints next, after an empty line if it waits for one."""
    assert process.stdin is not None
    assert process.stdout is not None
    if answer:
        process.stdin.write("\n")
        process.stdin.flush()
    return process.stdout.readline().strip()


def test_only_those_from_before_are_connected(
    listening: tuple[subprocess.Popen[str], str],
) -> None:
    process, host = listening
    port = int(_line(process))
    before = [socket.create_connection((host, port), 60) for _ in range(2)]
    assert _line(process, answer=True) == "confined"
    with pytest.raises(TimeoutError):
        socket.create_connection((host, port), TRIED_SECONDS)
    for caller in before:
        caller.sendall(b"hello")
        assert caller.recv(5, socket.MSG_WAITALL) == b"hello"
        caller.close()
    assert _line(process, answer=True) == "[]"


def test_nothing_stays_open_behind_it() -> None:
    """A pipe has its end, and a process its descriptors, after all have been looked at."""
    program = """
import os, socket
from octavo.confine.listeners import close_ports
path = os.open("/dev/null", os.O_RDONLY)
pair = socket.socketpair()
listening = socket.create_server(("127.0.0.1", 0))
reader, writer = os.pipe()
before = sorted(os.listdir("/proc/self/fd"))
close_ports()
assert sorted(os.listdir("/proc/self/fd")) == before
os.close(writer)
assert os.read(reader, 1) == b""
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
