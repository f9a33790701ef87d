"""The passes of the native engine: the general ones, and those for its own forms of weights."""

from __future__ import annotations

from typing import cast

from msgspec.structs import replace

from octavo.backends.native.packing import Experts, Matrix
from octavo.program.listing import Instruction, Listing, Prepared
from octavo.program.passes.adapters import split_whole_products
from octavo.program.passes.experts import add_experts_apart
from octavo.program.passes.fusion import NEIGHBOURS, WHOLE, Pass
from octavo.program.passes.prepare import (
    norm_while_preparing,
    prepare_products,
    read_floats_in_place,
)


def split_products_by_kind(listing: Listing) -> None:
    """Split a product whose matrix has pieces that read inputs of different forms."""
    for gemm in [i for i in listing if i.op == "Gemm"]:
        parts = cast(Matrix, gemm.matrix).by_kind()
        if len(parts) == 1:
            continue
        at = listing.index(gemm)
        listing.remove(gemm)
        for part in reversed(parts):
            listing.insert(at, replace(gemm, matrix=part))


def prepare_experts(listing: Listing) -> None:
    """Give the products of experts memory for their inputs in the form that they read."""
    for instruction in listing:
        if instruction.op in ("ExpertsIn", "ExpertsOut"):
            experts = instruction.experts
            assert experts is not None
            instruction.prepared = Prepared("Pairs", experts.inputs, experts.kind)


def add_whole_experts(listing: Listing) -> None:
    """Keep the products of experts apart that ranks have as a whole, and add them up behind."""
    add_experts_apart(listing, lambda experts: cast(Experts, experts).are_whole)


def make_rope_tables(listing: Listing) -> None:
    """Compute the sines and cosines of all positions once, before everything else."""
    listing.insert(0, Instruction("RopeTables"))


# Those that hold for a part of a listing too; the others come before it is cut.
PART_PASSES: tuple[Pass, ...] = (
    *NEIGHBOURS,
    split_products_by_kind,
    prepare_products,
    norm_while_preparing,
    read_floats_in_place,
    prepare_experts,
    add_whole_experts,
    split_whole_products,
    make_rope_tables,
)

PASSES: tuple[Pass, ...] = (*WHOLE, *PART_PASSES)
