"""Exact conversion of stored tensors of every type to float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from octavo.loader.tensor_type import TensorType

if TYPE_CHECKING:
    from octavo.loader.blocks.small_blocks import Blocks, Floats

# Decoded at a time, so that intermediate values stay in a core's own cache.
_CHUNK_ELEMENTS = 1 << 16


def dequantize(
    stored: NDArray[Any], kind: TensorType, out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Return the values of an array from `Checkpoint.read`, or of some of its rows.

    `out`, if given, must be C-contiguous float32 of the result's shape. Elements that are float32
    already are returned as they are.
    """
    if not kind.is_quantized:
        with np.errstate(all="ignore"):  # numbers of 64 bits may be too large
            if out is None:
                return stored.astype(np.float32, copy=False)
            out[...] = stored
        return out
    if stored.dtype != np.uint8 or stored.shape[-1] % kind.block_bytes:
        raise ValueError(f"{kind.name} rows are bytes, a multiple of {kind.block_bytes}")
    shape = (*stored.shape[:-1], stored.shape[-1] // kind.block_bytes * kind.block_elements)
    if out is None:
        out = np.empty(shape, np.float32)
    elif out.shape != shape or out.dtype != np.float32 or not out.flags.c_contiguous:
        raise ValueError(f"out must be C-contiguous float32 of shape {shape}")
    # Here, since a model whose matrices are packed as they are stored needs none of them.
    from octavo.loader.blocks.decoders import DECODERS, LAYOUTS

    blocks = np.ascontiguousarray(stored).reshape(-1).view(LAYOUTS[kind.name])
    _decode(blocks, out.reshape(len(blocks), kind.block_elements), DECODERS[kind.name])
    return out


def _decode(blocks: Blocks, rows: Floats, decode: Callable[[Blocks, Floats], None]) -> None:
    num_blocks = max(1, _CHUNK_ELEMENTS // rows.shape[1])
    # Damaged scales may be infinite or NaN; they are decoded without warnings.
    with np.errstate(all="ignore"):
        for index in range(math.ceil(len(blocks) / num_blocks)):
            part = slice(index * num_blocks, (index + 1) * num_blocks)
            decode(blocks[part], rows[part])
