"""Builds an engine in this process, from a model's files up to the core: the composition root."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from octavo.backends.base import Arithmetic, Backend, KVLayout
from octavo.backends.step import NoAdaptersError
from octavo.core.config import ConfigError
from octavo.core.engine import EngineCore, Executor
from octavo.core.sampling_params import LogitsProcessor
from octavo.distributed.context import ALONE
from octavo.engine.cache_size import final_blocks, reserve_step
from octavo.engine.drafting.drafter import (
    layout_of,
    open_with_drafter,
    record_programs,
    weight_files,
)
from octavo.engine.grammars import prepare_grammars
from octavo.engine.memory_check import MemoryCheck
from octavo.engine.pooling_facts import with_settings
from octavo.engine.shortage import describe_shortage
from octavo.exec.inline import InlineExecutor
from octavo.grammar.supply import GrammarSupply
from octavo.layers import Context, LastStates, Linear, Model
from octavo.loader import ModelFiles
from octavo.models.build import bind
from octavo.models.footprint import most_stored_type, num_parameters
from octavo.models.generation import chosen_defaults
from octavo.models.load import OpenedModel
from octavo.observe.collection import no_collection
from octavo.observe.machine import num_cores
from octavo.options.engine import EngineArguments
from octavo.program.passes.stages import StageError
from octavo.quant.shard import ShardError
from octavo.resolve import EngineConfig, resolve
from octavo.runner.model_runner import ModelRunner
from octavo.usable import choose_backend
from octavo.wire.facts import EngineFacts

if TYPE_CHECKING:
    from octavo.engine.adapter_loader import AdapterLoader
    from octavo.engine.ranks.devices import DeviceGroup
    from octavo.engine.ranks.group import ProcessGroup, RankGroup
    from octavo.engine.stages.group import StageGroup
    from octavo.runner.request_processors import RequestProcessor
    from octavo.runner.speculate.proposer import Proposer

log = logging.getLogger(__name__)


class BuiltEngine(Struct, frozen=True):
    """An engine that is ready, with its settings and the facts that the front end needs."""

    core: EngineCore
    config: EngineConfig
    facts: EngineFacts
    grammars: GrammarSupply
    adapters: AdapterLoader | None = None  # None: requests may name none
    ranks: ProcessGroup | None = None  # the others; None: this process computes alone


class _Parts:
    """The parts of a start-up, in order, with the duration of each that has ended."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = self.began = clock()
        self.current = ""
        self.durations: list[tuple[str, float]] = []

    def begin(self, what: str) -> None:
        """End the current part, if any, and begin the next one."""
        self.end()
        self.current = what

    def end(self) -> None:
        """End the current part."""
        now = self._clock()
        if self.current:
            self.durations.append((self.current, round(now - self._last, 4)))
        self._last, self.current = now, ""


@no_collection()
def build_engine(
    arguments: EngineArguments,
    *,
    processors: Mapping[str, LogitsProcessor] | None = None,
    clock: Callable[[], float] = time.monotonic,
    wrap: Callable[[Executor], Executor] | None = None,
    meanwhile: Callable[[OpenedModel, ModelFiles], None] | None = None,
    is_first: bool = True,
    cache_key: bytes | None = None,
) -> BuiltEngine:
    """Load the model that the arguments name, and return an engine that is ready to step.

    `wrap` may wrap the executor. `meanwhile` is called while background threads load the weights.
    An engine that is not the first replaces one, so it starts even if it has to pack its weights.
    `cache_key` is the key of its digests of KV; without one it draws its own.
    """
    _check_processors(processors)
    if arguments.headless:
        raise ConfigError("headless is for `octavo serve`, on a node that has no server")
    if is_first:
        choose_backend(arguments, is_first=True)
    for name in ("spare_engine", "kv_events_config"):
        if getattr(arguments, name) and wrap is None:
            raise ConfigError(
                f"{name} needs an engine in a process of its own, and this one runs in the "
                "caller's: use engine='process', or leave it out"
            )
    parts = _Parts(clock)
    try:
        with ExitStack() as at_failure:
            built = _build(
                *(arguments, processors, clock, wrap, meanwhile, parts, at_failure),
                cache_key=cache_key or os.urandom(32),
                is_first=is_first,
            )
            at_failure.pop_all()
            return built
    except MemoryError as error:
        raise ConfigError(describe_shortage(parts.current, error)) from error


