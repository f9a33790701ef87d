"""From what was asked, the hardware and the checkpoint to one frozen EngineConfig.

Every automatic choice is made here, and logged with its reason; nothing below asks again.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from octavo.backends.base import KVLayout
from octavo.backends.select import Name, select
from octavo.config import EngineArguments
from octavo.core.config import ConfigError, CoreConfig
from octavo.models.spec import ModelSpec
from octavo.runner.kv_cache import groups_of, num_blocks_in

log = logging.getLogger(__name__)

# Of the free memory, what the KV cache may take when nobody says; and the most of it. The rest is
# for the weights, for what a step needs, and for everybody else on the machine.
KV_SHARE = 0.4
MOST_KV_BYTES = 4 << 30
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """All that an engine is built from."""

    arguments: EngineArguments
    spec: ModelSpec
    backend: Name
    dtype: str  # of the KV cache, and of torch's weights
    core: CoreConfig


def resolve(
    arguments: EngineArguments, spec: ModelSpec, layout: KVLayout, free_bytes: int | None = None
) -> EngineConfig:
    """Settle everything that was left open."""
    choice = select(arguments.backend, block_size=arguments.block_size)
    log.info("backend=%s: %s", choice.name, choice.reason)
    dtype = arguments.dtype
    if dtype == "auto":
        dtype = "bfloat16" if choice.name == "native" else "float32"
    max_len = arguments.max_model_len or spec.max_len
    if max_len > spec.max_len:
        raise ConfigError(
            f"max_model_len={max_len} is more than the {spec.max_len} positions this model was "
            "made for; lower it"
        )
    num_blocks, max_len = _cache_size(arguments, layout, dtype, max_len, free_bytes)
    budget = arguments.max_num_batched_tokens
    if not arguments.enable_chunked_prefill and budget < max_len:
        log.info("max_num_batched_tokens=%d: whole prompts must fit in a step", max_len)
        budget = max_len
    core = CoreConfig(
        num_blocks=num_blocks,
        max_model_len=max_len,
        block_size=arguments.block_size,
        groups=groups_of(layout),
        max_num_batched_tokens=budget,
        max_num_seqs=arguments.max_num_seqs,
        prefix_caching=arguments.enable_prefix_caching,
        chunked_prefill=arguments.enable_chunked_prefill,
        long_prefill_tokens=arguments.long_prefill_token_threshold,
        policy=arguments.scheduling_policy,
        ageing_seconds=arguments.priority_ageing_seconds,
        max_num_waiting=arguments.max_num_queued_reqs,
    )
    return EngineConfig(arguments, spec, choice.name, dtype, core)


def _cache_size(
    arguments: EngineArguments, layout: KVLayout, dtype: str, max_len: int, free_bytes: int | None
) -> tuple[int, int]:
    """How many blocks, and the longest sequence that then fits."""
    if arguments.num_gpu_blocks_override is not None:
        return arguments.num_gpu_blocks_override, max_len
    memory = arguments.kv_cache_memory_bytes
    if memory is None:
        memory = _default_memory(free_memory() if free_bytes is None else free_bytes)
    element_bytes, size = ELEMENT_BYTES[dtype], arguments.block_size
    fitting = memory // layout.block_bytes(size, element_bytes)
    longest = (fitting - 1) // len(layout.windows) * size
    if arguments.max_model_len is None and 0 < longest < max_len:
        log.info("max_model_len=%d instead of %d: so much KV fits", longest, max_len)
        max_len = longest
    num_blocks = num_blocks_in(
        memory,
        layout,
        block_size=size,
        element_bytes=element_bytes,
        max_model_len=max_len,
        max_num_seqs=arguments.max_num_seqs,
    )
    log.info("KV cache: %d blocks of %d tokens", num_blocks, size)
    return num_blocks, max_len


def _default_memory(free_bytes: int) -> int:
    memory = min(int(free_bytes * KV_SHARE), MOST_KV_BYTES)
    log.info("kv_cache_memory_bytes=%d: %.0f %% of what is free", memory, KV_SHARE * 100)
    return memory


def free_memory() -> int:
    """Bytes that could be taken now without swapping."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
