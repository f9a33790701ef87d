"""The input of products is converted once for each form, and normalised then."""

from __future__ import annotations

from octavo.program.passes.prepare import (
    norm_while_preparing,
    prepare_products,
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
