"""Where ranks exchange results, in small listings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.distributed.context import ParallelContext
from octavo.layers import Embedding, Linear, Module
from octavo.layers.moe import ExpertMatrices
from octavo.program.listing import Instruction, Listing, Mixture
from octavo.program.passes.collectives import gather_in_place, insert_collectives
from octavo.program.passes.fusion import FUSION, rewrite
from tests.program.fakes import FakeExperts, FakeMatrix
from tests.program.recorded import Recorded

TWO = ParallelContext(1, 2)


class Holder(Module):
    """A model of some layers."""

    def __init__(self, *layers: Module) -> None:
        self.layers = list(layers)


def layer(r: Recorded, instruction: Instruction, collective: Any) -> Linear:
    """Make the layer that an instruction belongs to."""
    assert instruction.matrix is not None
    made = Linear(instruction.matrix.inputs, instruction.matrix.outputs)
    made.weight, made.collective = instruction.matrix, collective
    return made


def after(r: Recorded, *layers: Module, fuse: bool = False) -> list[Instruction]:
    listing = Listing(r.recorder.instructions)
    holder: Any = Holder(*layers)
    insert_collectives(listing, holder, TWO)
    rewrite(listing, FUSION if fuse else ())
    return listing.instructions


def ops(instructions: list[Instruction]) -> str:
    return " ".join(i.op for i in instructions)


def test_a_product_cut_along_its_inputs_is_summed_before_the_residual_is_added() -> None:
    """Fusion would otherwise add the residual on every rank."""
    r = Recorded()
    out = r.linear(r.x)
    _ = r.x + out
    down = layer(r, r.recorder.instructions[1], "sum")
    assert ops(after(r, down)) == "Embed Gemm AllReduce Add"


def test_the_sum_adds_the_residual_once() -> None:
    r = Recorded()
    out = r.linear(r.x)
    both = r.x + out
    _ = both + both
    down = layer(r, r.recorder.instructions[1], "sum")
    listing = after(r, down, fuse=True)
    assert ops(listing) == "Embed Gemm AllReduce Add"
    assert listing[1].y is None
    assert listing[2].y is r.x


def test_a_layer_without_a_collective_stays_as_it_is() -> None:
    r = Recorded()
    r.linear(r.x)
    assert ops(after(r, layer(r, r.recorder.instructions[1], None))) == "Embed Gemm"


def test_a_cut_table_looks_up_its_own_rows_and_sums() -> None:
    r = Recorded()
    table = Embedding(50, 32)
    table.weight, table.collective, table.first = r.recorder.instructions[0].matrix, "sum", 50
    listing = after(r, table)
    assert ops(listing) == "Embed AllReduce"
    assert listing[0].first_row == 50


@pytest.mark.parametrize("end", ["", "Scale", "Scale SoftCap"])
def test_logits_are_gathered_at_the_end(end: str) -> None:
    """Factor and soft cap concern each logit by itself, so they come before."""
    r = Recorded()
    scores = r.linear(r.x, 25)
    if "Scale" in end:
        scores = scores * 0.5
    if "SoftCap" in end:
        scores = r.recorder.soft_cap(scores, 30.0)
    scores.buffer.place = "LogitsOut"
    listing = after(r, layer(r, r.recorder.instructions[1], "gather"))
    assert ops(listing) == " ".join(["Embed Gemm", *end.split(), "AllGather"])
    out, part = listing[-1].out, listing[-1].x
    assert out is not None
    assert part is not None
    assert (out.width, out.buffer.place) == (50, "LogitsOut")
    assert (part.width, part.buffer.place) == (25, "Scratch")


@pytest.mark.parametrize("end", ["", "Scale SoftCap"])
def test_a_rank_writes_its_logits_beside_those_of_others(end: str) -> None:
    """The columns of a rank come behind those of the ranks before it."""
    r = Recorded()
    scores = r.linear(r.x, 25)
    if end:
        scores = r.recorder.soft_cap(scores * 0.5, 30.0)
    scores.buffer.place = "LogitsOut"
    listing = Listing(after(r, layer(r, r.recorder.instructions[1], "gather")))
    gather_in_place(listing, 1)
    assert ops(listing.instructions) == " ".join(["Embed Gemm", *end.split()])
    out = listing.instructions[-1].out
    assert out is not None
    assert (out.first, out.width, out.buffer.width) == (25, 25, 50)
    assert out.buffer.place == "LogitsOut"


def test_a_tied_head_is_gathered_and_its_table_summed() -> None:
    r = Recorded()
    matrix = r.recorder.instructions[0].matrix
    assert matrix is not None
    r.recorder.linear(r.x, matrix, None).buffer.place = "LogitsOut"
    table, head = Embedding(50, 32), Linear(32, 50)
    table.weight = head.weight = matrix
    table.collective, head.collective = "sum", "gather"
    assert ops(after(r, table, head)) == "Embed AllReduce Gemm AllGather"


def test_a_matrix_whose_columns_are_in_another_order_reads_all_ranks_inputs() -> None:
    r = Recorded()
    r.linear(r.x)
    down = layer(r, r.recorder.instructions[1], "sum")
    down.columns = np.arange(0, 64, 2)
    listing = after(r, down)
    assert ops(listing) == "Embed AllGather Columns Gemm AllReduce"
    assert listing[1].out is not None
    assert listing[1].out.width == 64
    assert listing[2].columns is down.columns


def test_experts_are_summed() -> None:
    r = Recorded()
    experts = ExpertMatrices(2, 32, 16, "silu")
    experts.gate_up_weight = FakeExperts([FakeMatrix(32, 32)] * 2)
    experts.down_weight = FakeExperts([FakeMatrix(32, 16)] * 2)
    experts.collective = "sum"
    weights, chosen = r.recorder.split(r.linear(r.x, 2), (1, 1))
    r.recorder.experts(r.x, weights, chosen, experts)
    assert ops(after(r, experts)) == "Embed Gemm Experts AllReduce"
    assert isinstance(r.recorder.instructions[2].mixture, Mixture)
