"""Adapters (LoRA) in the products that they modify: each row can have one of several, or none.

A shrink before the product makes a few low numbers of each row that has an adapter. The product
makes addends of them, which it adds to its sums before anything else. So it can still end with an
activation, a gate or a residual; and of a product that is cut along its inputs, a rank's share of
an adapter is added before the sum over all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from octavo.program.listing import Buffer, Instruction, Listing, Value
from octavo.program.operands import Adapters, Matrix


def add_adapters(listing: Listing, targets: Iterable[tuple[Matrix, Adapters]]) -> None:
    """Let adapters change every product with one of these matrices, or every lookup of a token."""
    for matrix, adapters in targets:
        op = "Embed" if adapters.is_lookup else "Gemm"
        for changed in [i for i in listing if i.op == op and i.matrix is matrix]:
            if op == "Gemm":
                _add(listing, changed, adapters)
            elif changed.ids == "Tokens":
                changed.adapters = adapters


def split_whole_products(listing: Listing) -> None:
    """Multiply rows whose adapters have a matrix of their own behind the product for all rows.

    The shrink of the product says what its input was before it was prepared.
    """
    shrinks = {id(i.adapters): i for i in listing if i.op == "Shrink"}
    for product in [i for i in listing if i.op == "Gemm" and i.adapters is not None]:
        adapters = product.adapters
        assert adapters is not None
        if not adapters.has_wholes:
            continue
        shrink = shrinks[id(adapters)]
        whole = Instruction(
            "WholeGemm",
            shrink.x,
            out=product.out,
            norm=shrink.norm,
            factor=product.factor,
            cap=product.cap,
            adapters=adapters,
        )
        ends_plainly = product.activation is None and product.y is None
        assert ends_plainly, "only heads have matrices of adapters in their place"
        listing.insert(listing.index(product) + 1, whole)
        product.adapters = replace(adapters, has_wholes=False)


def _add(listing: Listing, product: Instruction, adapters: Adapters) -> None:
    x = product.x
    assert x is not None, "adapters come before the passes that prepare inputs"
    low = Value(Buffer(x.buffer.space, adapters.width), 0, adapters.width, x.recorder)
    shrink = Instruction("Shrink", x, out=low, adapters=adapters)
    listing.insert(listing.index(product), shrink)
    listing.change(product, low=low)
    product.adapters = adapters
