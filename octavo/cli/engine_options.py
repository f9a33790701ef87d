"""The flags of an engine: a flag for every field of EngineArguments, under vLLM's names.

vLLM's flags that Octavo has no setting for are added too (cli/flags/foreign.py).
"""

from __future__ import annotations

import argparse
import shlex
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from octavo import env
from octavo.cli.flags.foreign import add_foreign_flags
from octavo.cli.parsing import (
    Parser,
    UsageError,
    attached_instead,
    byte_count,
    seconds,
    sequence_length,
    token_count,
)
from octavo.client.restart_policy import Timing
from octavo.engine_arguments import CpuWeights, EngineArguments
from octavo.foreign_options import FIXED, INERT
from octavo.loader import DEFAULT_MODEL

if TYPE_CHECKING:
    from octavo.engine_arguments import EngineArguments as Arguments

# Other names of flags, which help does not show: vLLM's short ones.
_ALIASES = {
    "-q": "--quantization",
    "-sc": "--speculative-config",
    "--device-memory-utilization": "--gpu-memory-utilization",
}
_DEFAULTS = {field.name: field.default for field in fields(EngineArguments)}
_TIMING_HELP = {
    "watchdog_seconds": "the longest time of a step, after which the engine is killed and replaced",
    "watchdog_token_seconds": "what is added to that for each token of the step",
    "silence_seconds": "time without a sign of life after which an engine is killed and replaced",
    "start_seconds": "time for an engine to load the model",
    "stable_seconds": "an engine that ran for longer does not count as failed",
    "max_failed_engines": "engines in a row without a token, after which no more are started",
    "restart_delay_seconds": "wait before the third of those; doubled for each further one",
    "max_restart_delay_seconds": "the longest such wait",
    "spare_delay_seconds": "wait before the next spare engine is started",
}


def add_model(parser: Parser, *, has_default: bool = True) -> None:
    """Add the model, as a word or, where there is a default, as --model."""
    if has_default:
        parser.add_argument(
            "model_word", metavar="MODEL", nargs="?", help=f"the model (default: {DEFAULT_MODEL})"
        )
        parser.add_argument("--model", metavar="MODEL", help=argparse.SUPPRESS)
    else:
        parser.add_argument("model_word", metavar="MODEL", help="the model")


def model_of(arguments: argparse.Namespace) -> str:
    """Return the model that the user named."""
    word, flag = arguments.model_word, getattr(arguments, "model", None)
    if word is not None and flag not in (None, word):
        hint = ""
        if getattr(arguments, "packed_cache", None) == "auto":
            hint = attached_instead("--packed-cache", word)
        raise UsageError(f"two models are named, {word!r} and --model {flag!r}; name one{hint}")
    served: list[str] = getattr(arguments, "served_model_name", None) or []
    if word is None and flag is None:
        for several in ("api_key", "ignore_patterns", "logits_processors"):
            if len(getattr(arguments, several, None) or ()) > 1:
                given = "--" + several.replace("_", "-")
                raise UsageError(
                    f"the words behind {given} may end with the model, and no other is named; put "
                    f"the model first: octavo serve MODEL {given} ..."
                )
    if word is None and flag is None and len(served) > 1:
        command = shlex.join(["octavo", "serve", served[-1], "--served-model-name", *served[:-1]])
        raise UsageError(
            f"is {served[-1]!r} the model, or a name to serve it by? Put the model first: {command}"
        )
    name: str = word if word is not None else flag if flag is not None else DEFAULT_MODEL
    return name


