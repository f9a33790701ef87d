"""An engine over any function from plans to results, with the facts that loading would give."""

from __future__ import annotations

import time
from collections.abc import Callable

from octavo.core.config import CoreConfig
from octavo.core.engine import EngineCore
from octavo.core.plan import StepPlan, StepResult
from octavo.engine.process import CoreAndFacts, Wrap
from octavo.exec.inline import InlineExecutor
from octavo.options.engine import EngineArguments
from octavo.wire.facts import EngineFacts
from tests.exec.at_once import AtOnce


def engine_over_runner(
    name: str,
    arguments: EngineArguments,
    wrap: Wrap,
    cache_key: bytes,
    run: Callable[[StepPlan], StepResult],
    config: CoreConfig,
    vocabulary: int,
) -> CoreAndFacts:
    """Build the engine; its facts name the tokenizer's directory as the model's."""
    executor = wrap(InlineExecutor(AtOnce(run)))
    core = EngineCore(config, executor, time.monotonic, cache_key)
    facts = EngineFacts(
        name=name,
        architecture="FakeForCausalLM",
        directory=arguments.tokenizer or "",
        weights=("model.safetensors",),
        vocabulary=vocabulary,
        max_model_len=config.max_model_len,
        longest_tokens=core.longest_tokens,
        block_size=config.block_size,
        num_blocks=config.num_blocks,
        max_num_seqs=config.max_num_seqs,
        max_num_waiting=config.max_num_waiting,
        max_waiting_tokens=config.max_waiting_tokens,
        dtype="float32",
        accumulation_order=arguments.accumulation_order or "measured",
        fair_share=config.fair_share,
        kv_groups=tuple((group.kind, group.window) for group in config.groups),
    )
    return CoreAndFacts(core, facts)
