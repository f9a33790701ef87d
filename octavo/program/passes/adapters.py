"""Adapters (LoRA) in the products that they modify: each row can have one of several, or none.

A shrink before the product makes a few low numbers of each row that has an adapter. The product
makes addends of them, which it adds to its sums before anything else. So it can still end with an
activation, a gate or a residual; and of a product that is cut along its inputs, a rank's share of
an adapter is added before the sum over all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.program.listing import Buffer, Instruction, Listing, Value
from octavo.program.operands import Adapters, Matrix


def add_adapters(listing: Listing, targets: Iterable[tuple[Matrix, Adapters]]) -> None:
    """Let adapters change every product with one of these matrices."""
    for matrix, adapters in targets:
        for product in [i for i in listing if i.op == "Gemm" and i.matrix is matrix]:
            _add(listing, product, adapters)


def _add(listing: Listing, product: Instruction, adapters: Adapters) -> None:
    x = product.x
    assert x is not None, "adapters come before the passes that prepare inputs"
    low = Value(Buffer(x.buffer.space, adapters.width), 0, adapters.width, x.recorder)
    shrink = Instruction("Shrink", x, out=low, adapters=adapters)
    listing.insert(listing.index(product), shrink)
    listing.change(product, low=low)
    product.adapters = adapters
