"""All passes of fusion together: the index of a listing, and mixtures of experts."""

from __future__ import annotations

import pytest

from octavo.program.describe import describe
from octavo.program.passes.experts import split_experts
from octavo.program.passes.fusion import FUSION, rewrite
from octavo.program.passes.prepare import norm_while_preparing, prepare_products
from tests.program.recorded import ARCHITECTURES, recorded


def test_experts_are_sorted_pairs_and_two_products() -> None:
    listing = recorded("Qwen2MoeForCausalLM")
    before = describe(listing)
    rewrite(listing, (split_experts,))
    mixed = "experts of 3 experts [32×32 F32]"
    parts = "sortpairs of 3 experts\nexpertsin of 3 experts [32×32 F32] +Silu +gate"
    after = before.replace(mixed, f"{parts}\nexpertsout of 3 experts [32×16 F32]")
    assert before.count(mixed) == 2
    assert describe(listing) == after


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_listing_knows_its_readers_and_writers_after_every_pass(architecture: str) -> None:
    listing = recorded(architecture)
    for one in (*FUSION, prepare_products, norm_while_preparing):
        one(listing)
        values = [value for i in listing for value in (*i.reads, *i.writes)]
        for buffer in {value.buffer for value in values}:
            reading = [i for i in listing if any(value.buffer is buffer for value in i.reads)]
            assert sorted(map(listing.index, listing.readers(buffer))) == list(
                map(listing.index, reading)
            )
        for value in values:
            writing = [i for i in listing if any(v.buffer is value.buffer for v in i.writes)]
            assert listing.maker(value) in (*writing, None)