def _build(
    arguments: EngineArguments,
    processors: Mapping[str, LogitsProcessor] | None,
    clock: Callable[[], float],
    wrap: Callable[[Executor], Executor] | None,
    meanwhile: Callable[[OpenedModel, ModelFiles], None] | None,
    parts: _Parts,
    at_failure: ExitStack,
    *,
    cache_key: bytes,
    is_first: bool,
) -> BuiltEngine:
    if arguments.logits_processors:
        parts.begin("make the logits processors")
    request_processors, own_proposer = _own_objects(arguments)
    parts.begin("find and open the model's files")
    source, opened = open_with_drafter(arguments)
    layout = layout_of(opened)
    parts.begin("choose the settings")
    config = resolve(arguments, opened, layout, bounds_grammars=wrap is not None, is_first=is_first)
    arguments = config.arguments
    opened = _with_pooling(opened, arguments)
    waits = "wait for the other nodes, " if arguments.nnodes > 1 else ""
    parts.begin(f"{waits}import the backend")
    backend, group = _make_backend(config, source, opened, at_failure)
    parts.begin("begin to load the weights")
    memory_check = MemoryCheck(config.bill)
    adapters = _bind(config, opened, layout, backend, group, parts)
    parts.begin("prepare for grammars")
    grammars = prepare_grammars(arguments, source, opened, is_bounded=wrap is not None)
    if meanwhile is not None:
        parts.begin("load the tokenizer")
        meanwhile(opened, source)
    parts.begin("load the weights to the end")
    backend.settle()
    weight_bytes = backend.weight_bytes + (0 if group is None else group.wait())
    memory_check.log_result(weight_bytes)
    parts.begin("set up the KV cache and the runner")
    config, free_bytes = _with_room(config, backend, group)
    step_bytes = reserve_step(config, backend, free_bytes)
    num_blocks = final_blocks(config, layout, free_bytes, step_bytes)
    config = structs.replace(config, core=replace(config.core, num_blocks=num_blocks))
    backend.make_cache(num_blocks)
    runner = ModelRunner(
        backend,
        opened.spec.vocabulary,
        config.core,
        processors=processors,
        request_processors=request_processors,
        proposer=own_proposer or _make_proposer(config, opened),
        grammars=grammars,
        heads=opened.heads,
        masks_beside=backend.num_threads < num_cores()[0],
        adapters=adapters,
    )
    executor = InlineExecutor(runner)
    core = EngineCore(config.core, executor if wrap is None else wrap(executor), clock, cache_key)
    _warn_if_short(core.longest_tokens, config)
    parts.end()
    log.info("%s is ready after %.1f s", opened.architecture, clock() - parts.began)
    memory_bytes = {
        "weights": weight_bytes,
        "step": step_bytes,
        "grammars": config.bill.grammar_bytes,
        **({} if adapters is None else {"adapters": config.bill.adapter_bytes}),
        "KV cache": config.core.num_blocks * config.bill.block_bytes,
    }
    found = core.longest_tokens, memory_bytes, parts.durations, backend.arithmetic
    facts = _facts(source, opened, config, *found)
    return BuiltEngine(core, config, facts, grammars, adapters, group)


