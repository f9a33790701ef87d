"""Ranks that add up on several machines: the first one of each has links to the other machines.

The program of the first node sends a step to the others, and takes their columns of the logits
(csrc/nodes/further_nodes.h). The parts of sums go over links of their own (csrc/nodes/node_sums.h).
To its own ranks the first one of a node is what that of one machine is.
"""

from __future__ import annotations

from typing import Any

from octavo.backends.base import StepSize
from octavo.backends.native import _native
from octavo.backends.native.backend import Emitted, NativeBackend
from octavo.backends.native.kernel_choice import Choice
from octavo.backends.native.ranks.messages import answer_until_end
from octavo.backends.native.ranks.sums import LeadingSummingBackend
from octavo.distributed.context import NodePlace, RankPlace


class _NodeBackend(LeadingSummingBackend):
    """The backend of the first rank of a node."""

    @property
    def machine(self) -> NodePlace:
        """The node, with its connections."""
        place = self._options.place
        assert isinstance(place, RankPlace)
        assert place.machine is not None
        return place.machine

    @property
    def columns(self) -> int:
        """The columns of the logits that each node has; 0: they are not divided."""
        assert self.ranks is not None
        return self.ranks.ranks * self._columns


class FirstNode(_NodeBackend):
    """The backend of the first node, whose steps the others compute with it."""

    def _emitted(self, *arguments: Any, **options: Any) -> Emitted:
        made = super()._emitted(*arguments, **options)
        made.program.set_nodes(self.machine.steps, self.columns)
        return made

    def reserve(self, size: StepSize, spare_bytes: int) -> int:
        own = super().reserve(size, spare_bytes)
        self._wait_for_answers()
        return own

    def make_cache(self, num_blocks: int) -> None:
        super().make_cache(num_blocks)
        self._wait_for_answers()

    def _wait_for_answers(self) -> None:
        for link in self.machine.steps:
            link.receive()

    def _send_bytes(self, message: bytes) -> None:
        for link in self.machine.steps:
            link.send(message)
        super()._send_bytes(message)


class FurtherNode(_NodeBackend):
    """The backend of the first rank of another node."""

    def use_kernels(self, format_: str, choice: Choice) -> None:
        if choice.tier in _native.tiers():  # the first node may have another processor
            super().use_kernels(format_, choice)


def follow_node(backend: NativeBackend) -> None:
    """Compute the steps of the first node with this one's ranks until the engine ends."""
    assert isinstance(backend, FurtherNode)
    (link,) = backend.machine.steps
    columns = backend.columns
    first = backend.machine.node * columns

    def receive() -> bytes:
        return _native.follow_ranks(link, backend.native_programs[0], first, columns)

    answer_until_end(link, receive, backend)
