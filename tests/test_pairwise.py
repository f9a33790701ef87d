"""Tests of the choice of cases from a matrix."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, product

import pytest

from tests.pairwise import pairwise, sample

Case = tuple[str, int, bool]
CASES: list[Case] = list(product("abcde", range(4), (False, True)))


def axes(case: Case) -> Mapping[str, object]:
    return dict(zip(("letter", "number", "truth"), case, strict=True))


def pairs(cases: list[Case]) -> set[object]:
    return {pair for case in cases for pair in combinations(enumerate(case), 2)}


def test_each_two_values_meet_in_few_cases() -> None:
    chosen = list(pairwise(CASES, axes))
    assert pairs(chosen) == pairs(CASES)
    assert 5 * 4 <= len(chosen) < 5 * 4 + 5
    assert chosen == list(pairwise(CASES, axes))


def test_only_what_can_meet_is_waited_for() -> None:
    possible = [case for case in CASES if case[1] or case[2]]
    assert pairs(list(pairwise(possible, axes))) == pairs(possible)


@pytest.mark.parametrize("values", [[], [1], [1, 2, 3]])
def test_with_one_axis_all_cases_are_chosen(values: list[int]) -> None:
    assert list(pairwise(values, lambda value: {"it": value})) == values


def test_a_case_without_axes_is_chosen_once() -> None:
    assert list(pairwise(["only"], lambda case: {})) == ["only"]


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, [0]), (2, [0, 5]), (3, [0, 3, 6]), (10, [*range(10)]), (99, [*range(10)])],
)
def test_a_sample_is_spread_over_all_cases(count: int, expected: list[int]) -> None:
    assert sample(range(10), count) == expected