def _own_objects(
    arguments: EngineArguments,
) -> tuple[Mapping[str, RequestProcessor], Proposer | None]:
    """Make the objects of the operator's own classes, of which there are usually none."""
    speculation = arguments.speculative_config
    if speculation is None and not arguments.logits_processors:
        return {}, None
    from octavo.engine.own_classes import make_own_proposer, make_processors

    return make_processors(arguments.logits_processors), make_own_proposer(speculation)


def _with_room(
    config: EngineConfig, backend: Backend, group: ProcessGroup | None
) -> tuple[EngineConfig, int]:
    """Return the settings and the free memory by which the KV cache gets its size."""
    free_bytes = config.kind.memory().available
    return (config, free_bytes) if group is None else group.with_room(config, backend, free_bytes)


def _with_pooling(opened: OpenedModel, arguments: EngineArguments) -> OpenedModel:
    """Return the model with the user's settings of pooling; refuse those it cannot follow."""
    settings = with_settings(opened.pooling, arguments.pooler_config)
    return structs.replace(opened, pooling=settings)


def _make_backend(
    config: EngineConfig, source: ModelFiles, opened: OpenedModel, at_failure: ExitStack
) -> tuple[Backend, ProcessGroup | None]:
    """Make the backend, and start its other processes if there are any, which load their share."""
    arguments, files = config.arguments, weight_files(opened)
    group: RankGroup | StageGroup | DeviceGroup
    if arguments.nnodes > 1:
        from octavo.engine.nodes.group import NodeGroup, setting_of
        from octavo.engine.nodes.ranks import RanksOfNodes

        make = RanksOfNodes if arguments.tensor_parallel_form == "sums" else NodeGroup
        group = make(arguments, setting_of(arguments, source, files))
    elif arguments.pipeline_parallel_size > 1:
        from octavo.engine.stages.group import StageGroup

        stages = arguments.pipeline_parallel_size
        group = StageGroup(stages, arguments.tensor_parallel_size)
    elif arguments.tensor_parallel_size > 1 and config.kind.ranks_have_devices:
        from octavo.engine.ranks.devices import DeviceGroup

        group = DeviceGroup(arguments.tensor_parallel_size)
    elif arguments.tensor_parallel_size > 1:
        from octavo.engine.ranks.group import RankGroup

        sums = arguments.tensor_parallel_form == "sums"
        group = RankGroup(arguments.tensor_parallel_size, sums=sums)
    else:
        return config.kind.make(arguments, files), None
    at_failure.callback(group.close)  # at once, although the error may refer to the group
    backend = config.kind.make(arguments, files, group.place)
    group.load(config, files, backend)
    return backend, group


def _bind(
    config: EngineConfig,
    opened: OpenedModel,
    layout: KVLayout,
    backend: Backend,
    group: ProcessGroup | None,
    parts: _Parts,
) -> AdapterLoader | None:
    """Give the model its weights, and the backend the model; return what loads its adapters.

    Nothing that concerns adapters is imported unless there may be some.
    """
    adapters = settings = None
    if config.arguments.enable_lora:
        from octavo.engine.adapters import AdapterParts

        adapters = AdapterParts(config.arguments, opened.model)
        settings = adapters.settings
    try:
        bind(opened.model, backend, opened.weights, ALONE if group is None else group.context)
        _check_inputs(opened.model)
    except ShardError as error:
        asked = f"tensor_parallel_size={config.arguments.tensor_parallel_size}"
        advice = ""
        if not config.kind.ranks_have_devices:
            asked += " with tensor_parallel_form=sums"
            advice = "; without tensor_parallel_form, ranks divide all models"
        raise ConfigError(f"{asked}: {error}{advice}") from error
    parts.begin("record the model's program")
    try:
        record_programs(opened, layout, backend, config.core.block_size, settings)
    except NoAdaptersError as error:
        raise ConfigError(f"enable_lora: {error}; leave it out") from error
    except StageError as error:
        raise ConfigError(
            f"pipeline_parallel_size={config.arguments.pipeline_parallel_size}: {error}"
        ) from error
    if adapters is None:
        return None
    return adapters.make_loader(backend, config.bill.resident_adapter_bytes)


