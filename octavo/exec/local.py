"""Builds a whole engine in this process: files, model, backend, runner, executor, core."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from octavo.config import EngineArguments
from octavo.core.engine import EngineCore
from octavo.core.sampling_params import LogitsProcessor
from octavo.exec.inline import InlineExecutor
from octavo.exec.measure import Scales
from octavo.loader import Source
from octavo.loader import resolve as resolve_source
from octavo.models.build import bind
from octavo.models.generation import GenerationDefaults
from octavo.models.kv_layout import place_layers
from octavo.models.load import open_model
from octavo.resolve import EngineConfig, resolve
from octavo.runner.model_runner import ModelRunner

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """An engine, and what the front end must know of its model."""

    core: EngineCore
    config: EngineConfig
    source: Source
    generation: GenerationDefaults


def start_local_engine(
    arguments: EngineArguments,
    *,
    processors: Mapping[str, LogitsProcessor] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> LocalEngine:
    """Everything from a model's name to an engine that can be stepped."""
    from octavo.backends.torch.backend import TorchBackend  # torch is asked for only here

    began = clock()
    source = resolve_source(arguments.model)
    opened = open_model(source, arguments.max_model_len)
    layout = place_layers(opened.model)
    config = resolve(arguments, opened, layout)
    backend = TorchBackend(config.dtype)
    scales = Scales(config.bill)
    bind(opened.model, backend, opened.weights)
    scales.weigh(opened.model)
    backend.prepare(opened.model, layout, config.core.num_blocks, config.core.block_size)
    runner = ModelRunner(backend, opened.spec.vocabulary, config.core, processors=processors)
    core = EngineCore(config.core, InlineExecutor(runner), clock, secrets.token_bytes(32))
    log.info("%s is ready after %.1f s", opened.architecture, clock() - began)
    return LocalEngine(core, config, source, opened.generation)
