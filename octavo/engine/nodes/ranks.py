"""Ranks that add up on several machines: the first one of each node joins the first node.

It starts the node's further ranks itself, which know nothing of the other nodes but their number.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from msgspec import structs

from octavo.backends.base import Backend
from octavo.backends.kind import WeightFile
from octavo.backends.native.backend import NativeBackend
from octavo.backends.native.ranks.nodes import follow_node
from octavo.distributed.context import NodePlace, RankPlace
from octavo.engine.nodes.connection import SealedLink
from octavo.engine.nodes.division import CONTROL, PARTS, STEPS
from octavo.engine.nodes.group import RemoteMember, receive_members
from octavo.engine.nodes.messages import Setting
from octavo.engine.ranks.group import RankGroup
from octavo.engine.ranks.link import Link, Started, StartRank
from octavo.engine.ranks.process import follow_start
from octavo.observe import machine
from octavo.options.engine import EngineArguments
from octavo.options.processes.machines import processes_of_machine
from octavo.resolve import EngineConfig


class RanksOfNodes(RankGroup):
    """The further ranks of an engine, those of other nodes among them."""

    def __init__(self, arguments: EngineArguments, setting: Setting) -> None:
        """Start the ranks of this node, and wait until the other nodes have joined."""
        total = arguments.tensor_parallel_size
        super().__init__(processes_of_machine(arguments), sums=True, total=total)
        self.size = total
        self._machine = NodePlace(0, arguments.nnodes)
        self._remote: list[RemoteMember] = []
        try:
            self._add_nodes(setting, receive_members(arguments, setting))
        except BaseException:
            self.close()
            self.leave_memory()
            raise

    def _add_nodes(self, setting: Setting, links: dict[tuple[int, str], SealedLink]) -> None:
        division, steps, parts = setting.division, [], []
        for member in division.further_members:
            control, of_steps, of_parts = (links[member, each] for each in (CONTROL, STEPS, PARTS))
            part_link, descriptor = of_parts.part_link()
            steps.append(of_steps.frames)
            parts.append(part_link)
            self._descriptors += [control.descriptor, of_steps.descriptor, descriptor]
            for each in (of_steps, of_parts):
                each.connection.close()
            self._remote.append(RemoteMember(division, member, control))
        self._followers += self._remote
        self._machine = structs.replace(self._machine, steps=tuple(steps), parts=tuple(parts))

    @property
    def place(self) -> RankPlace:
        return structs.replace(super().place, machine=self._machine)

    def load(self, config: EngineConfig, files: Sequence[WeightFile], backend: Backend) -> None:
        super().load(config, files, backend)
        end_ranks, links = self._end, self._machine.steps

        def end(reason: str) -> None:
            end_ranks(reason)
            for link in links:  # a step that waits for a node fails
                link.close()

        self._end = end

    def with_room(
        self, config: EngineConfig, backend: Backend, free_bytes: int
    ) -> tuple[EngineConfig, int]:
        """Return the free memory of the node that has least; all have equal parts of the cache."""
        return config, min(free_bytes, *(each.started.free_bytes for each in self._remote))


def serve_ranks(
    control: Link,
    start: StartRank,
    arguments: EngineArguments,
    links: tuple[SealedLink, SealedLink],
    on_start: Callable[[], None],
    program: Link,
) -> int:
    """Compute the share of this node's ranks until the engine ends; return the exit status.

    `on_start` is called once the engine has the answer that all of them have their weights. Why
    one ends before the engine is sent to that, and to the program of this node.
    """
    steps, parts = links
    count, node = processes_of_machine(arguments), arguments.node_rank
    total = arguments.tensor_parallel_size
    group = RankGroup(count, sums=True, first=node * count, total=total)
    group.start(start, arguments, (control, program))
    place = NodePlace(node, arguments.nnodes, (steps.frames,), (parts.part_link()[0],))

    def started(backend: NativeBackend) -> Started:
        group.leave_memory()
        weight_bytes = backend.weight_bytes + group.wait()
        return Started(weight_bytes, free_bytes=machine.memory().available)

    def follow(backend: NativeBackend) -> None:
        on_start()
        with group.noting_ends():
            follow_node(backend)
        threading.Event().wait()  # for the end of the other connection, which ends this process

    own = structs.replace(group.place, machine=place)
    return follow_start(control, start, arguments, own, follow, started, (program,))