def add_engine_options(parser: Parser) -> None:
    """Add a flag for each field; omitted flags leave the field's default in place."""
    group = parser.add_argument_group("engine")
    _add_model_options(group)
    _add_backend_options(group)
    _add_memory_options(group)
    _add_scheduling_options(group)
    _add_speculation_options(group)
    _add(
        group,
        "pooler_config",
        "defaults of vectors and classes as a JSON object; the keys are pooling_type (CLS, LAST, "
        "MEAN, ALL or STEP), task, use_activation, dimensions, enable_chunked_processing, "
        "max_embed_len, logit_mean, logit_sigma and step_tag_id (default: the model's own)",
        metavar="JSON",
    )
    _add(
        group,
        "logits_processors",
        "classes of your own that change logits, which requests give arguments as vllm_xargs; they "
        "are trusted, and found in PYTHONPATH",
        nargs="+",
        action="extend",
        metavar="MODULE:CLASS",
        default_text="",
    )
    _add(
        group,
        "spare_engine",
        "keep a second engine's process loaded, which takes over at once when the first ends; it "
        "takes the memory of the weights again (octavo serve)",
    )
    add_foreign_flags(parser)
    parser.add_aliases(_ALIASES)


def _add_model_options(group: argparse._ArgumentGroup) -> None:
    _add(group, "tokenizer", "the tokenizer's place, if it is not with the model", metavar="MODEL")
    group.add_argument(
        "--download-dir",
        type=Path,
        metavar="DIR",
        help="the Hugging Face cache, instead of the one that HF_HUB_CACHE or HF_HOME names",
    )
    _add(
        group,
        "dtype",
        "type of weights and KV while computing: auto, float32 or bfloat16; auto keeps the weights "
        "of the file, bfloat16 converts those of 32 bits; float is float32, half and float16 are "
        "computed in bfloat16",
        metavar="TYPE",
    )
    _add(
        group,
        "max_model_len",
        "maximum tokens of a sequence, as in 4096 or 32k (default: as many as the model and the "
        "memory allow)",
        type=sequence_length,
        metavar="TOKENS",
        default_text="",
    )
    _add(
        group,
        "seed",
        "seed from which requests without a seed get theirs",
        type=int,
        metavar="NUMBER",
    )
    _add(
        group,
        "generation_config",
        "sampling parameters of requests that do not set them: auto (the model's own), vllm (none "
        "of the model's), or the directory of another generation_config.json",
        metavar="PLACE",
    )
    _add(
        group,
        "hf_overrides",
        "values that replace those of the model's config.json, as a JSON object",
        metavar="JSON",
    )
    _add(
        group,
        "override_generation_config",
        'sampling parameters that replace those, as a JSON object, such as {"temperature": 0.6}',
        metavar="JSON",
    )
    _add(
        group,
        "max_logprobs",
        "maximum number of log-probabilities a request may ask for; -1: all",
        type=int,
        metavar="COUNT",
    )


def _add_backend_options(group: argparse._ArgumentGroup) -> None:
    _add(
        group,
        "backend",
        "the backend: auto takes the native engine where it is built, else torch",
        choices=("auto", "native", "torch"),
    )
    _add(
        group,
        "cpu_weights",
        "the native engine's format of floating-point weights; the number after int8 and int4 is "
        "the number of inputs that share a scale (default: 32)",
        choices=get_args(CpuWeights),
    )
    _add(
        group,
        "cpu_isa",
        "the instruction set of all kernels of the native engine, such as avx2, instead of those "
        "that were measured to be fastest (octavo doctor lists them)",
        metavar="NAME",
    )
    _add(
        group,
        "accumulation_order",
        "how bf16 products are added up, on which the last bits of results depend: fma, which "
        "every processor has; pairs, by AVX-512's instruction for bf16; tiles, by AMX; dot, by "
        "ARM's (default: what was measured to be fastest)",
        metavar="NAME",
    )
    _add(
        group,
        "num_threads",
        "threads of the native engine; 0: one per physical core",
        type=int,
        metavar="N",
    )
    _add(
        group,
        "quantization",
        "the format that the model's files must have, such as gguf, fp8 or gptq; it is seen from "
        "them, and another one is refused",
        type=_name,
        metavar="NAME",
    )
    _add(
        group,
        "packed_cache",
        "keep the native engine's packed weights in this directory (without one, or as auto: in "
        "Octavo's cache directory) and map them at later starts, which then read no weights of the "
        "model; only =DIR names the directory, since the word behind the flag is the model",
        nargs="?",
        const="auto",
        metavar="DIR",
    )
    _add(
        group,
        "packed_cache_bytes",
        "size of all packed weights in that directory; those used longest ago are removed when "
        "others are written",
        type=byte_count,
        metavar="SIZE",
    )


