"""The weights of a model whose tokens get the ids of another vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from octavo.backends.stored_rows import StoredRows
from octavo.layers import Model
from octavo.models.needs import find_needs
from octavo.models.weights import Weights, renamed


class TranslatedWeights:
    """Weights in which row i of the embedding, and of the head, is that of token `ids[i]`.

    So a model reads and scores the tokens of another vocabulary by their ids there. Several of
    these may be one token to it.
    """

    def __init__(self, weights: Weights, model: Model, ids: Sequence[int]) -> None:
        self._weights = weights
        self._order = np.asarray(ids, np.int64)
        shapes = weights.shapes()
        known = {renamed(stored, model.renames): stored for stored in shapes}
        tables = {
            name
            for need in find_needs(model, known)
            if need.module in (model.embed, model.head)
            for source in need.sources
            for name in need.names(source)
        }
        self._stored = {known[name]: shapes[known[name]] for name in tables if name in known}

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        made = {name: (len(self._order), *shape[1:]) for name, shape in self._stored.items()}
        return {**self._weights.shapes(), **made}

    def rows(self, name: str) -> StoredRows:
        rows = self._weights.rows(name)
        if name not in self._stored:
            return rows
        if len(self._stored[name]) == 1:  # what is added to scores: one row
            return StoredRows.of(rows.floats()[:, self._order])
        return rows.reordered(self._order)

    def row_type(self, name: str) -> str:
        return self._weights.row_type(name)

    def is_in_act_order(self, name: str) -> bool:
        return self._weights.is_in_act_order(name)

    def stored_types(self) -> Mapping[str, str]:
        return self._weights.stored_types()

    def check(self, expected: Mapping[str, tuple[int, ...]], extra: Iterable[str]) -> None:
        self._weights.check({**expected, **self._of_files(expected)}, extra)

    def _of_files(self, expected: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the tables as the files must have them."""
        return {
            name: (shape[0], *expected[name][1:])
            for name, shape in self._stored.items()
            if name in expected
        }
