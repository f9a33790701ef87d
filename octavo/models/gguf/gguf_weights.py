"""A GGUF file's tensors under their Hugging Face names and in their original form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from octavo.backends.stored_rows import Floats, StoredRows
from octavo.loader import Checkpoint, CheckpointError, TensorInfo, check_tensors
from octavo.loader.dequantize import dequantize
from octavo.loader.errors import TensorMismatchError, quote
from octavo.loader.gguf.types import NVFP4
from octavo.models.gguf.names import (
    ROPE_TENSORS,
    SUFFIXES,
    TABLES,
    Original,
    Table,
    filled,
    look_up,
    pattern_of,
)
from octavo.models.gguf.undo import AS_STORED, Heads
from octavo.quant.plain import multiplied, tensor_rows

_MOST_EXPERTS = 1 << 16


class _Source(Struct, frozen=True):
    """The stored tensors that one original tensor is made of."""

    stored: tuple[str, ...]
    original: Original
    index: int | None = None  # along the stored tensor's first axis; None: all of it

    @property
    def label(self) -> str:
        """The stored name, as it appears in the file."""
        return " + ".join(self.stored) + ("" if self.index is None else f"[{self.index}]")


class GgufWeights:
    """An implementation of `octavo.models.weights.Weights`."""

    def __init__(self, checkpoint: Checkpoint, config: Mapping[str, Any]) -> None:
        self._checkpoint = checkpoint
        heads = config["num_attention_heads"]
        self._heads = Heads(heads, config.get("num_key_value_heads", heads))
        self._table = _table(checkpoint)
        self._sources: dict[str, _Source] = {}
        self._unknown: list[str] = []
        parts = {name for original in self._table.values() for name in original.also}
        for name in checkpoint.tensors:
            self._add(name, parts)
        self._shapes = {name: self._shape(source) for name, source in self._sources.items()}
        # The memory bill reads all rows before binding does; their orders are computed once.
        self._stored: dict[str, StoredRows | None] = {}

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def rows(self, name: str) -> StoredRows:
        source = self._sources.get(name)
        if source is None:
            raise TensorMismatchError(
                f"there is no {self._label(name)} ({quote(name)})", path=self._checkpoint.path
            )
        stored = self._find_stored(name)
        if stored is not None:
            return stored
        arrays = [self._read(part, source.index) for part in source.stored]
        try:
            values = source.original.undo.values(arrays, self._heads)
        except CheckpointError as error:
            raise error.at(self._checkpoint.path, source.label) from None
        return StoredRows.of(values.reshape(-1, values.shape[-1]))

    def row_type(self, name: str) -> str:
        stored = self._find_stored(name)
        return "F32" if stored is None else stored.type

    def is_in_act_order(self, name: str) -> bool:
        return False

    def stored_types(self) -> Mapping[str, str]:
        return {name: info.type.name for name, info in self._checkpoint.tensors.items()}

    def _find_stored(self, name: str) -> StoredRows | None:
        """Return the rows of a tensor that are stored in this form, in whatever order."""
        if name in self._stored:
            return self._stored[name]
        rows = self._reordered(self._sources[name], len(self._shapes[name]))
        if rows is None or rows.is_file:  # the copy of a misaligned tensor is not kept
            self._stored[name] = rows
        return rows

    def _reordered(self, source: _Source, dimensions: int) -> StoredRows | None:
        undo = source.original.undo
        if not undo.moves_rows or len(source.stored) > 1 or dimensions < 2:
            return None
        if dimensions > 2 and undo is not AS_STORED:
            return None
        factors = self._factors(source.stored[0])
        if factors is not None and len(factors) > 1 and source.index is None:
            return None
        rows = tensor_rows(self._checkpoint, source.stored[0], source.index)
        if factors is not None:
            rows = multiplied(rows, factors[(source.index or 0) % len(factors)])
        if undo is AS_STORED:
            return rows
        # Applying the inverse to row numbers gives the order of the rows.
        numbers = np.arange(len(rows), dtype=np.float32)[:, None]
        try:
            order = undo.values([numbers], self._heads)[:, 0].astype(np.int64)
        except CheckpointError as error:
            raise error.at(self._checkpoint.path, source.label) from None
        return rows.reordered(order)

    def check(self, expected: Mapping[str, tuple[int, ...]], extra: Iterable[str]) -> None:
        """Run the checkpoint's check with the names of the file."""
        present = {source.label: self._info(name) for name, source in self._sources.items()}
        present.update((name, self._checkpoint.info(name)) for name in self._unknown)
        view = Checkpoint(self._checkpoint.path, present, self._checkpoint.metadata)
        wanted = {self._label(name): shape for name, shape in expected.items()}
        check_tensors(view, wanted, may_be_extra=[self._label(name) for name in extra])

    def _add(self, name: str, parts: set[str]) -> None:
        pattern, numbers = pattern_of(name)
        found = look_up(self._table, pattern)
        if found is None:
            is_known = pattern in parts or name in ROPE_TENSORS or self._is_scale(name)
            if not is_known:
                self._unknown.append(name)
            return
        original, suffix = found
        stored = (name, *(filled(part, numbers) for part in original.also))
        if not all(part in self._checkpoint for part in stored):
            return  # the check will report the original as missing
        target = filled(original.name, numbers) + suffix
        if "@" not in target:
            self._sources[target] = _Source(stored, original)
            return
        shape = self._checkpoint.info(name).shape
        if len(shape) < 2 or shape[0] > _MOST_EXPERTS:
            raise TensorMismatchError(
                f"has shape {list(shape)}, but must have an axis of at most {_MOST_EXPERTS:,}"
                " experts or heads before the others",
                path=self._checkpoint.path,
                tensor=name,
            )
        for index in range(shape[0]):
            self._sources[target.replace("@", str(index))] = _Source(stored, original, index)

    def _is_scale(self, name: str) -> bool:
        """Return whether a tensor scales one of the type NVFP4, or its inputs (not used here)."""
        stem, _, part = name.rpartition(".")
        weight = self._checkpoint.tensors.get(f"{stem}.weight")
        is_nvfp4 = weight is not None and weight.type == NVFP4
        return is_nvfp4 and part in ("scale", "input_scale")

    def _shape(self, source: _Source) -> tuple[int, ...]:
        shapes = [self._checkpoint.info(name).shape for name in source.stored]
        if source.index is not None:
            shapes = [shape[1:] for shape in shapes]
        try:
            return source.original.undo.shape(shapes)
        except CheckpointError as error:
            raise error.at(self._checkpoint.path, source.label) from None

    def _info(self, name: str) -> TensorInfo:
        """Describe a stored tensor with the shape of the original."""
        source = self._sources[name]
        infos = [self._checkpoint.info(stored) for stored in source.stored]
        num_bytes = sum(info.num_bytes for info in infos)
        if source.index is not None:
            num_bytes //= infos[0].shape[0]
        first = infos[0]
        return TensorInfo(
            source.label, self._shapes[name], first.type, first.file, first.offset, num_bytes
        )

    def _factors(self, stored: str) -> Floats | None:
        """Return what multiplies a tensor of the type NVFP4: one number, or one for each expert.

        llama.cpp multiplies products by them. A tensor without them is complete.
        """
        scale = stored.removesuffix(".weight") + ".scale"
        info = self._checkpoint.info(stored)
        if info.type != NVFP4 or scale not in self._checkpoint:
            return None
        factors = self._checkpoint.read_float32(scale).reshape(-1)
        most = info.shape[0] if len(info.shape) > 2 else 1
        if len(factors) not in (1, most):
            raise TensorMismatchError(
                f"has {len(factors):,} numbers, but {quote(stored)} needs {most:,}",
                path=self._checkpoint.path,
                tensor=scale,
            )
        return factors

    def _read(self, stored: str, index: int | None) -> Floats:
        values = self._checkpoint.read(stored)
        values = dequantize(
            values if index is None else values[index], self._checkpoint.info(stored).type
        )
        factors = self._factors(stored)
        if factors is None:
            return values
        shape = [-1, *[1] * (values.ndim - 1)]
        factors = factors.reshape(shape) if index is None else factors[[index % len(factors)]]
        products: Floats = values * factors
        return products

    def _label(self, name: str) -> str:
        """Return the name that the file has, or would have, for an original tensor."""
        if name in self._sources:
            return self._sources[name].label
        pattern, numbers = pattern_of(name)
        for stored, original in self._table.items():
            for suffix in ("", *SUFFIXES):
                if original.name + suffix == pattern:
                    index = f"[{numbers[1]}]" if len(numbers) > 1 and "@" not in stored else ""
                    names = (stored + suffix, *original.also)
                    return " + ".join(filled(part, numbers) for part in names) + index
        return name


def _table(checkpoint: Checkpoint) -> Table:
    architecture = checkpoint.metadata.string("general.architecture")
    if architecture == "falcon" and "blk.0.attn_norm_2.weight" in checkpoint:
        architecture = "falcon, two norms"
    return TABLES[architecture]