def _add_memory_options(group: argparse._ArgumentGroup) -> None:
    _add(
        group,
        "kv_cache_memory_bytes",
        "memory for the KV cache, as in 4GiB (default: what is free beside the weights, at most "
        "4 GiB)",
        "--kv-cache-memory",
        type=byte_count,
        metavar="SIZE",
    )
    _add(
        group,
        "gpu_memory_utilization",
        "share of the machine's memory that weights, steps and KV may take together, where no size "
        "of the KV cache is given (default: what is free)",
        type=float,
        metavar="SHARE",
    )
    _add(
        group,
        "preallocate_kv_cache",
        "take all of the KV cache's memory from the system at the start, so that no step waits for "
        "it and a lack of memory shows at once (default: as blocks are first used)",
    )
    _add(
        group,
        "grammar_memory_bytes",
        "memory for the grammars of all texts with a shape; where it is short, new ones wait",
        "--grammar-memory",
        type=byte_count,
        metavar="SIZE",
    )
    _add(
        group,
        "num_gpu_blocks_override",
        "number of KV blocks, instead of a number computed from memory",
        type=int,
        metavar="COUNT",
    )
    _add(group, "block_size", "tokens per KV block", type=int, metavar="TOKENS")
    _add(group, "enable_prefix_caching", "share the KV of equal prefixes")
    _add(
        group,
        "kv_cache_dtype",
        "format of the KV cache: int8 takes half the memory and is nearly as exact",
        choices=("auto", "int8"),
    )


def _add_scheduling_options(group: argparse._ArgumentGroup) -> None:
    _add(
        group,
        "max_num_seqs",
        "maximum number of sequences that run at once",
        type=int,
        metavar="COUNT",
    )
    _add(
        group,
        "max_num_batched_tokens",
        "maximum number of tokens in a step",
        type=token_count,
        metavar="TOKENS",
    )
    _add(group, "enable_chunked_prefill", "compute long prompts in several steps")
    _add(
        group,
        "long_prefill_token_threshold",
        "maximum chunk of a long prompt; 0: no limit",
        type=token_count,
        metavar="TOKENS",
    )
    _add(
        group,
        "itl_goal",
        "the most seconds of a step while sequences generate: prompts are cut to fit, and get a "
        "block a step at least; 0: no bound (default: three times what the step takes without "
        "prompts)",
        type=seconds,
        metavar="SECONDS",
    )
    _add(
        group,
        "ttft_goal",
        "seconds from a request to its first token, for which steps may be longer than that, where "
        "it can still be met; 0: none",
        type=seconds,
        metavar="SECONDS",
    )
    _add(group, "async_scheduling", "plan the next step while one is computed")
    _add(group, "scheduling_policy", "scheduling order: fcfs or priority", metavar="POLICY")
    _add(
        group,
        "forced_tokens",
        "what a shape forces: canonical (one tokenisation, no draws), single (no draw where one "
        "token is possible) or off",
        metavar="HOW",
    )
    _add(
        group,
        "priority_ageing_seconds",
        "waiting time that equals one step of priority; 0: never",
        type=float,
        metavar="SECONDS",
    )
    _add(
        group,
        "fair_share",
        "share slots, KV blocks and steps among the API keys, and let work in the background "
        "yield to all other",
    )
    _add(
        group,
        "max_num_queued_reqs",
        "maximum number of requests that wait in the engine",
        type=int,
        metavar="COUNT",
    )


