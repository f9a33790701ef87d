"""How large the KV cache is: blocks that fit in the memory there is for them."""

from __future__ import annotations

from octavo.backends.base import KVLayout
from octavo.core.config import ConfigError, KVGroup

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def groups_of(layout: KVLayout) -> tuple[KVGroup, ...]:
    """The layout's groups as the core knows them."""
    return tuple(KVGroup(window) for window in layout.windows)


def blocks_for(layout: KVLayout, num_tokens: int, block_size: int) -> int:
    """Blocks that one sequence of so many tokens may come to hold, windows disregarded."""
    return len(layout.windows) * -(-num_tokens // block_size)


def num_blocks_in(
    budget_bytes: int,
    layout: KVLayout,
    *,
    block_size: int,
    block_bytes: int,
    max_model_len: int,
    max_num_seqs: int,
) -> int:
    """Blocks to make, the null block included; never more than all slots could fill.

    ConfigError if not even one sequence of max_model_len fits.
    """
    if block_bytes < 1:
        raise ConfigError(f"a KV block of {block_bytes} bytes makes no sense: {layout}")
    a_sequence = blocks_for(layout, max_model_len, block_size)
    fitting = budget_bytes // block_bytes
    if fitting < a_sequence + 1:
        longest = (fitting - 1) // len(layout.windows) * block_size
        advice = f"set max_model_len to at most {longest}" if longest > 1 else "lower block_size"
        raise ConfigError(
            f"the KV cache may use {readable(budget_bytes)}, which holds {max(fitting, 0)} blocks "
            f"of {readable(block_bytes)}; one sequence of max_model_len={max_model_len} needs "
            f"{a_sequence + 1} ({readable((a_sequence + 1) * block_bytes)}): "
            f"raise kv_cache_memory_bytes, or {advice}"
        )
    return min(fitting, max_num_seqs * a_sequence + 1)


def readable(num_bytes: int) -> str:
    """A number of bytes for people."""
    value = float(num_bytes)
    for unit in _UNITS:
        if abs(value) < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{value:.4g} {unit}"
