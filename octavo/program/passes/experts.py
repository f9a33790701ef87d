"""A mixture of experts as products over its rows, sorted by expert."""

from __future__ import annotations

from octavo.layers import Routing
from octavo.program.listing import Buffer, Instruction, Listing, Value


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
