"""The passes that join neighbours, in an order in which each enables the next.

They hold for every backend that runs a listing faster if it has fewer instructions.
"""

from __future__ import annotations

from collections.abc import Callable

from octavo.program.listing import Listing
from octavo.program.passes.attention import take_into_attention
from octavo.program.passes.embeddings import scale_embeddings
from octavo.program.passes.experts import split_experts
from octavo.program.passes.products import (
    activate_in_products,
    add_residuals_in_products,
    cap_in_products,
    gate_in_products,
    scale_in_products,
)
from octavo.program.passes.selections import select_before_norms
from octavo.program.passes.wanted_rows import leave_out_unwanted_rows

Pass = Callable[[Listing], None]

# Those that must see the whole listing, before it is cut into stages.
WHOLE: tuple[Pass, ...] = (take_into_attention, split_experts, leave_out_unwanted_rows)

# The others, which also hold for a part.
NEIGHBOURS: tuple[Pass, ...] = (
    scale_embeddings,
    gate_in_products,
    activate_in_products,
    scale_in_products,
    cap_in_products,
    add_residuals_in_products,
    select_before_norms,
)

FUSION: tuple[Pass, ...] = (*WHOLE, *NEIGHBOURS)


def rewrite(listing: Listing, passes: tuple[Pass, ...]) -> None:
    """Run passes over a listing, one after the other."""
    for one in passes:
        one(listing)
