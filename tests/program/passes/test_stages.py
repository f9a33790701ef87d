"""Where listings are cut into stages: one value crosses, and the largest stage is the smallest."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec import structs

from octavo.program.listing import Instruction, Listing
from octavo.program.passes.fusion import NEIGHBOURS, WHOLE, rewrite
from octavo.program.passes.stages import (
    StageError,
    choose_cuts,
    number_layers,
    own_part,
    possible_cuts,
)
from tests.program.fakes import FakeMatrix
from tests.program.recorded import ARCHITECTURES, Recorded, recorded


def sizes(instruction: Instruction) -> Iterable[tuple[object, int]]:
    matrix = instruction.matrix
    return [] if matrix is None else [(matrix, matrix.num_bytes)]


def layers(count: int, widest: int = -1) -> Listing:
    """Record layers of attention and of a product, one of them wider than the others."""
    r = Recorded()
    x = r.x
    for number in range(count):
        q, k, v = r.qkv(r.norm(x))
        x = x + r.linear(r.attend(q, k, v))
        x = x + r.linear(r.linear(r.norm(x), 640 if number == widest else 64))
    r.linear(r.norm(x), 50)
    listing = r.listing()
    for number, attention in enumerate(i for i in listing if i.op == "Attention"):
        assert attention.attend is not None
        attention.attend = structs.replace(attention.attend, place=(0, number))
    return listing


def test_only_the_residual_stream_crosses_a_cut() -> None:
    listing = layers(3)
    for cut in possible_cuts(listing):
        before = {v.buffer for i in listing.instructions[: cut.at] for v in i.writes}
        behind = {v.buffer for i in listing.instructions[cut.at :] for v in i.reads}
        assert before & behind == {cut.value.buffer}


def test_layers_that_share_what_they_keep_stay_together() -> None:
    listing = layers(4)
    third = [i for i in listing if i.op == "Attention"][2]
    second = [i for i in listing if i.op == "Attention"][1]
    third.attend = second.attend
    between = listing.index(second), listing.index(third)
    assert not [c for c in possible_cuts(listing) if between[0] < c.at <= between[1]]


def test_the_largest_stage_is_as_small_as_possible() -> None:
    listing = layers(6, widest=1)
    cuts = choose_cuts(listing, 3, sizes)
    mixers = [[i.op for i in own_part(listing, cuts, s)].count("Attention") for s in range(3)]
    assert sum(mixers) == 6
    wide = [
        s
        for s in range(3)
        for i in own_part(listing, cuts, s)
        if isinstance(i.matrix, FakeMatrix) and i.matrix.outputs == 640
    ]
    assert mixers[wide[0]] == 1  # the wide layer is alone in its stage


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_instruction_is_in_one_stage(architecture: str, stages: int) -> None:
    whole, listing = recorded(architecture), recorded(architecture)
    rewrite(whole, WHOLE)
    rewrite(listing, WHOLE)
    cuts = choose_cuts(listing, stages, sizes)
    parts = [own_part(listing, cuts, stage) for stage in range(stages)]
    own = [i for part in parts for i in part]
    assert {id(i) for i in listing} <= {id(i) for i in own}
    assert len(own) == len(whole.instructions) + 2 * (stages - 1) + 1
    first = [i.op for i in parts[0]]
    assert first[0] == "Embed"
    assert first.count("Relay") == 1
    results = {v.buffer.place for i in parts[0] for v in i.writes} - {"Scratch"}
    assert results == {"LogitsOut", "HiddenOut"}
    for part in parts:
        rewrite(part, NEIGHBOURS)
    assert all(part.instructions[0].op == "Given" for part in parts[1:])
    made = [i.out for part in parts[1:] for i in part if i.out is not None]
    assert {v.buffer.place for v in made} == {"Scratch", "StateOut"}
    assert {v.buffer.space for v in made} <= {"Tokens", "Wanted", "Pairs"}


def test_layers_are_numbered_anew() -> None:
    listing = layers(4)
    cuts = choose_cuts(listing, 2, sizes)
    parts = [own_part(listing, cuts, stage) for stage in range(2)]
    counts = [number_layers(part) for part in parts]
    assert sum(each.get(0, 0) for each in counts) == 4
    for part, count in zip(parts, counts, strict=True):
        places = [i.attend.place for i in part if i.attend is not None]
        assert places == [(0, number) for number in range(count.get(0, 0))]


def test_too_many_stages_are_refused() -> None:
    with pytest.raises(StageError, match="can be cut at 2 places, and 4 stages need 3 at least"):
        choose_cuts(layers(2), 4, sizes)
