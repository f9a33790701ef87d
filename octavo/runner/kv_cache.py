"""The size of the KV cache: the number of pages that fit in its memory."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from octavo.backends.base import KVLayout, KVPages
from octavo.core.config import ConfigError, KVGroup
from octavo.observe.memory_bill import MemoryBill

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def groups_of(layout: KVLayout, pages: KVPages) -> tuple[KVGroup, ...]:
    """Return the layout's groups in the core's terms, where a page has as many blocks of each."""
    whole = math.lcm(*pages.blocks_per_page)
    return tuple(
        KVGroup(
            each.spec.window,
            "latent" if each.spec.kind == "row" else each.spec.kind,
            whole // per_page,
            each.spec.checkpoint_blocks,
            each.owner,
        )
        for each, per_page in zip(layout.groups, pages.blocks_per_page, strict=True)
    )


def pages_for(num_blocks: int, blocks_per_page: Sequence[int]) -> int:
    """Return the pages of so many blocks of each group."""
    return sum(-(-num_blocks // per_page) for per_page in blocks_per_page)


def longest_in(num_pages: int, bill: MemoryBill, most_tokens: int) -> int:
    """Return how long a sequence can be that has so many pages, in whole blocks.

    The result is at most `most_tokens`, rounded up to whole blocks.
    """
    size = bill.block_size
    lengths = range(size, most_tokens + size, size)
    return size * bisect_right(lengths, num_pages, key=bill.num_blocks)


def num_blocks_in(
    budget_bytes: int,
    layout: KVLayout,
    bill: MemoryBill,
    *,
    max_model_len: int,
    max_num_seqs: int,
    step_tokens: int,
) -> int:
    """Return the number of pages, with the null page; at most what all slots can fill.

    What a window or a state has passed is not counted out of that: the prefix cache may keep it.

    Where nothing is kept, they are the blocks of the largest step, of `step_tokens` tokens.

    Raise ConfigError if not even one sequence of max_model_len fits.
    """
    block_bytes, block_size = bill.block_bytes, bill.block_size
    if block_bytes < 1:
        raise ConfigError(f"a KV block of {block_bytes} bytes is impossible: {layout}")
    per_sequence = bill.num_blocks(max_model_len)
    fitting = budget_bytes // block_bytes
    if fitting < per_sequence + 1:
        longest = longest_in(fitting - 1, bill, max_model_len)
        advice = f"set max_model_len to at most {longest}" if longest > 1 else "lower block_size"
        raise ConfigError(
            f"the KV cache may use {readable(budget_bytes)}, which holds {max(fitting, 0)} blocks "
            f"of {readable(block_bytes)}; one sequence of max_model_len={max_model_len} needs "
            f"{per_sequence + 1} ({readable((per_sequence + 1) * block_bytes)}): "
            f"raise kv_cache_memory_bytes, or {advice}"
        )
    if layout.keeps_nothing:
        return min(fitting, max_num_seqs + -(-step_tokens // block_size) + 1)
    most = pages_for(-(-max_model_len // block_size), bill.blocks_per_page)
    return min(fitting, max_num_seqs * most + 1)


def readable(num_bytes: int) -> str:
    """Format a number of bytes with a unit."""
    value = float(num_bytes)
    for unit in _UNITS:
        if abs(value) < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{value:.4g} {unit}"
