"""What a layer reads becomes an output, in the order of the layers."""

from __future__ import annotations

import pytest

from octavo.program.passes.fusion import FUSION, rewrite
from octavo.program.passes.kept_hidden import keep_hidden
from tests.program.recorded import ARCHITECTURES, Recorded, recorded


@pytest.mark.parametrize("has_norm", [True, False])
def test_the_input_is_kept_before_it_is_normalised(has_norm: bool) -> None:
    r = Recorded()
    for _ in range(2):
        x = r.norm(r.x) if has_norm else r.x
        r.attend(*r.qkv(x))
    listing = r.listing()
    keep_hidden(listing, [1])
    layer = ["Norm", "Gemm", "Attention"] if has_norm else ["Gemm", "Attention"]
    assert [i.op for i in listing] == ["Embed", *layer, "Select", *layer]
    select = next(i for i in listing if i.op == "Select")
    assert select.x is r.x
    assert select.out is not None
    assert (select.out.buffer.space, select.out.buffer.place) == ("Hidden", "KeptOut")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_fusion_keeps_the_outputs_in_the_order_of_the_layers(architecture: str) -> None:
    listing = recorded(architecture)
    keep_hidden(listing, [1, 0, 1])
    kept = [i.out for i in listing if i.out is not None and i.out.buffer.place == "KeptOut"]
    rewrite(listing, FUSION)
    assert len(kept) == 2
    assert [i.out for i in listing if i.out in kept] == kept
