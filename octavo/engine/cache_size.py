"""The final size of the KV cache: what the loaded weights and the largest step leave of memory.

`resolve` estimates it from a model's headers, and refuses a model that cannot work at all before
anything is loaded. Here the estimate is replaced by what was measured or reserved.
"""

from __future__ import annotations

import logging

from octavo.backends.base import Backend, KVLayout
from octavo.core.config import ConfigError
from octavo.observe.memory_bill import HEADROOM_BYTES
from octavo.resolve import (
    EngineConfig,
    beside_text,
    free_text,
    no_room_to_preallocate,
    with_available,
)
from octavo.runner.kv_cache import longest_in, num_blocks_in, readable

log = logging.getLogger(__name__)


def reserve_step(config: EngineConfig, backend: Backend, free_bytes: int) -> int:
    """Reserve (or measure) the backend's largest step; return the bytes that it takes.

    The weights have been loaded, and the cache has not been made.
    """
    cache_bytes = config.footprint.most_kv_bytes
    if not _is_automatic(config):
        cache_bytes = config.core.num_blocks * config.bill.block_bytes
    spare = free_bytes - HEADROOM_BYTES - cache_bytes - config.bill.beside_bytes
    step_bytes = backend.reserve(config.largest_step, spare)
    log.info(
        "the largest step takes %s (%s estimated)",
        readable(step_bytes),
        readable(config.bill.step_bytes),
    )
    return step_bytes


def final_blocks(config: EngineConfig, layout: KVLayout, free_bytes: int, step_bytes: int) -> int:
    """Return the number of KV blocks, given the free memory and what a step takes of it.

    A number or a size that the user has set stays, and must fit if it is taken at the start. The
    longest sequence was decided with the estimate: where less memory is left now, the engine takes
    shorter ones, and says so. Raise ConfigError if no sequence fits.
    """
    asked, core, block_bytes = config.arguments, config.core, config.bill.block_bytes
    fixed_bytes = step_bytes + config.bill.beside_bytes
    if not _is_automatic(config):
        needed = core.num_blocks * block_bytes + fixed_bytes
        if needed > free_bytes and asked.preallocate_kv_cache and config.is_first:
            beside = "steps and grammars (the weights are loaded)"
            memory = with_available(config.kind.memory(), free_bytes)
            raise no_room_to_preallocate(beside, needed, memory)
        return core.num_blocks
    if asked.spare_engine:
        others = config.bill.all_weights_bytes + config.bill.rank_bytes
        free_bytes -= others + fixed_bytes  # of the other process, and its ranks
    room = free_bytes - HEADROOM_BYTES - fixed_bytes
    groups = len(layout.windows)
    fitting = room // block_bytes
    if fitting < groups + 1:
        least = (groups + 1) * block_bytes
        memory = with_available(config.kind.memory(), free_bytes)
        raise ConfigError(
            f"there is not enough memory: with the weights loaded, {free_text(memory)}, "
            f"and {readable(fixed_bytes + least + HEADROOM_BYTES)} are needed (a step "
            f"{readable(step_bytes)}, {beside_text(config.bill)}, the smallest "
            f"KV cache {readable(least)}, and {readable(HEADROOM_BYTES)} that are kept free for "
            f"others); {memory.remedy}, take a smaller model, or, if you know better, set "
            "kv_cache_memory_bytes"
        )
    num_blocks = num_blocks_in(
        min(room, config.footprint.most_kv_bytes),
        layout,
        config.bill,
        max_model_len=min(
            core.max_model_len, longest_in(fitting - 1, config.bill, core.max_model_len)
        ),
        max_num_seqs=core.max_num_seqs,
        step_tokens=config.largest_step.rows,
    )
    has_part = asked.gpu_memory_utilization is not None or asked.data_parallel_size > 1
    if asked.packed_cache is not None or has_part:
        # Mapped weights are pages of a file, which the system counts as free; and the estimate
        # has taken a part of the memory alone.
        num_blocks = min(num_blocks, core.num_blocks)
    if num_blocks != core.num_blocks:
        log.info("KV cache: %d blocks, since %s are left for it", num_blocks, readable(room))
    return num_blocks


def _is_automatic(config: EngineConfig) -> bool:
    """Return whether the size of the cache follows from free memory."""
    asked = config.arguments
    return asked.num_gpu_blocks_override is None and asked.kv_cache_memory_bytes is None
