"""The rows of each expert that ranks with whole experts compute, and what is copied."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.backends.native.packing import ExpertOwners
from tests.backends.native._native_test import ExpertBalance

READING = 16  # rows whose products take as long as to read an expert (csrc/experts/balance.cpp)


def starts(rows: list[int]) -> list[int]:
    """Return where each expert's pairs begin, and where the last one's end."""
    return [0, *accumulate(rows)]


def loads(balance: ExpertBalance, rows: list[int], ranks: int) -> list[int]:
    """Return what each rank has to do: its rows, and the experts that it reads."""
    found = []
    for rank in range(ranks):
        parts = balance.parts(starts(rows), rank)
        found.append(sum(count + READING for _, _, count, _ in parts))
    return found


def learn(balance: ExpertBalance, rows: list[int], steps: int = 1) -> list[tuple[int, int]]:
    """Let steps of such rows pass and a choice after each, and carry it out; return the choices."""
    made = []
    for _ in range(steps):
        balance.count(starts(rows))
        chosen = balance.choose()
        if chosen is not None:
            balance.put(*chosen)
            made.append(chosen)
    return made


@pytest.mark.parametrize(("experts", "ranks"), [(8, 1), (8, 2), (7, 3), (2, 4), (60, 7)])
def test_packing_and_computing_agree_about_owners(experts: int, ranks: int) -> None:
    balance = ExpertBalance(experts, ranks, 0)
    for rank in range(ranks):
        held = ExpertOwners(rank, ranks).held(experts)
        assert held == [
            "whole" if balance.owner(expert) == rank else "nothing" for expert in range(experts)
        ]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[int, int, int, list[list[int]]]:
    experts, ranks = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    counts = st.lists(st.integers(0, 200), min_size=experts, max_size=experts)
    return experts, ranks, draw(st.integers(0, 6)), draw(st.lists(counts, min_size=1, max_size=12))


@given(worlds())
def test_each_pair_is_computed_once_by_a_rank_that_has_its_expert(
    world: tuple[int, int, int, list[list[int]]],
) -> None:
    experts, ranks, slots, steps = world
    balance = ExpertBalance(experts, ranks, slots)
    for rows in steps:
        begin = starts(rows)
        computed = [0] * begin[-1]
        for rank in range(ranks):
            for expert, first, count, slot in balance.parts(begin, rank):
                assert count > 0
                assert begin[expert] <= first
                assert first + count <= begin[expert + 1]
                if slot < 0:
                    assert balance.owner(expert) == rank
                else:
                    assert balance.holder(slot) == rank
                    assert balance.expert_in(slot) == expert
                for pair in range(first, first + count):
                    computed[pair] += 1
        assert computed == [1] * len(computed)
        for slot, expert in learn(balance, rows):
            assert balance.owner(expert) != balance.holder(slot)


def test_a_hot_expert_is_copied_and_its_rows_are_divided() -> None:
    rows = [400, 40, 40, 40, 40, 40, 40, 40]
    balance = ExpertBalance(8, 2, 2)
    before = loads(balance, rows, 2)
    assert learn(balance, rows, 3)[0] == (1, 0)  # the slot of rank 1 gets expert 0
    after = loads(balance, rows, 2)
    assert max(before) == 400 + 3 * 40 + 4 * READING
    assert max(after) - min(after) <= 1
    (mine,), (theirs,) = (
        [part for part in balance.parts(starts(rows), rank) if part[0] == 0] for rank in (0, 1)
    )
    assert mine[2] + theirs[2] == 400
    assert (mine[3], theirs[3]) == (-1, 1)


def test_few_rows_are_not_divided_but_go_where_less_is_to_do() -> None:
    balance = ExpertBalance(4, 2, 2)
    balance.put(1, 0)
    rows = [3, 8, 0, 0]
    assert balance.parts(starts(rows), 0) == [(1, 3, 8, -1)]
    assert balance.parts(starts(rows), 1) == [(0, 0, 3, 1)]


def test_a_copy_stays_until_another_expert_is_much_hotter() -> None:
    balance = ExpertBalance(4, 2, 1)  # the slot is rank 0's, experts 2 and 3 are rank 1's
    assert learn(balance, [0, 0, 100, 90], 8) == [(0, 2)]
    assert learn(balance, [0, 0, 100, 130], 4) == []
    assert learn(balance, [0, 0, 20, 300], 4) == [(0, 3)]


def test_nothing_is_copied_to_a_rank_with_more_to_do() -> None:
    assert learn(ExpertBalance(4, 2, 1), [300, 0, 100, 90], 8) == []


@pytest.mark.parametrize("sizes", [(0, 2, 1), (2, 0, 1), (2, 2, -1)])
def test_impossible_sizes_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="whole experts need"):
        ExpertBalance(*sizes)
