"""What follows a product happens in it: factor, soft cap, activation or gate, residual.

A product does these in this order, after its bias. So a pass takes an operation in only if nothing
that comes later in this order is there already.
"""

from __future__ import annotations

from octavo.program.listing import Instruction, Listing
from octavo.program.passes.rewriting import pairs, replace

_SUMS = ("Gemm", "AllReduce")


def scale_in_products(listing: Listing) -> None:
    """Apply a factor in the product whose output it scales."""
    for gemm, scale in pairs(listing, "Gemm", "Scale"):
        if gemm.factor == 1.0 and gemm.cap == 0.0 and _ends_plainly(gemm):
            gemm.factor = scale.factor
            replace(listing, scale, by=gemm)


def cap_in_products(listing: Listing) -> None:
    """Apply a soft cap in the product whose output it reads."""
    for gemm, cap in pairs(listing, "Gemm", "SoftCap"):
        if gemm.cap == 0.0 and _ends_plainly(gemm):
            gemm.cap = cap.cap
            replace(listing, cap, by=gemm)


def activate_in_products(listing: Listing) -> None:
    """Apply an activation in the product whose output it reads."""
    for gemm, activate in pairs(listing, "Gemm", "Activate"):
        if _ends_plainly(gemm):
            gemm.activation = activate.activation
            replace(listing, activate, by=gemm)


def gate_in_products(listing: Listing) -> None:
    """Compute activation(gate) · up in the product of a matrix of gates and ups."""
    for gemm in [i for i in listing if i.op == "Gemm"]:
        assert gemm.matrix is not None
        assert gemm.out is not None
        if not gemm.matrix.gated or not _ends_plainly(gemm):
            continue
        readers = listing.readers(gemm.out.buffer)
        if len(readers) == 1 and readers[0].op == "Gate":
            gemm.activation, gemm.gated = readers[0].activation, True
            replace(listing, readers[0], by=gemm)


def add_residuals_in_products(listing: Listing) -> None:
    """Add a value that is already computed in the product, or sum of ranks, that it is added to."""
    for add in [i for i in listing if i.op == "Add"]:
        for mine, other in ((add.y, add.x), (add.x, add.y)):
            assert mine is not None
            assert other is not None
            gemm = listing.maker(mine)
            if gemm is None or gemm.op not in _SUMS or gemm.gated or gemm.y is not None:
                continue
            if listing.sole_reader(gemm) is not add:
                continue
            maker = listing.maker(other)
            if maker is None or listing.index(maker) > listing.index(gemm):
                continue
            listing.change(gemm, y=other)
            replace(listing, add, by=gemm)
            break


def _ends_plainly(gemm: Instruction) -> bool:
    return gemm.activation is None and gemm.y is None
