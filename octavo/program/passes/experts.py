"""A mixture of experts as products over its rows, sorted by expert, and as sums of these."""

from __future__ import annotations

from collections.abc import Callable

from octavo.layers import Routing
from octavo.program.listing import Buffer, Instruction, Listing, Value
from octavo.program.operands import Experts


def split_experts(listing: Listing) -> None:
    """Split each Experts into a sort of its pairs (row, expert) and two products over them."""
    for mixed in [i for i in listing if i.op == "Experts"]:
        mixture, weights = mixed.mixture, mixed.y
        assert mixture is not None
        assert weights is not None
        inputs = mixture.down.inputs
        inner = Value(Buffer("Pairs", inputs), 0, inputs, weights.recorder)
        parts = (
            Instruction(
                "SortPairs",
                weights,
                chosen=mixed.chosen,
                routing=Routing(top_k=weights.width),
                experts=mixture.gate_up,
            ),
            Instruction(
                "ExpertsIn",
                mixed.x,
                out=inner,
                experts=mixture.gate_up,
                bias=mixture.gate_up_bias,
                activation=mixture.activation,
                gated=True,
            ),
            Instruction(
                "ExpertsOut", inner, out=mixed.out, experts=mixture.down, bias=mixture.down_bias
            ),
        )
        at = listing.index(mixed)
        listing.remove(mixed)
        for part in reversed(parts):
            listing.insert(at, part)


def add_experts_apart(listing: Listing, is_apart: Callable[[Experts], bool]) -> None:
    """Let the products of some experts stay apart, pair by pair, and add them up row by row.

    Those who have an expert can then compute its products, and the order of the sum is the same.
    """
    chosen: Value | None = None
    for instruction in list(listing):
        if instruction.op == "SortPairs":
            chosen = instruction.chosen
        if instruction.op != "ExpertsOut":
            continue
        experts, out = instruction.experts, instruction.out
        assert experts is not None
        assert out is not None
        if not is_apart(experts):
            continue
        apart = Value(Buffer("Pairs", out.width), 0, out.width, out.recorder)
        listing.change(instruction, out=apart, chosen=chosen)
        listing.insert(listing.index(instruction) + 1, Instruction("AddExperts", apart, out=out))