def _add_speculation_options(group: argparse._ArgumentGroup) -> None:
    _add(
        group,
        "speculative_config",
        "settings of speculation as a JSON object; the keys are method (ngram), "
        "num_speculative_tokens, prompt_lookup_max and prompt_lookup_min (default: off)",
        metavar="JSON",
    )
    for flag, key, options in _SPECULATION:
        text = f"the key {key} of --speculative-config; by itself, it switches ngram on"
        group.add_argument(flag, dest=f"_{key}", default=argparse.SUPPRESS, help=text, **options)


# Short forms of single keys, the first two as in vLLM.
_SPECULATION: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("--spec-method", "method", {"choices": ("ngram",)}),
    ("--spec-tokens", "num_speculative_tokens", {"type": int, "metavar": "COUNT"}),
)


def engine_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the flags that were given, by the names of `EngineArguments` and of vLLM.

    From now on, models are kept where --download-dir says.
    """
    if arguments.download_dir is not None:
        env.use_hub_cache(arguments.download_dir)
    names = [*_DEFAULTS, *INERT, *(name for name in FIXED if name != "download_dir")]
    given = {
        name: getattr(arguments, name)
        for name in names
        if name != "model" and getattr(arguments, name, None) is not None
    }
    return _with_short_forms(given, arguments)


def _with_short_forms(given: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options with the keys of speculation that have flags of their own."""
    keys = {key: getattr(arguments, f"_{key}", None) for _, key, _ in _SPECULATION}
    keys = {key: value for key, value in keys.items() if value is not None}
    if not keys:
        return given
    if "speculative_config" in given:
        flag = next(flag for flag, key, _ in _SPECULATION if key in keys)
        raise UsageError(
            f"{flag} and --speculative-config are both given; write all keys into the second"
        )
    return {**given, "speculative_config": {"method": "ngram", **keys}}


def engine_arguments(arguments: argparse.Namespace) -> Arguments:
    """Return the checked `EngineArguments` of the flags."""
    from octavo.engine_arguments import read_arguments

    return read_arguments(model_of(arguments), engine_options(arguments))


def add_timing_options(parser: Parser) -> None:
    """Add the flags, in a group."""
    group = parser.add_argument_group("engine's process")
    for field in fields(Timing):
        is_count = field.type == "int"
        group.add_argument(
            "--" + field.name.replace("_", "-"),
            dest=field.name,
            type=int if is_count else seconds,
            metavar="COUNT" if is_count else "SECONDS",
            default=None,
            help=f"{_TIMING_HELP[field.name]} ({field.default:g})",
        )


def timing_of(arguments: argparse.Namespace) -> Timing:
    """Return the limits; refuse flags that concern no process."""
    given: dict[str, Any] = {
        field.name: value
        for field in fields(Timing)
        if (value := getattr(arguments, field.name)) is not None
    }
    if given and arguments.engine == "inline":
        flag = "--" + next(iter(given)).replace("_", "-")
        raise UsageError(f"{flag} limits the engine's process, and --engine inline has none")
    return Timing(**given)


def _add(
    group: argparse._ArgumentGroup,
    name: str,
    text: str,
    *more_flags: str,
    default_text: str | None = None,
    **options: Any,
) -> None:
    default = _DEFAULTS[name]
    if isinstance(default, bool):
        options["action"] = argparse.BooleanOptionalAction
        default_text = "on" if default else "off"
    if default is not None and default_text is None:
        default_text = str(default)
    if default_text:
        text += f" ({default_text})"
    flags = (_flag(name), *more_flags)
    group.add_argument(*flags, dest=name, default=argparse.SUPPRESS, help=text, **options)


def _name(text: str) -> str | None:
    """Return a name; `none` is None, as in vLLM."""
    return None if text.lower() == "none" else text


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
