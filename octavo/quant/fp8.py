"""FP8 in safetensors checkpoints: floats of eight bits (E4M3) with scales.

`X.weight` [out, in] is F8_E4M3. Its scale multiplies a value, and is a tensor of its own:

- a scale for each block of, mostly, 128 × 128 numbers: `X.weight_scale_inv` [out/128, in/128], as
  DeepSeek and Qwen publish (quant_method "fp8" with a weight_block_size);
- one for each row or for the whole matrix: `X.weight_scale` [out, 1], [out], [1] or []
  (quant_method "fp8", "fbgemm_fp8", "compressed-tensors").

Every row gets its own copy of its scales, so that rows can be cut anywhere. Scales of activations
and of the KV cache are not used: both stay in the backend's types.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from functools import cache
from typing import Any, ClassVar

import numpy as np
from msgspec import Struct

from octavo.backends.stored_rows import Bytes, Floats, RowLayout, StoredRows
from octavo.loader import Checkpoint
from octavo.loader.checkpoint import numpy_dtype
from octavo.loader.errors import UnsupportedFormatError, quote
from octavo.loader.tensor_type import F8_E4M3
from octavo.quant.weight_format import MAX_GROUP, Settings, Shape

# A scale of a whole row is repeated for groups of this size, so that ranks can cut the row.
SMALL_GROUP = 32

_SCALES = ("_scale_inv", "_scale")
# Scales of activations and of the KV cache, which keep their own types here.
_UNUSED = (
    ".input_scale",
    ".input_scale_ub",
    ".output_scale",
    ".k_scale",
    ".v_scale",
    ".q_scale",
    ".kv_scale",
)
_ELEMENTS_AT_ONCE = 1 << 17  # so that temporary arrays stay in a core's own cache


class Fp8(Struct, frozen=True):
    """The format, with the settings of one checkpoint."""

    block: tuple[int, int] | None  # outputs and inputs that share a scale; None: rows, or all

    def find(self, checkpoint: Checkpoint) -> Iterator[Fp8Matrix]:
        for name, info in checkpoint.tensors.items():
            if info.type != F8_E4M3 or len(info.shape) != 2:
                continue
            for ending in _SCALES:
                if name + ending in checkpoint:
                    yield Fp8Matrix(checkpoint, name, name + ending, self.block)
                    break

    def unused(self, checkpoint: Checkpoint, expected: Container[str]) -> Iterator[str]:
        yield from (name for name in checkpoint.tensors if name.endswith(_UNUSED))


class Fp8Matrix(Struct, frozen=True):
    """A matrix and its scales."""

    checkpoint: Checkpoint
    name: str
    scale: str
    block: tuple[int, int] | None
    type: ClassVar[str] = "FP8"

    @property
    def tensors(self) -> tuple[str, ...]:
        return self.name, self.scale

    @property
    def shape(self) -> Shape:
        return self.checkpoint.info(self.name).shape

    def stored_shapes(self, shape: Shape) -> Mapping[str, Shape]:
        scale = self.checkpoint.info(self.scale).shape
        outputs, inputs = shape
        if self.block is not None:
            scale = (-(-outputs // self.block[0]), -(-inputs // self.block[1]))
        elif math.prod(scale) != 1:
            scale = (outputs, 1) if len(scale) == 2 else (outputs,)
        return {self.name: shape, self.scale: scale}

    def rows(self) -> StoredRows:
        outputs, inputs = self.shape
        tall, group = self.block or (1, SMALL_GROUP)
        layout, groups = fp8_layout(group), -(-inputs // group)
        scales = self.checkpoint.read_float32(self.scale)
        if self.block is None:
            scales = np.broadcast_to(scales.reshape(-1, 1), (outputs, groups))
        made = np.zeros((outputs, groups), _block(group))
        made["scale"] = scales[np.arange(outputs) // tall]
        codes = self.checkpoint.read(self.name).view(np.uint8)
        whole = inputs // group
        made["codes"][:, :whole] = codes[:, : whole * group].reshape(outputs, whole, group)
        made["codes"][:, whole:, : inputs - whole * group] = codes[:, None, whole * group :]
        rows = made.view(np.uint8).reshape(outputs, groups * layout.group_bytes)
        return StoredRows(layout, inputs, rows)


def read_fp8(settings: Settings) -> Fp8:
    """Read the settings of quant_method "fp8": with blocks, or one scale for each matrix."""
    _check_numbers("fmt", settings.string("fmt", "e4m3"))
    return Fp8(_block_size(settings.values.get("weight_block_size")))


def read_fbgemm(settings: Settings) -> Fp8:
    """Make the format of quant_method "fbgemm_fp8": a scale for each row."""
    return Fp8(None)


def read_compressed_tensors(settings: Settings) -> Fp8:
    """Read the settings of quant_method "compressed-tensors", of which only FP8 is supported."""
    blocks = set()
    for group in _objects(settings.values.get("config_groups")):
        weights = group.get("weights")
        weights = weights if isinstance(weights, Mapping) else {}
        strategy = weights.get("strategy")
        if (weights.get("type"), weights.get("num_bits")) != ("float", 8):
            kind = f"{weights.get('type')}, {weights.get('num_bits')} bits"
            _check_numbers("config_groups", kind)
        if strategy not in ("tensor", "channel", "block"):
            raise UnsupportedFormatError(
                f"config_groups: the strategy {quote(str(strategy))} is not supported; supported "
                "are: tensor, channel, block"
            )
        blocks.add(_block_size(weights.get("block_structure")) if strategy == "block" else None)
    if len(blocks) != 1:
        raise UnsupportedFormatError(
            f"config_groups has {len(blocks)} different layouts of scales; it must have one",
            advice="use the unquantised model or a GGUF file",
        )
    return Fp8(blocks.pop())


def _check_numbers(key: str, kind: str) -> None:
    if kind != "e4m3":
        raise UnsupportedFormatError(
            f"{key}: weights of the type {quote(kind)} are not supported in this format; "
            "supported is float8 e4m3",
            advice="use the unquantised model or a GGUF file",
        )


def _block_size(value: object) -> tuple[int, int] | None:
    if value is None:
        return None
    if isinstance(value, list) and len(value) == 2:
        outputs, inputs = value
        if all(type(size) is int and 0 < size <= MAX_GROUP for size in value):
            return outputs, inputs
    raise UnsupportedFormatError(
        f"weight_block_size or block_structure must be two sizes from 1 to {MAX_GROUP:,}, is "
        f"{quote(str(value))}"
    )


def _objects(value: object) -> list[Mapping[str, Any]]:
    values = value.values() if isinstance(value, Mapping) else ()
    return [item for item in values if isinstance(item, Mapping)]


@cache
def _block(group: int) -> np.dtype[Any]:
    return np.dtype([("scale", "<f4"), ("codes", "u1", group)])


@cache
def fp8_layout(group: int) -> RowLayout:
    """Return the layout of groups of eight-bit floats, each group with its scale."""
    block = _block(group)
    table = np.arange(256, dtype=np.uint8).view(numpy_dtype(F8_E4M3)).astype(np.float32)

    def decode(rows: Bytes) -> Floats:
        blocks = np.ascontiguousarray(rows).view(block)
        values = np.empty((*blocks.shape, group), np.float32)
        step = max(1, _ELEMENTS_AT_ONCE // max(1, values[:1].size))
        for start in range(0, len(blocks), step):
            part, out = blocks[start : start + step], values[start : start + step]
            np.take(table, part["codes"], out=out)
            with np.errstate(all="ignore"):  # damaged scales may be infinite or NaN
                out *= part["scale"][..., None]
        return values.reshape(len(rows), -1)

    return RowLayout("FP8", group, block.itemsize, decode)
