"""Two network namespaces with a cable between them, which can be slow, lossy or cut."""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_CLONE_NEWNET = 0x40000000
_numbers = itertools.count()


class Cable:
    """The ends of a cable, each in a namespace of its own: of node 0, and of node 1."""

    def __init__(self) -> None:
        name = f"octavo-{os.getpid()}-{next(_numbers)}"
        self.namespaces = [f"{name}-{end}" for end in range(2)]
        self.hosts = ["10.77.0.1", "10.77.0.2"]

    def lay(self) -> None:
        """Make the namespaces and the cable."""
        for namespace in self.namespaces:
            run("ip", "netns", "add", namespace)
        one, other = self.namespaces
        run(*f"ip link add end0 netns {one} type veth peer name end1 netns {other}".split())
        for end, namespace in enumerate(self.namespaces):
            run(*f"ip -n {namespace} addr add {self.hosts[end]}/24 dev end{end}".split())
            for device in ("lo", f"end{end}"):
                run(*f"ip -n {namespace} link set {device} up".split())

    def take_away(self) -> None:
        """Remove the namespaces, and the cable with them."""
        for namespace in self.namespaces:
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)

    def shape(self, words: str) -> None:
        """Let both ends queue packets in this way; skip the test where the kernel cannot."""
        for end in range(2):
            command = [*self.prefix(end), *f"tc qdisc add dev end{end} root".split()]
            found = subprocess.run(
                [*command, *words.split()], capture_output=True, text=True, check=False
            )
            if "qdisc kind is unknown" in found.stderr:
                pytest.skip(f"this kernel has no {words.split()[0]}")
            assert found.returncode == 0, found.stderr

    def num_dropped(self) -> int:
        """Return the number of packets that were lost."""
        text = "".join(run(*self.prefix(end), "tc", "-s", "qdisc", "show") for end in range(2))
        return sum(map(int, re.findall(r"dropped (\d+)", text)))

    def cut(self) -> None:
        """Let no packet through from now on."""
        run(*f"ip -n {self.namespaces[1]} link set end1 down".split())

    def mend(self) -> None:
        """Let packets through again."""
        run(*f"ip -n {self.namespaces[1]} link set end1 up".split())

    def prefix(self, end: int) -> list[str]:
        """Return the words before a command that runs at an end."""
        return ["ip", "netns", "exec", self.namespaces[end]]

    @contextmanager
    def inside(self, end: int) -> Iterator[None]:
        """Put this thread, and the processes that it starts, at an end."""
        with Path("/proc/thread-self/ns/net").open("rb") as before:
            with Path("/run/netns", self.namespaces[end]).open("rb") as namespace:
                _enter(namespace.fileno())
            try:
                yield
            finally:
                _enter(before.fileno())


@contextmanager
def laid_cable() -> Iterator[Cable]:
    """Lay a cable; skip the test where that is not permitted."""
    if shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("iproute2 is not installed")
    cable = Cable()
    try:
        try:
            cable.lay()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")
        yield cable
    finally:
        cable.take_away()


def run(*words: str) -> str:
    """Run a command; return what it prints."""
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
