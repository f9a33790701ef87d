"""Weights of a model whose factors have moved: what every tensor is divided and multiplied by."""

from __future__ import annotations

import numpy as np

from octavo.loader import Checkpoint
from octavo.loader.checkpoint import numpy_dtype
from octavo.quantize.packer import Array, Floats
from octavo.quantize.sites import Giver, Site


class MovedFactors:
    """The factors that have moved, by the names of the tensors that they change."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._columns: dict[str, Floats] = {}  # what the inputs of a matrix are multiplied by
        self._rows: dict[str, Floats] = {}  # what the rows of a tensor are divided by
        self._offsets: dict[str, float] = {}

    def move(self, site: Site, factors: Floats) -> None:
        """Divide what makes the site's inputs by factors, and multiply the weights by them.

        Where the numbers that are divided stay floats, they are rounded to their type, and the
        weights are multiplied by what the division then was.
        """
        first = site.givers[0]
        if len(self._checkpoint.info(first.name).shape) == 1:
            factors = self._as_stored(first, factors)
        for name in site.readers:
            self._columns[name] = factors
        for giver in site.givers:
            self._offsets[giver.name] = giver.offset
            divisors = np.ones(self._checkpoint.info(giver.name).shape[0], np.float32)
            divisors[giver.first : giver.first + len(factors)] = factors
            self._rows[giver.name] = divisors

    def _as_stored(self, giver: Giver, factors: Floats) -> Floats:
        """Return the factors with which the divided numbers are those of their type."""
        offset = np.float32(giver.offset)
        values = self._checkpoint.read_float32(giver.name) + offset
        kind = numpy_dtype(self._checkpoint.info(giver.name).type)
        made = (values / factors - offset).astype(kind).astype(np.float32) + offset
        is_usable = (values != 0) & (made != 0) & np.isfinite(made)
        found: Floats = np.where(is_usable, values / np.where(is_usable, made, 1), 1)
        return found.astype(np.float32)

    def columns(self, name: str) -> Floats | None:
        """Return what a matrix's inputs are multiplied by, if that is anything."""
        return self._columns.get(name)

    def matrix(self, name: str, values: Floats, first_row: int) -> Floats:
        """Return some rows of a matrix as they are now."""
        if name in self._columns:
            values = values * self._columns[name]
        if name in self._rows:
            values = values / self._rows[name][first_row : first_row + len(values), None]
        return values

    def vector(self, name: str) -> Array | None:
        """Return a vector as it is now, in its type; None if it has not changed."""
        if name not in self._rows or len(self._checkpoint.info(name).shape) != 1:
            return None
        offset = np.float32(self._offsets[name])
        values = (self._checkpoint.read_float32(name) + offset) / self._rows[name] - offset
        return values.astype(numpy_dtype(self._checkpoint.info(name).type))
