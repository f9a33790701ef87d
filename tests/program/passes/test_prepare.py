"""The input of products is converted once for each form, and normalised then."""

from __future__ import annotations

from octavo.program.passes.prepare import norm_while_preparing, prepare_products
from tests.program.recorded import Recorded

BOTH = (prepare_products, norm_while_preparing)


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
