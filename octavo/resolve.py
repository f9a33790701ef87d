"""The configuration of an engine, from its arguments, the hardware and the checkpoint.

Every automatic choice is made here, once, and logged with its reason.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import cast

from msgspec import Struct, structs

from octavo.backends.base import DRAFTER, FLOAT_TYPES, Footprint, KVLayout, StepSize
from octavo.backends.kind import BackendKind, Sizes
from octavo.core.config import ConfigError, CoreConfig
from octavo.core.stats import ADAPTER
from octavo.layers import ModelSpec
from octavo.models.footprint import stored, tensor_sizes
from octavo.models.load import OpenedModel
from octavo.observe.machine import Memory
from octavo.observe.memory_bill import (
    HEADROOM_BYTES,
    MAX_SPARE_BYTES,
    MemoryBill,
)
from octavo.options.adapters import num_resident
from octavo.options.backends import Entry
from octavo.options.cpu_types import CpuWeights
from octavo.options.engine import EngineArguments
from octavo.room_for_drafts import (
    check_drafts,
    follow_block,
    most_branches,
    most_drafts,
    step_of_drafter,
    with_drafts,
)
from octavo.room_for_ranks import check_experts_of, with_form, with_ranks
from octavo.runner.kv_cache import groups_of, longest_in, num_blocks_in, readable
from octavo.usable import choose_backend, chosen_sizes

log = logging.getLogger(__name__)

# Logits of a step for prompt_logprobs: with an id for each, all of them fit into one message of the
# engine (wire/message_types.py). A step computes at least the second number of tokens.
_PROMPT_LOGITS_BYTES = 30 << 20
_LEAST_PROMPT_LOGPROB_TOKENS = 16


# The most times the time of a step without prompts, by default: what is predicted is not exact, and
# running streams should wait three times as long at most.
_ITL_RATIO = 2.7
# Adapters get so small a part of free memory, unless those of one step need more.
_ADAPTER_SHARE = 8


class EngineConfig(Struct, frozen=True):
    """The complete configuration of an engine."""

    arguments: EngineArguments
    spec: ModelSpec
    backend: Entry
    kind: BackendKind
    dtype: str  # of the KV cache
    core: CoreConfig  # its num_blocks is an estimate until the cache is made
    bill: MemoryBill
    largest_step: StepSize
    footprint: Footprint  # of the chosen backend
    is_first: bool = True  # False: it replaces an engine that had room for this size


def resolve(
    arguments: EngineArguments,
    opened: OpenedModel,
    layout: KVLayout,
    free_bytes: int | None = None,
    *,
    bounds_grammars: bool = True,
    is_first: bool = True,
) -> EngineConfig:
    """Choose a value for everything that the arguments leave open.

    `bounds_grammars` says that the memory of grammars is bounded (engine/grammars.py). An engine
    that is not the first replaces one, and is not refused for want of memory.
    """
    spec = opened.spec
    check_drafts(arguments, layout)
    check_experts_of(opened, arguments)
    arguments = follow_block(follow_quantization(arguments, opened), opened)
    choice = choose_backend(arguments)
    arguments = with_form(arguments, choice.kind)
    level = logging.WARNING if choice.is_fallback else logging.INFO  # it is slower
    log.log(level, "backend=%s: %s", choice.entry.name, choice.reason)
    footprint, sizes = choice.kind.footprint(arguments), chosen_sizes(arguments, choice.kind)
    cuts_prompts = arguments.enable_chunked_prefill and not layout.keeps_nothing
    largest_step = _largest_step(arguments, layout, sizes, spec, cuts_prompts)
    grammar_bytes = arguments.grammar_memory_bytes if bounds_grammars and spec.has_head else 0
    bill = _bill(opened, layout, sizes.block_size, footprint, largest_step, grammar_bytes)
    bill = with_ranks(bill, arguments, opened, layout, footprint, largest_step, choice.kind)
    dtype = choice.kind.dtype(arguments)
    _warn_of_types(arguments, opened, dtype)
    max_len = _longest(arguments.max_model_len, spec.max_len)
    free = _usable_memory(arguments, with_available(choice.kind.memory(), free_bytes))
    bill = with_adapters(bill, arguments, opened, free)
    if arguments.spare_engine:  # it has weights and arrays of its own
        free = with_available(free, max(free.available - bill.fixed_bytes, 0))
    num_blocks, max_len = _cache_size(
        arguments, sizes, layout, bill, max_len, free, dtype, footprint
    )
    _check_room(arguments, bill, num_blocks, free, is_first=is_first)
    stages = arguments.pipeline_parallel_size
    budget = _budget(sizes, layout, max_len, cuts_prompts=cuts_prompts)
    core = CoreConfig(
        num_blocks=num_blocks,
        max_model_len=max_len,
        block_size=sizes.block_size,
        groups=bill.groups,
        max_num_batched_tokens=budget,
        max_num_seqs=sizes.max_num_seqs,
        pipeline_depth=max(2 if arguments.async_scheduling else 1, stages),
        num_stages=stages,
        prefix_caching=arguments.enable_prefix_caching,
        logs_cache=arguments.kv_events_config is not None,
        chunked_prefill=cuts_prompts,
        long_prefill_tokens=arguments.long_prefill_token_threshold,
        itl_goal=arguments.itl_goal or 0.0,
        itl_ratio=_ITL_RATIO if arguments.itl_goal is None else 0.0,
        ttft_goal=arguments.ttft_goal,
        prompt_logprob_tokens=_prompt_tokens(spec) if cuts_prompts else 0,
        policy=arguments.scheduling_policy,
        ageing_seconds=arguments.priority_ageing_seconds,
        max_num_waiting=arguments.max_num_queued_reqs,
        fair_share=arguments.fair_share,
        max_loras=arguments.max_loras if arguments.enable_lora else 0,
        untimed_holds=(ADAPTER,),  # it may wait for the end of the longest text
    )
    core = limited_depth(with_drafts(core, arguments, opened, layout, sizes))
    # What a step may need grows with the longest sequence, and that one fits into the cache.
    largest_step = structs.replace(largest_step, positions=max_len)
    chosen = choice.entry, choice.kind, dtype
    return EngineConfig(arguments, spec, *chosen, core, bill, largest_step, footprint, is_first)


def _budget(sizes: Sizes, layout: KVLayout, max_len: int, *, cuts_prompts: bool) -> int:
    """Return the most tokens of a step: those of the longest prompt where none is cut."""
    budget = sizes.max_num_batched_tokens
    if cuts_prompts or budget >= max_len:
        return budget
    log.warning(
        "max_num_batched_tokens=%d instead of %d: without chunked prefill%s, the longest "
        "prompt must fit in a step; lower max_model_len to save memory",
        max_len,
        budget,
        ", which an encoder cannot have" if layout.keeps_nothing else "",
    )
    return max_len


def _longest(asked: int | None, most: int) -> int:
    """Return the length that was asked for, or the model's own, which it may not exceed."""
    if asked is not None and asked > most:
        raise ConfigError(
            f"max_model_len={asked} is more than the {most} positions this model was made for; "
            "lower it"
        )
    return asked or most


