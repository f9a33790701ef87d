"""Chooses from a matrix of cases so few that each two values which can meet still meet.

Tests marked `matrix` run so in every run but those with `--whole`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import TypeVar

import pytest

MARK = "matrix"
Case = TypeVar("Case")
Pair = tuple[tuple[str, Hashable], ...]


def pairwise(
    cases: Sequence[Case], axes: Callable[[Case], Mapping[str, Hashable]]
) -> Iterator[Case]:
    """Yield cases until each two values that can meet have met, most new pairs first."""
    pairs = [(each, frozenset(_pairs(axes(each)))) for each in cases]
    left: set[Pair] = set().union(*(of_case for _, of_case in pairs))
    while left:
        best, met = max(pairs, key=lambda each: len(each[1] & left))
        left -= met
        yield best


def _pairs(values: Mapping[str, Hashable]) -> Iterator[Pair]:
    """Yield each two of the values, with their axes; one alone where there is no other."""
    return combinations(sorted(values.items()), min(2, len(values)))


def leave_out(items: Sequence[pytest.Item]) -> dict[str, pytest.Item]:
    """Return, by name, the tests marked `matrix` without which all pairs still meet."""
    matrices: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker(MARK) is not None:
            matrices.setdefault(item.nodeid.partition("[")[0], []).append(item)
    chosen = {each.nodeid for matrix in matrices.values() for each in pairwise(matrix, _axes)}
    of_matrices = (each for matrix in matrices.values() for each in matrix)
    return {each.nodeid: each for each in of_matrices if each.nodeid not in chosen}


def _axes(item: pytest.Function) -> Mapping[str, Hashable]:
    """Return which value of each of its parameters a test has, by identity."""
    return {name: id(value) for name, value in item.callspec.params.items()}
