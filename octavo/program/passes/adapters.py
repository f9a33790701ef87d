"""Adapters (LoRA) beside the products that they modify: each row can have one of several, or none.

It comes after the collectives: of a product that is cut along its inputs, a rank's share of an
adapter is added before the sum over all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.program.listing import Buffer, Instruction, Listing, Value
from octavo.program.operands import Adapters, Matrix


def add_adapters(listing: Listing, targets: Iterable[tuple[Matrix, Adapters]]) -> None:
    """Add a shrink and an expand beside every product with one of these matrices."""
    for matrix, adapters in targets:
        for product in [i for i in listing if i.op == "Gemm" and i.matrix is matrix]:
            _add(listing, product, adapters)


def _add(listing: Listing, product: Instruction, adapters: Adapters) -> None:
    x, out = product.x, product.out
    assert x is not None
    assert out is not None
    assert product.activation is None, "adapters come before fusion"
    assert product.y is None, "adapters come before fusion"
    low = Value(Buffer(x.buffer.space, adapters.rank), 0, adapters.rank, x.recorder)
    plain = x.recorder.new_like(out)
    listing.change(product, out=plain)
    at = listing.index(product) + 1
    listing.insert(at, Instruction("Shrink", x, out=low, adapters=adapters))
    listing.insert(at + 1, Instruction("Expand", low, plain, out, adapters=adapters))
