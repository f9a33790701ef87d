"""The pairs of an adapter, collected module by module, each checked before it is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.adapters.module_choice import Names
from octavo.adapters.targets import Order, Target, Targets
from octavo.backends.adapter_weights import AdapterWeights, Bias, Pair, Whole
from octavo.loader.checkpoint import Checkpoint
from octavo.loader.errors import TensorMismatchError, UnsupportedFormatError, quote
from octavo.quant.plain import tensor_rows

# By the name of a type: integers of its size, with a sign and without, and the bits of infinity.
# Where a number is not finite, its bits are at least these; they are more than those of any finite
# number of the same sign. So the largest integer says it for either sign, in one pass over memory.
_INFINITIES: Mapping[str, tuple[type[Any], type[Any], int]] = {
    "F32": (np.int32, np.uint32, 0x7F800000),
    "BF16": (np.int16, np.uint16, 0x7F80),
    "F16": (np.int16, np.uint16, 0x7C00),
}


def _is_finite(values: NDArray[Any], type_: str) -> bool:
    """Return whether all numbers are finite."""
    signed, unsigned, infinity = _INFINITIES[type_]
    negative = infinity | 1 << (8 * values.itemsize - 1)
    return not values.size or bool(
        values.view(signed).max() < infinity and values.view(unsigned).max() < negative
    )


class Limits(NamedTuple):
    """The bounds of the adapters that an engine takes."""

    max_rank: int
    modules: Names | None = None  # that they may change; None: all projections
    wholes: bool = False  # they may have a head and an embedding of their own


class Halves(NamedTuple):
    """The names of the two tensors of a module's pair."""

    down: str
    up: str


