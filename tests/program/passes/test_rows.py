"""Unwanted rows are not computed, and embeddings are scaled as they are read."""

from __future__ import annotations

from octavo.program.passes.embeddings import scale_embeddings
from octavo.program.passes.selections import select_before_norms
from octavo.program.passes.wanted_rows import leave_out_unwanted_rows
from tests.program.recorded import Recorded


def test_a_scaled_embedding_is_one_instruction() -> None:
    r = Recorded()
    _ = r.x * 3.0
    (embed,) = r.listing(scale_embeddings)
    assert (embed.op, embed.factor) == ("Embed", 3.0)


def test_an_embedding_with_two_readers_is_not_scaled() -> None:
    r = Recorded()
    _ = r.x * 3.0 + r.x
    assert r.after(scale_embeddings) == "scale ×3; add"


def test_norms_move_behind_the_selection() -> None:
    r = Recorded()
    r.recorder.select_rows(r.norm(r.x), r.batch.logits_rows)
    assert r.after(select_before_norms) == "select; norm"


def test_a_norm_that_is_also_read_otherwise_stays_before_the_selection() -> None:
    r = Recorded()
    normed = r.norm(r.x)
    r.recorder.select_rows(normed, r.batch.logits_rows)
    r.linear(normed)
    assert r.after(select_before_norms) == "norm; select; gemm [32×32 F32]"


def test_only_wanted_rows_are_processed_after_the_last_attention() -> None:
    """Earlier values that are still needed are selected once, just before the attention."""
    r = Recorded()
    x = r.x
    for _ in range(2):
        out = r.linear(r.attend(*r.qkv(x)), 32)
        x = out + x + x
    r.recorder.select_rows(x, r.batch.logits_rows)
    listing = r.listing(leave_out_unwanted_rows)
    words = [f"{i.op} {i.out.buffer.space}" for i in listing if i.out is not None]
    layer = ["Gemm Tokens", "Attention Tokens", "Gemm Tokens", "Add Tokens", "Add Tokens"]
    last = ["Gemm Tokens", "Select Wanted", "Attention Wanted", "Gemm Wanted"]
    assert words == ["Embed Tokens", *layer, *last, "Add Wanted", "Add Wanted", "Select Logits"]


def test_a_listing_without_attention_stays_as_it_is() -> None:
    r = Recorded()
    r.recorder.select_rows(r.linear(r.x), r.batch.logits_rows)
    assert r.after(leave_out_unwanted_rows) == "gemm [32×32 F32]; select"
