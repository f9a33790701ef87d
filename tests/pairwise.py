"""Chooses few of many cases: all run with `--whole`.

Of a test that is marked `matrix`, so many run that each two values which can meet still meet. Of
one marked `sample(n)`, whose cases differ in little more than a seed, n run, evenly spread.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import TypeVar

import pytest

MATRIX, SAMPLE = "matrix", "sample"
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
    """Return, by name, the cases of marked tests that only `--whole` runs."""
    marked: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and any(
            map(item.get_closest_marker, (MATRIX, SAMPLE))
        ):
            marked.setdefault(item.nodeid.partition("[")[0], []).append(item)
    chosen = {each.nodeid for cases in marked.values() for each in _chosen(cases)}
    return {
        each.nodeid: each
        for cases in marked.values()
        for each in cases
        if each.nodeid not in chosen
    }


def _chosen(cases: list[pytest.Function]) -> Iterable[pytest.Function]:
    """Return the cases of one test that run without `--whole`."""
    mark = cases[0].get_closest_marker(SAMPLE)
    return pairwise(cases, _axes) if mark is None else sample(cases, mark.args[0])


def sample(cases: Sequence[Case], count: int) -> list[Case]:
    """Return so many of the cases, evenly spread; all where there are fewer."""
    count = min(count, len(cases))
    return [cases[index * len(cases) // count] for index in range(count)]


def _axes(item: pytest.Function) -> Mapping[str, Hashable]:
    """Return which value of each of its parameters a test has, by identity."""
    return {name: id(value) for name, value in item.callspec.params.items()}
