"""Matrices that read several inputs side by side, as one matrix for each input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from octavo.backends.stored_rows import StoredRows
from octavo.models.weights import Weights
from octavo.quant.shard import Run, cut_inputs

WEIGHT, BIAS = ".weight", ".bias"


def part(name: str, number: int) -> str:
    """Return the name of a matrix's part, without ".weight"; the first part has the bias."""
    return f"{name}/{number}"


class SideBySide:
    """Weights of which some matrices are in parts; implements `Weights`."""

    def __init__(self, weights: Weights, ends: Mapping[str, int]) -> None:
        self._weights = weights
        self._parts: dict[str, tuple[str, int, int]] = {}  # of a tensor: its matrix, number, count
        for name in weights.shapes():
            for end, count in ends.items():
                self._add(name, end, count)

    def _add(self, name: str, end: str, count: int) -> None:
        if name.endswith(f"{end}{BIAS}"):
            self._parts[part(name.removesuffix(BIAS), 0) + BIAS] = name, 0, 1
        elif name.endswith(f"{end}{WEIGHT}"):
            stem = name.removesuffix(WEIGHT)
            for number in range(count):
                self._parts[part(stem, number) + WEIGHT] = name, number, count

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        whole = dict(self._weights.shapes())
        shapes = {
            made: (*whole[name][:-1], *(size // count for size in whole[name][-1:]))
            for made, (name, _, count) in self._parts.items()
        }
        for name, _, _ in self._parts.values():
            whole.pop(name, None)
        return whole | shapes

    def rows(self, name: str) -> StoredRows:
        if name not in self._parts:
            return self._weights.rows(name)
        stored, number, count = self._parts[name]
        rows = self._weights.rows(stored)
        if count == 1:
            return rows
        width = rows.inputs // count
        return cut_inputs(rows, Run(number * width, (number + 1) * width), stored)

    def _stored(self, name: str) -> str:
        """Return the file's name of a tensor, whether the file has it or not."""
        stem, dot, kind = name.rpartition(".")
        return stem.partition("/")[0] + dot + kind

    def row_type(self, name: str) -> str:
        return self._weights.row_type(self._stored(name))

    def is_in_act_order(self, name: str) -> bool:
        return self._weights.is_in_act_order(self._stored(name))

    def stored_types(self) -> Mapping[str, str]:
        return self._weights.stored_types()

    def check(self, expected: Mapping[str, tuple[int, ...]], extra: Iterable[str]) -> None:
        whole: dict[str, tuple[int, ...]] = {}
        for name, shape in expected.items():
            stored = self._stored(name)
            if "/" in name and stored in whole:  # another part of the same matrix
                shape = (*shape[:-1], whole[stored][-1] + shape[-1])
            whole[stored] = shape
        self._weights.check(whole, extra)
