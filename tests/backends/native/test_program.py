"""Listings as the native backend runs them: its phases and its scratch memory."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.backends.native.layout import Extent, Layout, lay_out, place_barriers
from octavo.backends.native.packing import interleaved
from octavo.backends.native.passes import PASSES
from octavo.program.describe import describe
from octavo.program.listing import Buffer, Instruction, Listing, Value
from octavo.program.passes.fusion import rewrite
from tests.backends.native.tiny import make_native
from tests.program.recorded import ARCHITECTURES, recorded
from tests.runner.tiny import FULL


def test_gate_rows_are_interleaved_with_up_rows() -> None:
    """A panel has sixteen of each; up rows begin at sixteen in the last panel too."""
    order = interleaved(20)
    assert order[:32].tolist() == [*range(16), *range(20, 36)]
    assert order[32:].tolist() == [16, 17, 18, 19, *[-1] * 12, 36, 37, 38, 39]


LLAMA_LAYER = """\
│
prepare norm+ [32×16 F32]
gemm [32×16 F32]
│
attention 2/1×8 +rope
│
gemm [16×16 F32] +residual
│
prepare norm+ [48×16 F32]
gemm [48×16 F32] +Silu +gate
│
gemm [16×24 F32] +residual
"""
# The wanted rows are selected before the attention, which needs no further barrier.
LAST_LAYER = LLAMA_LAYER.replace("│\nattention", "select\n│\nattention")


def test_a_llama_layer_is_five_phases() -> None:
    """The program of two layers, in full, has the phases of the design."""
    expected = "ropetables\nembed [61×16 F32]\n" + LLAMA_LAYER + LAST_LAYER
    expected += "│\nselect\n│\nprepare norm+ [61×16 F32]\ngemm [61×16 F32]\nselect\nnorm"
    assert make_native(FULL, 8, 16).describe() == expected


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_values_that_are_live_at_once_do_not_overlap(architecture: str) -> None:
    """A place is reused only after a barrier behind its last reader."""
    listing = recorded(architecture)
    rewrite(listing, PASSES)
    prepared = {id(i.prepared): 64 for i in listing if i.prepared is not None}
    made = lay_out(listing, prepared)
    assert len(place_barriers(listing, made)) >= 5
    contents: dict[tuple[str, int], Any] = {}  # who wrote each byte of a row last
    for instruction in listing:
        for value in instruction.reads:
            if value.buffer.place == "Scratch":
                room = made.extent(value.buffer)
                for byte in range(room.offset, room.offset + room.row_bytes, 64):
                    assert contents[room.space, byte] is value.buffer, describe(listing)
        for value in instruction.writes:
            if value.buffer.place == "Scratch":
                room = made.extent(value.buffer)
                for byte in range(room.offset, room.offset + room.row_bytes, 64):
                    contents[room.space, byte] = value.buffer


@pytest.mark.parametrize(("offset", "barriers"), [(64, set()), (128, set()), (96, {1})])
def test_rows_of_buffers_that_lie_differently_are_not_the_same_memory(
    offset: int, barriers: set[int]
) -> None:
    """Each thread has the same rows of both, but where these are is offset · rows + row · width."""
    recorder: Any = None
    read, added, normed = (Value(Buffer("Tokens", 16), 0, 16, recorder) for _ in range(3))
    add = Instruction("Add", read, read, out=added)
    norm = Instruction("Norm", added, out=normed)
    layout = Layout({id(added.buffer): Extent("Tokens", "floats", 0, 64)})
    layout.extents[id(read.buffer)] = Extent("Tokens", "floats", 64, 64)
    layout.extents[id(normed.buffer)] = Extent("Tokens", "floats", offset, 64)
    assert place_barriers(Listing([add, norm]), layout) == barriers
