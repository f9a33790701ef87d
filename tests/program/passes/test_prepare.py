"""The input of products is converted once for each form, and normalised then."""

from __future__ import annotations

from functools import partial

from octavo.layers import RMSNorm
from octavo.program.listing import Instruction
from octavo.program.passes.norms import norm_while_adding
from octavo.program.passes.prepare import (
    norm_while_preparing,
    prepare_products,
    prepare_while_making,
    read_floats_in_place,
)
from tests.program.recorded import Recorded

BOTH = (prepare_products, norm_while_preparing)
ALL = (*BOTH, read_floats_in_place)


def test_products_share_their_prepared_and_normalised_input() -> None:
    r = Recorded()
    normed = r.norm(r.x)
    r.linear(normed)
    r.linear(normed, 64)
    text = r.after(*BOTH)
    assert text == "prepare norm+ [32×32 F32]; gemm [32×32 F32]; gemm [64×32 F32]"


def test_products_that_read_different_forms_have_inputs_of_their_own() -> None:
    r = Recorded()
    r.linear(r.x, kind="int8")
    r.linear(r.x, 64, kind="floats")
    r.linear(r.x, kind="int8")
    listing = r.listing(*BOTH)
    forms = [i.prepared.kind for i in listing if i.prepared is not None]
    assert [i.op for i in listing] == ["Embed", "Prepare", "Gemm", "Prepare", "Gemm", "Gemm"]
    assert forms == ["int8", "int8", "floats", "floats", "int8"]


def test_a_norm_with_another_reader_stays_an_instruction() -> None:
    r = Recorded()
    normed = r.norm(r.x)
    _ = r.linear(normed) + normed
    text = r.after(*BOTH)
    assert text == "norm; prepare [32×32 F32]; gemm [32×32 F32]; add"


def test_products_of_floats_read_rows_where_they_are() -> None:
    r = Recorded()
    first = r.linear(r.x, kind="float")
    _ = r.linear(first, kind="float") + r.linear(first, kind="int8")
    text = r.after(*ALL)
    gemm, add = "gemm [32×32 F32]", "add"
    assert text == f"{gemm}; {gemm}; prepare [32×32 F32]; {gemm}; {add}"


def test_rows_that_are_normalised_first_or_lie_among_others_are_prepared() -> None:
    r = Recorded()
    r.linear(r.norm(r.x), kind="float")
    r.linear(r.recorder.split(r.x, (16, 16))[1], kind="float")
    text = r.after(*ALL)
    gemms = "prepare norm+ [32×32 F32]; gemm [32×32 F32]; prepare [32×16 F32]; gemm [32×16 F32]"
    assert text == gemms


MAKING = (norm_while_adding, prepare_products, prepare_while_making)


def test_what_makes_rows_for_products_alone_leaves_them_in_their_form() -> None:
    r = Recorded()
    normed = r.norm(r.x)
    q, k, v = r.qkv(normed)
    total = r.x + r.linear(r.attend(q, k, v))
    both = r.linear(r.norm(total), 64, kind="other")
    _ = total + r.linear(r.recorder.gated_activation(both, "silu"))
    listing = r.listing(*MAKING)
    ops = ["Embed", "Norm", "Gemm", "Attention", "Gemm", "AddNorm", "Gemm", "Gate", "Gemm", "Add"]
    assert [i.op for i in listing] == ops
    for maker, product in zip(listing.instructions[1::2], listing.instructions[2::2], strict=False):
        if maker.op == "Add":
            continue
        assert maker.out is None
        assert maker.prepared is product.prepared is not None
        assert maker.matrix is product.matrix
        assert maker.space == "Tokens"


def test_rows_that_others_read_too_stay_beside_their_form() -> None:
    """Adapters read such rows, and products another form of them."""
    r = Recorded()
    normed = r.norm(r.x)
    _ = r.linear(normed) + normed
    r.linear(normed, kind="other")
    listing = r.listing(*MAKING)
    assert [i.op for i in listing] == ["Embed", "Norm", "Gemm", "Add", "Prepare", "Gemm"]
    assert listing.instructions[1].out is normed
    assert listing.instructions[1].prepared is listing.instructions[2].prepared


def test_rows_of_heads_and_sums_alone_are_prepared_apart() -> None:
    r = Recorded()
    norm = RMSNorm(8, 1e-6)
    norm.weight = object()
    r.linear(r.recorder.head_norm(r.x, norm, 4))
    total = r.x + r.x
    r.norm(total)
    r.linear(total)
    ops = [i.op for i in r.listing(*MAKING)]
    assert ops == ["Embed", "Norm", "Prepare", "Gemm", "AddNorm", "Prepare", "Gemm"]


def test_some_products_alone_read_prepared_rows() -> None:
    r = Recorded()
    r.linear(r.x, kind="int8")
    r.linear(r.x, 64)

    def reads_prepared(product: Instruction) -> bool:
        return product.matrix is not None and product.matrix.kind == "int8"

    listing = r.listing(partial(prepare_products, reads_prepared=reads_prepared))
    assert [i.op for i in listing] == ["Embed", "Prepare", "Gemm", "Gemm"]
    assert listing.instructions[3].x is r.x
