"""The size of the KV cache: the number of blocks that fit in its memory."""

from __future__ import annotations

import math

from octavo.backends.base import KVLayout
from octavo.core.config import ConfigError, KVGroup

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def groups_of(layout: KVLayout, block_size: int) -> tuple[KVGroup, ...]:
    """Return the layout's groups in the core's terms.

    Layers of one shape share buffers, so all their blocks have the size of the largest group's.
    """
    sizes = [
        each.num_layers * each.spec.block_vectors(block_size) * each.spec.dim
        for each in layout.groups
    ]
    if len(layout.shapes) == 1:
        sizes = [1] * len(sizes)
    unit = math.gcd(*sizes) or 1
    return tuple(
        KVGroup(
            each.spec.window,
            each.spec.kind,
            max(1, size // unit),
            each.spec.checkpoint_blocks,
            each.owner,
        )
        for each, size in zip(layout.groups, sizes, strict=True)
    )


def blocks_for(layout: KVLayout, num_tokens: int, block_size: int) -> int:
    """Return the most blocks that a sequence of so many tokens holds, ignoring windows."""
    return len(layout.windows) * -(-num_tokens // block_size)


def num_blocks_in(
    budget_bytes: int,
    layout: KVLayout,
    *,
    block_size: int,
    block_bytes: int,
    max_model_len: int,
    max_num_seqs: int,
    step_tokens: int,
) -> int:
    """Return the number of blocks, with the null block; at most what all slots can fill.

    Where nothing is kept, they are the blocks of the largest step, of `step_tokens` tokens.

    Raise ConfigError if not even one sequence of max_model_len fits.
    """
    if block_bytes < 1:
        raise ConfigError(f"a KV block of {block_bytes} bytes is impossible: {layout}")
    per_sequence = blocks_for(layout, max_model_len, block_size)
    fitting = budget_bytes // block_bytes
    if fitting < per_sequence + 1:
        longest = (fitting - 1) // len(layout.windows) * block_size
        advice = f"set max_model_len to at most {longest}" if longest > 1 else "lower block_size"
        raise ConfigError(
            f"the KV cache may use {readable(budget_bytes)}, which holds {max(fitting, 0)} blocks "
            f"of {readable(block_bytes)}; one sequence of max_model_len={max_model_len} needs "
            f"{per_sequence + 1} ({readable((per_sequence + 1) * block_bytes)}): "
            f"raise kv_cache_memory_bytes, or {advice}"
        )
    if layout.keeps_nothing:
        return min(fitting, max_num_seqs + -(-step_tokens // block_size) + 1)
    return min(fitting, max_num_seqs * per_sequence + 1)


def readable(num_bytes: int) -> str:
    """Format a number of bytes with a unit."""
    value = float(num_bytes)
    for unit in _UNITS:
        if abs(value) < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{value:.4g} {unit}"
