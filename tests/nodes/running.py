"""Nodes without a server as real processes: `octavo serve --headless`."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.client.clients import LIMIT
from tests.ranks.followers import followers_of, wait_until

MEMBER_PROGRAM = "octavo.engine.nodes.process"
LOCAL_HOST = "127.0.0.1"


def free_port() -> int:
    """Return a port at which no process listens."""
    with socket.create_server((LOCAL_HOST, 0)) as made:
        return int(made.getsockname()[1])


def has_ipv6() -> bool:
    """Return whether this machine has the loopback address of IPv6."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def _ranks(count: int) -> dict[str, Any]:
    return {"tensor_parallel_size": count, "tensor_parallel_form": "sums"}


class Nodes:
    """The further nodes of an engine, the settings of the first, and what they have logged."""

    def __init__(
        self,
        model: Path,
        directory: Path,
        parts: int,
        nodes: int,
        host: str = LOCAL_HOST,
        *,
        sums: bool = False,
    ) -> None:
        """Divide so many stages, or ranks that add up, among nodes."""
        self.model = model
        self.directory = directory
        self.secret = directory / "secret"
        self.secret.write_text("a secret of the tests, which no other test has\n")
        self.options: dict[str, Any] = {
            **(_ranks(parts) if sums else {"pipeline_parallel_size": parts}),
            "nnodes": nodes,
            "master_addr": host,
            "master_port": free_port(),
            "link_secret_file": str(self.secret),
        }
        self.programs: dict[int, subprocess.Popen[bytes]] = {}

    def start(
        self, rank: int, model: Path | None = None, prefix: Sequence[str] = (), **changes: Any
    ) -> subprocess.Popen[bytes]:
        """Start a node that is not the first."""
        command = [*prefix, sys.executable, "-m", "octavo", "serve", str(model or self.model)]
        options = {**self.options, "num_threads": 1, **changes}
        for name, value in options.items():
            command += ["--" + name.replace("_", "-"), str(value)]
        command += ["--node-rank", str(rank), "--headless"]
        with self._log(rank).open("ab") as log:
            program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.programs[rank] = program
        return program

    def log_of(self, rank: int) -> str:
        """Return what a node has logged."""
        return self._log(rank).read_text()

    def members_of(self, rank: int) -> list[int]:
        """Return the processes of a node's stages, or the first of its ranks."""
        return followers_of(self.programs[rank].pid, MEMBER_PROGRAM)

    def wait_for_log(self, rank: int, text: str) -> None:
        """Return once a node has logged a text."""
        wait_until(lambda: text in self.log_of(rank))

    def end(self) -> None:
        """End all nodes, whose members end with them."""
        for program in self.programs.values():
            with contextlib.suppress(OSError):
                program.kill()
            program.wait(LIMIT)

    def _log(self, rank: int) -> Path:
        return self.directory / f"node{rank}.log"


@contextmanager
def nodes(
    model: Path,
    directory: Path,
    parts: int,
    count: int = 0,
    host: str = LOCAL_HOST,
    *,
    sums: bool = False,
) -> Iterator[Nodes]:
    """Let the further nodes of an engine run, each with as many stages or ranks as the first."""
    made = Nodes(model, directory, parts, count or parts, host, sums=sums)
    try:
        for rank in range(1, count or parts):
            made.start(rank)
        yield made
    finally:
        made.end()


def exists(pid: int) -> bool:
    """Return whether a process runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
