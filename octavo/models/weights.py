"""A checkpoint's tensors as the binder wants them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.loader import Checkpoint, check_tensors


class Weights(Protocol):
    """Tensors by their Hugging Face names, whatever file they come from."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor there is."""

    def read(self, name: str) -> NDArray[Any]:
        """Its values."""

    def check(self, expected: Mapping[str, tuple[int, ...]], extra: Iterable[str]) -> None:
        """Refuse what is missing, misshapen, or neither expected nor known to be extra."""


class CheckpointWeights:
    """A safetensors checkpoint: names and values are what they are."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: info.shape for name, info in self._checkpoint.tensors.items()}

    def read(self, name: str) -> NDArray[np.float32]:
        return self._checkpoint.read_float32(name)

    def check(self, expected: Mapping[str, tuple[int, ...]], extra: Iterable[str]) -> None:
        check_tensors(self._checkpoint, expected, may_be_extra=extra)


class RenamedWeights:
    """Weights some of whose names begin differently from what the family calls them."""

    def __init__(self, weights: Weights, renames: Sequence[tuple[str, str]]) -> None:
        self._weights = weights
        # The family's name → the checkpoint's. Where two are for one tensor, the other of them is
        # not expected, and so refused.
        self._stored = {_renamed(stored, renames): stored for stored in weights.shapes()}

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        shapes = self._weights.shapes()
        return {name: shapes[stored] for name, stored in self._stored.items()}

    def read(self, name: str) -> NDArray[Any]:
        return self._weights.read(self._stored[name])

    def check(self, expected: Mapping[str, tuple[int, ...]], extra: Iterable[str]) -> None:
        stored = {self._stored.get(name, name): shape for name, shape in expected.items()}
        self._weights.check(stored, [self._stored.get(name, name) for name in extra])


def _renamed(name: str, renames: Sequence[tuple[str, str]]) -> str:
    for beginning, ours in renames:
        if name.startswith(beginning):
            return ours + name.removeprefix(beginning)
    return name
