"""A shrink and an expand stand beside each product that adapters modify."""

from __future__ import annotations

import pytest

from octavo.program.operands import Adapters
from octavo.program.passes.adapters import add_adapters
from octavo.program.passes.fusion import FUSION, rewrite
from octavo.program.passes.products import add_residuals_in_products
from tests.program.recorded import Recorded

LORA = Adapters(object(), object(), 4)


def test_the_expand_writes_what_the_product_wrote() -> None:
    r = Recorded()
    r.recorder.activation(r.linear(r.x), "relu")
    listing = r.listing()
    matrix = listing.instructions[1].matrix
    assert matrix is not None
    add_adapters(listing, [(matrix, LORA)])
    product, shrink, expand, activate = listing.instructions[1:]
    assert [i.op for i in (product, shrink, expand)] == ["Gemm", "Shrink", "Expand"]
    assert shrink.x is product.x
    assert (expand.x, expand.y, expand.out) == (shrink.out, product.out, activate.x)
    assert shrink.out is not None
    assert shrink.out.width == LORA.rank


def test_other_products_and_lookups_stay_as_they_are() -> None:
    r = Recorded()
    one, other = r.linear(r.x), r.linear(r.x)
    _ = one + other
    listing = r.listing()
    table, matrix = listing.instructions[0].matrix, listing.instructions[2].matrix
    assert table is not None
    assert matrix is not None
    add_adapters(listing, [(table, LORA), (matrix, LORA)])
    assert [i.op for i in listing] == ["Embed", "Gemm", "Gemm", "Shrink", "Expand", "Add"]


def test_fusion_leaves_a_product_with_adapters_alone() -> None:
    """The output of the product is complete only after the expand."""
    r = Recorded()
    r.recorder.gated_activation(r.linear(r.x, 64, gated=True), "silu")
    listing = r.listing()
    matrix = listing.instructions[1].matrix
    assert matrix is not None
    add_adapters(listing, [(matrix, LORA)])
    rewrite(listing, FUSION)
    assert [i.op for i in listing] == ["Embed", "Gemm", "Shrink", "Expand", "Gate"]


def test_adapters_after_fusion_are_refused() -> None:
    """Otherwise the residual would be a part of what they add to."""
    r = Recorded()
    _ = r.x + r.linear(r.x)
    listing = r.listing(add_residuals_in_products)
    matrix = listing.instructions[1].matrix
    assert matrix is not None
    with pytest.raises(AssertionError, match="adapters come before fusion"):
        add_adapters(listing, [(matrix, LORA)])
