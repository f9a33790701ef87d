"""The size of the KV cache: the number of pages that fit in its memory."""

from __future__ import annotations

import math

from octavo.backends.base import KVLayout, KVPages
from octavo.core.config import ConfigError, KVGroup

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def groups_of(layout: KVLayout, pages: KVPages) -> tuple[KVGroup, ...]:
    """Return the layout's groups in the core's terms, where a page has as many blocks of each."""
    whole = math.lcm(*pages.blocks_per_page)
    return tuple(
        KVGroup(
            each.spec.window,
            each.spec.kind,
            whole // per_page,
            each.spec.checkpoint_blocks,
            each.owner,
        )
        for each, per_page in zip(layout.groups, pages.blocks_per_page, strict=True)
    )


def pages_for(num_blocks: int, pages: KVPages) -> int:
    """Return the most pages that a sequence holds of so many blocks, ignoring windows."""
    return sum(-(-num_blocks // per_page) for per_page in pages.blocks_per_page)


def longest_in(num_pages: int, pages: KVPages, block_size: int) -> int:
    """Return the most tokens of a sequence that has so many pages, ignoring windows."""
    num_blocks = int(num_pages / sum(1 / per_page for per_page in pages.blocks_per_page))
    while num_blocks > 0 and pages_for(num_blocks, pages) > num_pages:
        num_blocks -= 1
    return num_blocks * block_size


def num_blocks_in(
    budget_bytes: int,
    layout: KVLayout,
    pages: KVPages,
    *,
    block_size: int,
    max_model_len: int,
    max_num_seqs: int,
    step_tokens: int,
) -> int:
    """Return the number of pages, with the null page; at most what all slots can fill.

    Where nothing is kept, they are the blocks of the largest step, of `step_tokens` tokens.

    Raise ConfigError if not even one sequence of max_model_len fits.
    """
    block_bytes = pages.whole_bytes
    if block_bytes < 1:
        raise ConfigError(f"a KV block of {block_bytes} bytes is impossible: {layout}")
    per_sequence = pages_for(-(-max_model_len // block_size), pages)
    fitting = budget_bytes // block_bytes
    if fitting < per_sequence + 1:
        longest = longest_in(fitting - 1, pages, block_size)
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