def _check_inputs(model: Model) -> None:
    """Refuse matrices of which a rank would need the inputs that others compute."""
    for path, layer in model.walk():
        if isinstance(layer, Linear) and layer.columns is not None:
            raise ShardError(
                f"{path}: its inputs are in an order of their own (act order), so that a rank "
                "would need those of all others; use one rank"
            )


def _check_processors(processors: object) -> None:
    """Refuse logits processors that are not a mapping of names to functions."""
    if processors is not None and not isinstance(processors, Mapping):
        raise ConfigError(
            f"logits_processors is a {type(processors).__name__}; it must map names to functions, "
            "as in {'mine': function}, and requests name them in their SamplingParams"
        )
    for name, processor in (processors or {}).items():
        if not isinstance(name, str) or not callable(processor):
            raise ConfigError(
                f"logits_processors has {name!r}: {processor!r}; it must map names to functions "
                "(prompt_ids, output_ids, logits) -> logits"
            )


def _warn_if_short(longest_tokens: int, config: EngineConfig) -> None:
    """Warn if the KV cache is too small for `max_model_len`, by choice or for lack of memory."""
    if longest_tokens < config.core.max_model_len:
        advice = "memory is short: free some, or lower max_model_len"
        if config.arguments.num_gpu_blocks_override is not None:
            advice = "raise num_gpu_blocks_override, or leave it out"
        log.warning(
            "a sequence can have %d tokens, including its prompt, instead of the %d of "
            "max_model_len, because the KV cache holds no more; %s",
            longest_tokens,
            config.core.max_model_len,
            advice,
        )


def _make_proposer(config: EngineConfig, opened: OpenedModel) -> Proposer | None:
    speculation = config.arguments.speculative_config
    if speculation is None or speculation.method == "off":
        return None
    if opened.drafter is not None:
        most, features = speculation.most_tokens, opened.drafter.model.features
        if isinstance(features, LastStates | Context):
            from octavo.runner.speculate.heads import HeadsProposer

            return HeadsProposer(most)
        from octavo.runner.speculate.draft_model import DraftModelProposer

        return DraftModelProposer(most, reads_hidden=features is not None)
    module = import_module(f"octavo.runner.speculate.{speculation.method}")
    proposer: Proposer = module.make(speculation, config.core.max_model_len)
    return proposer


def _facts(
    source: ModelFiles,
    opened: OpenedModel,
    config: EngineConfig,
    longest_tokens: int,
    memory_bytes: dict[str, int],
    laps: list[tuple[str, float]],
    arithmetic: Arithmetic,
) -> EngineFacts:
    return EngineFacts(
        name=source.name,
        architecture=opened.architecture,
        directory=str(source.directory),
        weights=tuple(map(str, source.weights)),
        vocabulary=config.spec.vocabulary,
        max_model_len=config.core.max_model_len,
        longest_tokens=longest_tokens,
        block_size=config.core.block_size,
        num_blocks=config.core.num_blocks,
        max_num_seqs=config.core.max_num_seqs,
        max_num_waiting=config.core.max_num_waiting,
        max_waiting_tokens=config.core.max_waiting_tokens,
        dtype=config.dtype,
        device=config.backend.device,
        generation=chosen_defaults(
            opened.generation,
            config.arguments.generation_config,
            config.arguments.override_generation_config or {},
        ),
        memory_bytes=memory_bytes,
        start_seconds=tuple(laps),
        instruction_set=arithmetic.instruction_set,
        accumulation_order=arithmetic.accumulation_order,
        num_parameters=num_parameters(opened),
        weight_type=most_stored_type(opened),
        fair_share=config.core.fair_share,
        kv_groups=tuple([(group.kind, group.window) for group in config.core.groups]),
        pooling=opened.pooling,
    )
