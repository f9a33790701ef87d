"""A shrink stands before each product that adapters modify, and the product reads what it makes."""

from __future__ import annotations

import pytest

from octavo.program.describe import describe
from octavo.program.operands import Adapters
from octavo.program.passes.adapters import add_adapters
from octavo.program.passes.fusion import FUSION, rewrite
from octavo.program.passes.prepare import norm_while_preparing, prepare_products
from tests.program.recorded import WIDTH, Recorded

LORA = Adapters("blocks.0.mlp.down", 0, WIDTH, (WIDTH,), 4)


def test_the_product_reads_what_the_shrink_makes_of_its_input() -> None:
    r = Recorded()
    r.recorder.activation(r.linear(r.x), "relu")
    listing = r.listing()
    matrix = listing.instructions[1].matrix
    assert matrix is not None
    add_adapters(listing, [(matrix, LORA)])
    shrink, product, activate = listing.instructions[1:]
    assert [i.op for i in (shrink, product)] == ["Shrink", "Gemm"]
    assert shrink.x is product.x
    assert shrink.out is product.low
    assert product.out is activate.x
    assert shrink.out is not None
    assert shrink.out.width == LORA.width
    assert listing.readers(shrink.out.buffer) == [product]


def test_other_products_and_lookups_stay_as_they_are() -> None:
    r = Recorded()
    one, other = r.linear(r.x), r.linear(r.x)
    _ = one + other
    listing = r.listing()
    table, matrix = listing.instructions[0].matrix, listing.instructions[2].matrix
    assert table is not None
    assert matrix is not None
    add_adapters(listing, [(table, LORA), (matrix, LORA)])
    assert [i.op for i in listing] == ["Embed", "Gemm", "Shrink", "Gemm", "Add"]
    assert listing.instructions[1].low is None


@pytest.mark.parametrize("end", ["gate", "residual", "activation", "cap"])
def test_a_product_with_adapters_still_does_what_follows(end: str) -> None:
    """The addends come before everything that a product does with its sums."""
    r = Recorded()
    y = r.linear(r.x, 64 if end == "gate" else WIDTH, gated=end == "gate")
    if end == "gate":
        r.recorder.gated_activation(y, "silu")
    elif end == "residual":
        _ = r.x + y
    elif end == "activation":
        r.recorder.activation(y, "relu")
    else:
        r.recorder.soft_cap(y * 2.0, 3.0)
    listing = r.listing()
    matrix = listing.instructions[1].matrix
    assert matrix is not None
    add_adapters(listing, [(matrix, LORA)])
    rewrite(listing, FUSION)
    assert [i.op for i in listing] == ["Embed", "Shrink", "Gemm"]
    words = describe(listing).splitlines()[2]
    expected = {
        "gate": "+silu +gate",
        "residual": "+residual",
        "activation": "+relu",
        "cap": "×2 cap 3",
    }[end]
    assert words.lower().endswith(f"+adapters {expected}")


def test_both_readers_of_a_norm_compute_it() -> None:
    """The rows with adapters are normalised again, so that all rows need not be kept."""
    r = Recorded()
    r.linear(r.norm(r.x))
    listing = r.listing()
    matrix = listing.instructions[2].matrix
    assert matrix is not None
    add_adapters(listing, [(matrix, LORA)])
    rewrite(listing, (prepare_products, norm_while_preparing))
    assert [i.op for i in listing] == ["Embed", "Shrink", "Prepare", "Gemm"]
    shrink, prepare = listing.instructions[1:3]
    assert shrink.norm is prepare.norm is not None
    assert shrink.x is prepare.x is listing.instructions[0].out


def test_adapters_after_preparation_are_refused() -> None:
    """The product no longer has the floats that an adapter multiplies."""
    r = Recorded()
    r.linear(r.x)
    listing = r.listing(prepare_products)
    matrix = listing.instructions[2].matrix
    assert matrix is not None
    with pytest.raises(AssertionError, match="adapters come before"):
        add_adapters(listing, [(matrix, LORA)])
