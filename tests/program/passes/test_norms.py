"""A sum that is normalised is normalised by the instruction that makes it."""

from __future__ import annotations

import pytest
import torch

from octavo.backends.torch.interpreter import MEANINGS
from octavo.backends.torch.run import Run
from octavo.layers import RMSNorm
from octavo.program.listing import Listing
from octavo.program.passes.norms import norm_while_adding
from tests.program.recorded import WIDTH, Recorded, recorded


def test_a_sum_and_its_norm_become_one_and_both_are_written() -> None:
    r = Recorded()
    total = r.x + r.linear(r.x)
    normed = r.norm(total)
    end = total + r.linear(normed)
    listing = r.listing(norm_while_adding)
    assert [i.op for i in listing] == ["Embed", "Gemm", "AddNorm", "Gemm", "Add"]
    joined = listing.instructions[2]
    assert joined.total is total
    assert joined.out is normed
    assert joined.writes == (normed, total)
    assert listing.maker(total) is listing.maker(normed) is joined
    assert listing.maker(end) is listing.instructions[-1]


def test_a_sum_that_two_norms_read_is_joined_with_the_first() -> None:
    r = Recorded()
    total = r.x + r.x
    first, second = r.norm(total), r.norm(total)
    listing = r.listing(norm_while_adding)
    assert [i.op for i in listing] == ["Embed", "AddNorm", "Norm"]
    assert listing.instructions[1].out is first
    assert listing.instructions[2].out is second


def test_norms_of_heads_and_of_other_values_stay_apart() -> None:
    r = Recorded()
    norm = RMSNorm(8, 1e-6)
    norm.weight = object()
    total = r.x + r.x
    r.recorder.head_norm(total, norm, 4)
    r.norm(r.recorder.split(total, (16, 16))[0])
    r.norm(r.linear(total))
    assert r.after(norm_while_adding) == r.after()


def test_a_residual_model_has_one_norm_apart() -> None:
    """The first layer's input is no sum."""
    listing: Listing = recorded("LlamaForCausalLM")
    before = [i.op for i in listing]
    norm_while_adding(listing)
    ops = [i.op for i in listing]
    assert ops.count("AddNorm") == before.count("Add") > 1
    assert ops.count("Norm") == 1
    assert "Add" not in ops


@pytest.mark.parametrize("rows", [1, 3])
def test_its_meaning_is_that_of_the_two(rows: int) -> None:
    r = Recorded()
    weight = torch.linspace(0.5, 1.5, WIDTH)
    total = r.x + r.linear(r.x)
    normed = r.recorder.rms_norm(total, weight, 1e-6, 0.0)
    found = []
    for passes in ((), (norm_while_adding,)):
        run = Run(None)  # type: ignore[arg-type]
        generator = torch.Generator().manual_seed(rows)
        listing = r.listing(*passes)
        for instruction in listing:
            if instruction.op in ("Embed", "Gemm"):
                run[instruction.out] = torch.randn(rows, WIDTH, generator=generator)
            else:
                MEANINGS[instruction.op](run, instruction)
        found.append((run[total], run[normed]))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