class Pairs:
    """The pairs that were read so far, by projection and part."""

    def __init__(
        self, checkpoint: Checkpoint, targets: Targets, limits: Limits, base: str | None = None
    ) -> None:
        self._checkpoint = checkpoint
        self._targets = targets
        self._limits = limits
        self._base = base  # the model that it was made for, as its settings name it
        self._pairs: dict[str, list[Pair | None]] = {}
        self._biases: dict[str, list[Bias | None]] = {}
        self._wholes: dict[str, Whole] = {}
        self._rank = 0

    @property
    def path(self) -> Path:
        return self._checkpoint.path

    def target(self, module: str, tensor: str) -> Target:
        """Return what a module is; raise an error, with the tensor's name, if it has no pair."""
        found = self._targets.find(module)
        if found is None:
            raise self._unknown(module, tensor)
        if self._limits.modules is not None and not self._limits.modules.match(module):
            raise TensorMismatchError(
                f"it changes {quote(module)}, which lora_target_modules does not name",
                path=self.path,
                tensor=tensor,
                advice="add it there, or leave lora_target_modules out",
            )
        return found

    def _unknown(self, module: str, tensor: str) -> TensorMismatchError | UnsupportedFormatError:
        why = self._targets.why_not(module)
        if why is not None:
            return UnsupportedFormatError(
                f"it changes {quote(module)}: {why}",
                path=self.path,
                tensor=tensor,
                advice="train the adapter without it, or merge it into its base",
            )
        known = ", ".join(quote(name) for name, _ in list(self._targets.items())[:3])
        return TensorMismatchError(
            f"this model has no projection {quote(module)}; it has {len(self._targets):,}, such as "
            f"{known}",
            path=self.path,
            tensor=tensor,
            advice=self._advice,
        )

    @property
    def _advice(self) -> str:
        made_for = "" if self._base is None else f", {quote(self._base)} by its settings"
        return f"the adapter was made for another model{made_for}"

    def add(
        self,
        module: str,
        halves: Halves,
        scale_of: Callable[[int], float],
        *,
        rank: int | None = None,
        order: NDArray[np.int64] | None = None,
        magnitude: str | None = None,
        is_turned: bool = False,
    ) -> None:
        """Add the pair of a module, whose scale follows from its rank.

        `rank` is what settings say; None: whatever the tensors have. `order` has the file's row for
        each row of the module; None: they are the same. `magnitude` names the tensor of the lengths
        of its rows (DoRA), if there is one. `is_turned`: the first matrix is [inputs, rank].
        """
        for name, other in (halves, halves[::-1]):
            if other not in self._checkpoint:
                raise TensorMismatchError(
                    f"there is no {quote(other)} beside it",
                    path=self.path,
                    tensor=name,
                    advice="the file is incomplete",
                )
        target = self.target(module, halves.down)
        shape = self._checkpoint.info(halves.down).shape
        if rank is None:
            rank = shape[int(is_turned)] if len(shape) == 2 else 1
        wanted = (rank, target.inputs)
        self._check_shape(halves.down, wanted[::-1] if is_turned else wanted)
        self._check_shape(halves.up, (target.outputs, rank))
        self._check_rank(halves.down, rank)
        down, up, scale = self._read(halves.down), self._read(halves.up), scale_of(rank)
        if not math.isfinite(scale):
            raise TensorMismatchError(f"its scale is {scale}", path=self.path, tensor=halves.down)
        if is_turned:
            down = down.T
        if order is not None:
            up = up[order]
        lengths = None if magnitude is None else self._vector(magnitude, target)
        parts = self._pairs.setdefault(target.path, [None] * target.num_parts)
        for part, rows in target.shares:
            if parts[part] is not None:
                raise TensorMismatchError(
                    f"another pair changes {quote(module)} too", path=self.path, tensor=halves.down
                )
            of_part = None if lengths is None else _chosen(lengths, rows)
            parts[part] = Pair(down, _chosen(up, rows), scale, of_part)
        self._rank = max(self._rank, rank)

    def add_bias(self, module: str, name: str, *, scale: float | None = None) -> None:
        """Add a bias: times a scale to what the module makes; without one in place of its own."""
        target = self.target(module, name)
        if scale is None:
            self._check_has_bias(target, module, name)
        values = self._vector(name, target)
        parts = self._biases.setdefault(target.path, [None] * target.num_parts)
        for part, rows in target.shares:
            before, share = parts[part] or Bias(), _chosen(values, rows)
            if scale is None:
                parts[part] = before._replace(own=share)
            else:
                parts[part] = before._replace(added=np.float32(scale) * share)

    def add_whole(self, module: str, name: str, bias: str | None = None) -> None:
        """Add a matrix in place of a module's own, and its bias."""
        target = self.target(module, name)
        if not target.can_be_whole:
            raise UnsupportedFormatError(
                f"it is a whole layer, {quote(module)}, and only the head and the embedding can be "
                "replaced",
                path=self.path,
                tensor=name,
                advice="train the adapter without it, or merge it into its base",
            )
        if not self._limits.wholes:
            raise UnsupportedFormatError(
                "it is a whole matrix, and this engine keeps no memory for such",
                path=self.path,
                tensor=name,
                advice="start it with max_saved_loras, or train without modules_to_save",
            )
        sizes = target.outputs, target.inputs
        self._check_shape(name, sizes[::-1] if target.is_lookup else sizes)
        self._read(name)
        if bias is not None:
            self._check_has_bias(target, module, bias)
        values = None if bias is None else self._vector(bias, target)
        if target.path in self._wholes:
            raise TensorMismatchError(
                f"another matrix is in place of {quote(module)} too", path=self.path, tensor=name
            )
        self._wholes[target.path] = Whole(tensor_rows(self._checkpoint, name), values)

    def _check_has_bias(self, target: Target, module: str, name: str) -> None:
        if not target.has_bias:
            raise TensorMismatchError(
                f"this model's {quote(module)} has no bias",
                path=self.path,
                tensor=name,
                advice=self._advice,
            )

    def check_saved(self, names: Names) -> None:
        """Raise an error if the head or the embedding is named as saved, and the file has none."""
        for module, target in self._targets.items():
            if target.can_be_whole and names.match(module) and target.path not in self._wholes:
                raise TensorMismatchError(
                    f"modules_to_save names {quote(module)}, and the file has none",
                    path=self.path,
                    advice="the file is incomplete",
                )

    def check_copy(self, module: str, name: str) -> None:
        """Check a copy of the base's own weight, which PEFT saves beside pairs of embeddings."""
        target = self.target(module, name)
        sizes = target.outputs, target.inputs
        self._check_shape(name, sizes[::-1] if target.is_lookup else sizes)

    def tie(self, head: str, embedding: str) -> None:
        """Let the head be changed as the embedding is, whose matrix it has."""
        if embedding in self._wholes:
            self._wholes.setdefault(head, self._wholes[embedding])
        (pair,) = self._pairs.get(embedding, [None])
        if pair is not None:
            down, up = np.ascontiguousarray(pair.up.T), np.ascontiguousarray(pair.down.T)
            self._pairs.setdefault(head, [Pair(down, up, pair.scale)])

    def _vector(self, name: str, target: Target) -> NDArray[np.float32]:
        """Return a tensor that has a number for each row of a module."""
        self._check_shape(name, (target.outputs,))
        return np.asarray(self._read(name), np.float32)

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        found = self._checkpoint.info(name).shape
        if found != shape:
            raise TensorMismatchError(
                f"has shape {list(found)}, and this model and the adapter's settings need "
                f"{list(shape)}",
                path=self.path,
                tensor=name,
                advice=self._advice,
            )

    def _check_rank(self, name: str, rank: int) -> None:
        if rank > self._limits.max_rank:
            raise TensorMismatchError(
                f"has rank {rank}, and this engine takes {self._limits.max_rank} at most",
                path=self.path,
                tensor=name,
                advice="raise max_lora_rank",
            )

    def _read(self, name: str) -> NDArray[Any]:
        """Return a tensor's numbers, as they are stored if they are floats, once all are finite."""
        info = self._checkpoint.info(name)
        if info.type.is_quantized:
            values: NDArray[Any] = self._checkpoint.read_float32(name)
            is_finite = _is_finite(values, "F32")
        elif info.type.name in _INFINITIES:
            values = self._checkpoint.read(name)
            is_finite = _is_finite(values, info.type.name)
        else:
            raise TensorMismatchError(
                f"is of the type {info.type.name}; F32, BF16 and F16 are read",
                path=self.path,
                tensor=name,
                advice="save the adapter in one of these types",
            )
        if not is_finite:
            raise TensorMismatchError(
                "has numbers that are not finite (NaN or infinity)", path=self.path, tensor=name
            )
        return values

    def finish(self) -> AdapterWeights:
        """Return the adapter; raise an error if it has no pair."""
        if not self._pairs and not self._wholes:
            raise TensorMismatchError("the adapter has no pair of matrices", path=self.path)
        return AdapterWeights(
            {path: tuple(parts) for path, parts in self._pairs.items()},
            self._rank,
            {path: tuple(parts) for path, parts in self._biases.items()},
            self._wholes,
        )


def _chosen(values: NDArray[Any], rows: Order) -> NDArray[Any]:
    """Return rows, as a view where they are neighbours."""
    return values[rows] if isinstance(rows, slice) else values[np.asarray(rows)]