def follow_quantization(arguments: EngineArguments, opened: OpenedModel) -> EngineArguments:
    """Compare `quantization` with the files, or have floats quantised as they are loaded."""
    asked, found = arguments.quantization, opened.quantization
    if asked is None:
        return arguments
    from octavo.options.quantization import instead_of, is_same, made_at_load

    if found is not None and is_same(asked, found):
        return arguments
    types = {tensor.type for tensor in tensor_sizes(opened) if tensor.is_matrix}
    if not types <= {*FLOAT_TYPES}:
        raise ConfigError(
            f"quantization={asked!r}: the model's files are quantised already, in the format "
            f"{found or ', '.join(sorted(types))}, which is kept; leave it out, or take files of "
            "the other format"
        )
    made = made_at_load(asked)
    if made is None:
        kind = "" if found is None else f"{found} "
        raise ConfigError(
            f"quantization={asked!r}: the model's {kind}files are not quantised, and floats do not "
            f"become that format as they are loaded; choose {instead_of(asked)}, leave it out, or "
            "take files of that format"
        )
    weights = arguments.cpu_weights
    if weights == "auto":
        log.info("cpu_weights=%s: from quantization=%s", made, asked)
        return replace(arguments, cpu_weights=cast("CpuWeights", made))
    if weights.partition("-")[0] != made:
        raise ConfigError(
            f"quantization={asked!r} contradicts cpu_weights={weights!r}; leave one of them out"
        )
    return arguments


