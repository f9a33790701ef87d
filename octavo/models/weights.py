"""A checkpoint's tensors as the binder wants them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from octavo.loader import Checkpoint, check_tensors


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
