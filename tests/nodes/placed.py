"""Nodes that are placed for each engine anew, as processes of this machine in the place of Ray's.

Each process does what an actor does; what Ray does itself is tested by `make test-ray`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable

from octavo.client.remote.nodes import NodesLauncher, first_node, further_node
from octavo.env import child_environment
from octavo.observe.log import level_in_use
from octavo.options.engine import EngineArguments
from octavo.wire.message_types import pack
from tests.nodes.running import LOCAL_HOST, MEMBER_PROGRAM
from tests.ranks.followers import followers_of

_ACTOR = """
import sys
from octavo.client.remote.ray_nodes import _Node
print(_Node().run(sys.stdin.buffer.read(), int(sys.argv[1])), flush=True)
"""


class Group:
    """Implements `octavo.client.remote.nodes.PlacedNodes` by processes."""

    def __init__(self, first: EngineArguments, refusal: str | None = None) -> None:
        self._reason = refusal
        self._on_end: Callable[[], None] = lambda: None
        self.is_closed = False
        self.programs = {} if refusal else {r: _start(first, r) for r in range(1, first.nnodes)}
        self._waiting = [
            threading.Thread(target=self._wait, args=each, daemon=True)
            for each in self.programs.items()
        ]
        for waiting in self._waiting:
            waiting.start()

    def watch(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end

    def ended(self) -> str | None:
        return self._reason

    def close(self) -> None:
        self.is_closed = True
        for program in self.programs.values():
            program.kill()
        for waiting in self._waiting:
            waiting.join()

    def stages_of(self, rank: int) -> list[int]:
        """Return the processes of a node's stages."""
        return followers_of(self.programs[rank].pid, MEMBER_PROGRAM)

    def _wait(self, rank: int, program: subprocess.Popen[bytes]) -> None:
        assert program.stdout is not None
        with program.stdout as output:
            said = output.read().decode().strip()
        program.wait()
        self._reason = self._reason or said or f"node {rank} has ended"
        self._on_end()


def _start(first: EngineArguments, rank: int) -> subprocess.Popen[bytes]:
    program = subprocess.Popen(
        [sys.executable, "-c", _ACTOR, str(level_in_use())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child_environment({"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}),
    )
    assert program.stdin is not None
    program.stdin.write(pack(further_node(first, rank)))
    program.stdin.close()
    return program


class Places:
    """A stand-in for a cluster of Ray."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self.refusal: str | None = None
        self.first: EngineArguments | None = None

    def launcher(self, arguments: EngineArguments) -> tuple[NodesLauncher, EngineArguments]:
        """Return what `octavo.client.remote.ray_nodes.ray_nodes_launcher` would, without Ray."""
        first = self.first = first_node(arguments, LOCAL_HOST)

        def place() -> Group:
            self.groups.append(Group(first, self.refusal))
            return self.groups[-1]

        return NodesLauncher(place), first