def with_available(memory: Memory, num_bytes: int | None) -> Memory:
    """Return a memory of which so many bytes are free, if their number is given."""
    return memory if num_bytes is None else structs.replace(memory, available=num_bytes)


def _usable_memory(arguments: EngineArguments, memory: Memory) -> Memory:
    """Return the memory that an engine may take, and what it must leave to others.

    A share of the device's memory is the engine's own, and the rest of it is left already. Several
    engines divide what there is, of which they leave no more than one would.
    """
    num_engines = arguments.data_parallel_size
    part = max(0, memory.available - HEADROOM_BYTES) // num_engines + HEADROOM_BYTES
    memory = with_available(memory, min(memory.available, part))
    share = arguments.gpu_memory_utilization
    has_size = (arguments.kv_cache_memory_bytes, arguments.num_gpu_blocks_override) != (None, None)
    if share is None or has_size:
        return memory
    most = int(memory.total * share / num_engines) + HEADROOM_BYTES
    return with_available(memory, min(memory.available, most))


def limited_depth(core: CoreConfig) -> CoreConfig:
    """Return the settings with one step in flight if they have stages and drafts.

    Drafts follow a known token, so a sequence has one step in flight at most. A second step would
    compute only the sequences that the first does not, and both would be small.
    """
    if not (core.max_drafts and core.proposes) or core.num_stages == 1:
        return core
    log.warning(
        "one stage computes at a time beside speculation: drafts follow a known token, so no step "
        "is planned before the last one's tokens are known"
    )
    return replace(core, pipeline_depth=1, num_stages=1)


