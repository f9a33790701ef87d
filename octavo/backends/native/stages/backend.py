"""The native engine as stages: what each packs and keeps, and how sizes and steps reach it.

The program of the first stage sends a step, and the rows of the residual stream, to one further
stage after the other, and goes on with the rows that come back (csrc/step/stages.h). All else is as
in one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.backends.base import KVLayout, StepSize
from octavo.backends.native import _native
from octavo.backends.native.backend import Emitted, NativeBackend, NativeOptions
from octavo.backends.native.kernel_choice import Choice
from octavo.backends.native.passes import PART_PASSES
from octavo.backends.native.ranks.messages import LeadingBackend, answer_until_end
from octavo.backends.native.stages.cache_groups import stage_groups
from octavo.backends.native.stages.unpacked import (
    Unpacked,
    pack_all,
    sizes_of,
    unpacked,
    unpacked_experts,
)
from octavo.backends.stored_rows import StoredRows
from octavo.distributed.context import StagePlace
from octavo.layers import Model, Module
from octavo.program import operands
from octavo.program.listing import Listing
from octavo.program.passes.fusion import WHOLE, rewrite
from octavo.program.passes.stages import choose_cuts, number_layers, own_part


class StageBackend(NativeBackend):
    """The backend of a further stage; a part of that of the first one."""

    def __init__(self, options: NativeOptions) -> None:
        assert isinstance(options.place, StagePlace)
        self._place = options.place
        self.links: tuple[_native.FrameLink, ...] = options.place.links
        self._num_layers: dict[int, int] = {}  # of each group of KV
        self._unpacked: list[Unpacked] = []  # matrices of all stages
        super().__init__(options)

    def matrix(self, parts: Sequence[StoredRows], module: Module) -> operands.Matrix:
        self._unpacked.append(unpacked(parts, module))
        return self._unpacked[-1]

    def experts(self, matrices: Sequence[Sequence[StoredRows]], module: Module) -> operands.Experts:
        made = unpacked_experts(matrices, module)
        self._unpacked += made.matrices
        return made

    def _rewritten(self, listing: Listing, model: Model) -> Listing:
        rewrite(listing, WHOLE)
        cuts = choose_cuts(listing, self._place.stages, sizes_of)
        own = own_part(listing, cuts, self._place.stage)
        self._num_layers = number_layers(own)
        pack_all(own, self._packer)
        for each in self._unpacked:  # the model refers to them, and some rows are in memory
            each.parts = ()
        self._unpacked.clear()
        self._packer.begin()
        rewrite(own, PART_PASSES)
        return own

    def use_kernels(self, format_: str, choice: Choice) -> None:
        if choice.tier in _native.tiers():  # the first stage may be on another processor
            super().use_kernels(format_, choice)

    @property
    def page_bytes(self) -> int:
        """The bytes of a page of this stage's KV cache, once its program is recorded."""
        assert self._layout is not None, "call prepare first"
        return self._cache_groups(*self._layout)[1]

    def _cache_groups(
        self, layout: KVLayout, block_size: int
    ) -> tuple[list[_native.CacheGroup], int]:
        counts = [self._num_layers.get(group, 0) for group in range(len(layout.groups))]
        return stage_groups(layout, block_size, self._options.kv_dtype, counts)


class LeadingStage(StageBackend, LeadingBackend):
    """The backend of the first rank of a further stage, whose other ranks do as it does."""


class FirstStage(LeadingStage):
    """The backend of the first stage, whose steps go through the others."""

    def _emitted(self, *arguments: Any, **options: Any) -> Emitted:
        made = super()._emitted(*arguments, **options)
        made.program.set_stages(self.links)
        return made

    def reserve(self, size: StepSize, spare_bytes: int) -> int:
        own = super().reserve(size, spare_bytes)
        return own + sum(int(link.receive()) for link in self.links)

    def make_cache(self, num_blocks: int) -> None:
        super().make_cache(num_blocks)
        for link in self.links:
            link.receive()

    def _send_bytes(self, message: bytes) -> None:
        for link in self.links:
            link.send(message)
        if self.ranks is not None:
            super()._send_bytes(message)


def follow(backend: NativeBackend) -> None:
    """Compute the steps of a further stage until the engine ends."""
    assert isinstance(backend, StageBackend)
    (link,) = backend.links

    def receive() -> bytes:
        return link.follow(backend.native_programs[0], backend.cache)

    answer_until_end(link, receive, backend)