def _prompt_tokens(spec: ModelSpec) -> int:
    """Return the tokens of prompts with prompt_logprobs in a step; each needs a row of logits."""
    return max(_LEAST_PROMPT_LOGPROB_TOKENS, _PROMPT_LOGITS_BYTES // (4 * spec.vocabulary))


def with_adapters(
    bill: MemoryBill, arguments: EngineArguments, opened: OpenedModel, free: Memory
) -> MemoryBill:
    """Return a bill with the memory that adapters may take, if there are any.

    It suffices for as many as may be resident, all of the largest size, unless that is a large part
    of free memory: most are smaller, and what bounds their number then is their real size. Beside
    these, each slot may have one that had to leave, and the loader keeps memory for the next.
    """
    if not arguments.enable_lora:
        return bill
    from octavo.adapters.memory import largest_bytes, whole_bytes

    # Adapters keep the type of their files, mostly float32, unless a narrow one is asked for.
    is_narrow = arguments.lora_dtype in ("float16", "bfloat16") and arguments.dtype != "float32"
    largest = largest_bytes(opened.model, arguments.max_lora_rank, 2 if is_narrow else 4)
    in_slots = arguments.max_loras * largest
    left = max(0, bill.room_for_kv(free.available)) // _ADAPTER_SHARE
    most = min(num_resident(arguments) * largest, max(in_slots, left))
    if arguments.max_saved_loras:
        is_narrow = is_narrow and arguments.lora_dtype == "bfloat16"
        whole = whole_bytes(opened.model, 2 if is_narrow else 4)
        saved = arguments.max_saved_loras
        most += saved * whole
        # The next one is in its file's copy and in what is packed of that, before it is copied.
        in_slots += (min(arguments.max_loras, saved) + 2) * whole
    return structs.replace(
        bill, adapter_bytes=most + in_slots + MAX_SPARE_BYTES, resident_adapter_bytes=most
    )


def make_bill(arguments: EngineArguments, opened: OpenedModel, layout: KVLayout) -> MemoryBill:
    """Compute the engine's memory from the headers of the model's files."""
    arguments = follow_block(arguments, opened)
    cuts_prompts = arguments.enable_chunked_prefill and not layout.keeps_nothing
    kind = choose_backend(arguments).kind
    footprint, sizes = kind.footprint(arguments), chosen_sizes(arguments, kind)
    largest_step = _largest_step(arguments, layout, sizes, opened.spec, cuts_prompts)
    grammar_bytes = arguments.grammar_memory_bytes if opened.spec.has_head else 0
    bill = _bill(opened, layout, sizes.block_size, footprint, largest_step, grammar_bytes)
    arguments = with_form(arguments, kind)
    bill = with_ranks(bill, arguments, opened, layout, footprint, largest_step, kind)
    return with_adapters(bill, arguments, opened, kind.memory())


def _largest_step(
    arguments: EngineArguments,
    layout: KVLayout,
    sizes: Sizes,
    spec: ModelSpec,
    cuts_prompts: bool,
) -> StepSize:
    max_len = min(arguments.max_model_len or spec.max_len, spec.max_len)
    rows = sizes.max_num_batched_tokens
    if not cuts_prompts:
        rows = max(rows, max_len)
    # Logits for prompt_logprobs are extra. The headroom is enough for them, unless a prompt of any
    # length is computed in one step.
    prompt_rows = 0 if cuts_prompts or not spec.has_head else rows
    drafts = branches = 0
    if spec.has_head:
        drafts = most_drafts(arguments, layout, sizes).of_step
        branches = most_branches(arguments, layout, sizes)
    return StepSize(
        rows=rows,
        wanted_rows=min(rows, sizes.max_num_seqs + drafts + prompt_rows),
        sequences=sizes.max_num_seqs + branches,
        positions=max_len,
        hidden=spec.hidden,
        ffn=spec.ffn,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        vocabulary=spec.vocabulary if spec.has_head else 0,
    )


def _bill(
    opened: OpenedModel,
    layout: KVLayout,
    block_size: int,
    footprint: Footprint,
    largest_step: StepSize,
    grammar_bytes: int,
) -> MemoryBill:
    try:
        pages = footprint.pages(layout, block_size)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    drafter, steps, drafter_bytes = opened.drafter, [largest_step], 0
    if drafter is not None:
        sizes = (structs.replace(each, owner=DRAFTER) for each in tensor_sizes(drafter))
        drafter_bytes = sum(map(footprint.weight_bytes, sizes))
        steps += [step_of_drafter(largest_step, each) for each in drafter.model.programs]
    return MemoryBill(
        stored=stored(opened),
        weights_bytes=sum(map(footprint.weight_bytes, tensor_sizes(opened))),
        drafter_bytes=drafter_bytes,
        step_bytes=footprint.step_bytes(*steps),
        grammar_bytes=grammar_bytes,
        block_bytes=pages.whole_bytes,
        block_size=block_size,
        groups=groups_of(layout, pages),
        chunk_tokens=largest_step.rows,
    )


def _warn_of_types(arguments: EngineArguments, opened: OpenedModel, dtype: str) -> None:
    """Warn about types that are not computed in, and about settings of other weights than these."""
    if arguments.dtype == "float16" != dtype:
        log.warning(
            "dtype=float16 is computed in %s, which takes as much memory and does not overflow; "
            "float32 is more exact than both",
            dtype,
        )
    if arguments.cpu_activations == arguments.cpu_weights == "auto":
        return
    models = [each for each in (opened, opened.drafter) if each is not None]
    types = {size.type for each in models for size in tensor_sizes(each) if size.is_matrix}
    if arguments.cpu_activations != "auto" and types <= {*FLOAT_TYPES}:
        log.warning(
            "cpu_activations=%s changes nothing: it is for weights that are quantised in the "
            "model's files, and these have floats; leave it out",
            arguments.cpu_activations,
        )
    if arguments.cpu_weights != "auto" and types.isdisjoint(FLOAT_TYPES):
        log.warning(
            "cpu_weights=%s changes nothing: the file's weights are quantised already (%s), and "
            "are kept so; leave it out, or take the model's bf16 files",
            arguments.cpu_weights,
            ", ".join(sorted(types)),
        )


def _cache_size(
    arguments: EngineArguments,
    sizes: Sizes,
    layout: KVLayout,
    bill: MemoryBill,
    max_len: int,
    free: Memory,
    dtype: str,
    footprint: Footprint,
) -> tuple[int, int]:
    """Return the number of blocks, and the longest sequence that fits in them.

    Where the number follows from free memory, it is an estimate: `final_blocks` of
    engine/cache_size.py corrects it once the weights are loaded.
    """
    asked = arguments.num_gpu_blocks_override
    if asked is not None:
        least = len(layout.windows) + 1
        if asked < least:
            raise ConfigError(
                f"num_gpu_blocks_override={asked} leaves no sequence room for a token: this model "
                f"keeps KV in {len(layout.windows)} groups of layers, each with blocks of its own, "
                f"and one block is never used; give {least} at least, or leave it out"
            )
        return asked, max_len
    budget = arguments.kv_cache_memory_bytes
    if budget is None:
        budget = _default_kv_bytes(bill, free, dtype, footprint.most_kv_bytes)
        log.info("KV cache: at most %s, free beside weights and steps", readable(budget))
    size = sizes.block_size
    longest = longest_in(budget // bill.block_bytes - 1, bill, max_len)
    if arguments.max_model_len is None and 0 < longest < max_len:
        log.info("max_model_len=%d instead of %d: so much KV fits", longest, max_len)
        max_len = longest
    num_blocks = num_blocks_in(
        budget,
        layout,
        bill,
        max_model_len=max_len,
        max_num_seqs=sizes.max_num_seqs,
        step_tokens=max(sizes.max_num_batched_tokens, max_len),
    )
    log.info("KV cache: %d blocks of %d tokens", num_blocks, size)
    return num_blocks, max_len


def _default_kv_bytes(bill: MemoryBill, free: Memory, dtype: str, most_kv_bytes: int) -> int:
    """Return the default size of the KV cache: the memory that is left for it, up to a bound."""
    room = bill.room_for_kv(free.available)
    least = bill.block_bytes * (len(bill.groups) + 1)
    if room < least:
        needed = bill.fixed_bytes + least + HEADROOM_BYTES
        smaller = "a smaller model" + (" or dtype=bfloat16" if dtype == "float32" else "")
        raise ConfigError(
            f"there is not enough memory: {readable(needed)} are needed (the weights "
            f"{readable(bill.all_weights_bytes)}, a step {readable(bill.step_bytes)}, "
            f"{beside_text(bill)} (grammar_memory_bytes), the smallest KV cache "
            f"{readable(least)}, and {readable(HEADROOM_BYTES)} that are kept free for others), "
            f"and {free_text(free)}; {free.remedy}, take {smaller}, or, if you know "
            "better, set kv_cache_memory_bytes"
        )
    return min(room, most_kv_bytes)


def no_room_to_preallocate(beside: str, needed_bytes: int, free: Memory) -> ConfigError:
    """Return the error for a KV cache that does not fit in memory at the start."""
    return ConfigError(
        f"preallocate_kv_cache takes all memory of the KV cache at the start: with {beside} that "
        f"is {readable(needed_bytes)}, and {free_text(free)}; lower kv_cache_memory_bytes, "
        "num_gpu_blocks_override or max_num_seqs, or leave preallocate_kv_cache out"
    )


def beside_text(bill: MemoryBill) -> str:
    """Return the memory of what requests bring along, in words."""
    adapters = f"adapters {readable(bill.adapter_bytes)}, " if bill.adapter_bytes else ""
    return f"{adapters}grammars {readable(bill.grammar_bytes)}"


def free_text(memory: Memory) -> str:
    """Return how much memory is free and, if that is less than the machine's, the limit."""
    if not memory.limited_by:
        return f"{readable(memory.available)} are free"
    limit = f"{readable(memory.total)} that {memory.limited_by} allows"
    return f"{readable(memory.available)} are free of the {limit}"


def _check_room(
    arguments: EngineArguments,
    bill: MemoryBill,
    num_blocks: int,
    free: Memory,
    *,
    is_first: bool,
) -> None:
    """Warn if the memory may run out later; raise ConfigError if it would at the start."""
    needed = bill.with_blocks(num_blocks)
    if needed > free.available and arguments.preallocate_kv_cache and is_first:
        raise no_room_to_preallocate("the weights, steps and grammars", needed, free)
    if needed > free.available:
        log.warning(
            "weights, steps, grammars and KV cache come to %s, and %s are free: the machine may "
            "swap, or end the engine, when the KV cache fills; lower kv_cache_memory_bytes or "
            "max_num_seqs",
            readable(needed),
            readable(free.available),
        )
