"""The state that all requests of one server share."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from octavo.api.async_llm import AsyncLLM
from octavo.client.client import ENGINE_PROGRAM
from octavo.client.vitals import EngineVitals
from octavo.grammar.checked import CheckedShapes
from octavo.observe.explain import Recent, Record
from octavo.observe.exposition import Labels
from octavo.observe.machine import child_bytes
from octavo.observe.metrics import Metrics
from octavo.observe.output import num_dropped_lines
from octavo.observe.traces.traces import Traces
from octavo.options.server import ServerSettings
from octavo.serving.adapters.registry import AdapterRegistry
from octavo.serving.adapters.resolver import Resolver
from octavo.serving.adapters.service import lora_requests
from octavo.serving.admission import Admission
from octavo.serving.answers.formats import choose_formats
from octavo.serving.bounds.sessions import Sessions
from octavo.serving.bounds.shares import Shares
from octavo.serving.bounds.turns import Releases
from octavo.serving.canary import Canary
from octavo.serving.idle import IdleSleep
from octavo.serving.live.feed import LiveFeed
from octavo.serving.store.responses import ResponseStore
from octavo.serving.store.sqlite_shelf import open_store
from octavo.serving.traces import open_traces
from octavo.serving.translation import TranslationContext
from octavo.transport.auth import AccessControl
from octavo.transport.errors import ApiError, unavailable
from octavo.workers.launch import PROGRAM as WORKER_PROGRAM
from octavo.workers.pool import PromptPool
from octavo.workers.process import Worker

if TYPE_CHECKING:
    from octavo.serving.batches.service import Batches
    from octavo.serving.durable.service import Durability


def _version() -> str:
    try:
        return metadata.version("octavo")
    except metadata.PackageNotFoundError:  # run from a directory of sources
        return "0"


VERSION = _version()
_CHILDREN = {ENGINE_PROGRAM: "engine", WORKER_PROGRAM: "prompt_worker"}


def _child_memory() -> list[tuple[Labels, float]]:
    return [((("process", kind),), size) for kind, size in child_bytes(_CHILDREN).items()]


def add_shared_metrics(metrics: Metrics, responses: ResponseStore, traces: Traces | None) -> None:
    """Add the metrics of the whole process, and of what its models have in common."""
    metrics.add_counter(
        "dropped_log_lines", "Lines of output that were not written.", num_dropped_lines
    )
    metrics.add_gauge(
        "child_memory_bytes", "Resident memory of the processes started.", _child_memory
    )
    if traces is not None:
        metrics.add_counter(
            "traces_sent", "Requests whose spans were delivered.", lambda: traces.num_sent
        )
        metrics.add_counter(
            "traces_dropped", "Requests whose spans were not.", lambda: traces.num_dropped
        )
    metrics.add_gauge("responses_kept", "Responses that are kept.", lambda: len(responses))
    metrics.add_gauge("responses_bytes", "Bytes of those.", lambda: responses.num_bytes)


@dataclass(slots=True)
class ActiveRequest:
    """One request that is being answered."""

    record: Record
    engine_ids: Sequence[str]
    is_stream: bool
    stop: Callable[[Exception], None]  # end it now, with this error
    is_background: bool = False  # of a batch, which keeps no part of an answer


class Shared:
    """The things that all models of a server have in common: keys, responses, recent requests."""

    def __init__(self, config: ServerSettings, clock: Callable[[], float]) -> None:
        self.started_at = wall_time()  # shown as `created`; decides nothing
        self.access = AccessControl(config)
        self.shares = Shares(len(config.api_keys), self.access.knows)
        self.responses = open_store(config, clock, wall_time, self.shares)
        self.recent = Recent(config.num_explained if config.enable_explain else 0)
        self.traces = open_traces(config, VERSION)

    async def close(self) -> None:
        """Keep the responses, and send the traces that are left."""
        await self.responses.close()
        if self.traces is not None:
            await asyncio.to_thread(self.traces.close)


def wall_time() -> int:
    """Return the time for `created`, and for what survives the server: the end of batches."""
    return int(time.time())


class Server:
    """One model: its engines, its admission queue, and what else its requests share."""

    idle: IdleSleep | None = None  # set while the server runs and may sleep by itself

    def __init__(
        self,
        llm: AsyncLLM,
        config: ServerSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        workers: Sequence[Worker] = (),  # prompt workers that have been launched already
        shared: Shared | None = None,  # with other models; None: there is one
    ) -> None:
        self.config = config = config or ServerSettings()
        self.llm = llm
        self.clock = clock
        common = shared or Shared(config, clock)
        self.started_at = common.started_at
        self.access, self.shares = common.access, common.shares
        self.responses, self.recent = common.responses, common.recent
        self.traces = common.traces
        self.common = common
        self.admission = self._make_admission()
        self.canary = Canary(llm, clock, config.ready_seconds)
        self.metrics = Metrics(
            self.admission,
            lambda: [engine.snapshot() for engine in llm.engines],
            self.readiness_as_number,
            tuple((name, str(value)) for name, value in llm.model.cache_settings.items()),
            self._num_without_engine,
            llm.first_engine,
        )
        self.sessions = Sessions(clock)
        self._add_metrics()
        if shared is None:
            add_shared_metrics(self.metrics, self.responses, self.traces)
        self.model_names = config.served_names or (llm.facts.name,)  # what requests may name
        self.model_name = self.model_names[0]  # the name in answers of the model itself
        self.adapters = AdapterRegistry(llm, self.model_names, config.max_lora_names)
        self.resolver: Resolver | None = None
        if config.lora_resolver is not None:
            self.resolver = Resolver(config, self.adapters, clock)
        self.context = _context_of(llm, config)
        llm.model.set_formats(self.context.formats.formats)
        self.prompt_pool = PromptPool(
            config,
            str(llm.model.source.tokenizer_path),
            self.metrics.prompt_workers_killed.add,
            workers,
        )
        self.live = LiveFeed(lambda: (self,), self.recent, config, VERSION, clock)
        self.checked_shapes = CheckedShapes()
        self.active: dict[str, ActiveRequest] = {}
        self.releases = Releases()  # of requests that have ended
        self.is_draining = self.is_paused = False  # by an operator
        self.num_wakes = 0  # times that an operator has asked to wake the engine
        self.durability: Durability | None = None  # set while the server runs with a journal
        self.batches: Batches | None = None  # set while the server runs with a directory of them
        self.openapi = b""  # the document of the routes, once it was asked for
        self.num_requests = 0  # since the start: distinguishes requests with the same id
        # `system_fingerprint`: equal ones give equal answers to equal seeds.
        self.fingerprint = f"octavo-{VERSION}"

    def _make_admission(self) -> Admission:
        """Make the queue, which admits as many requests as the engines that are alive can have."""
        facts = self.llm.facts
        admission = Admission(
            self.config,
            facts.max_num_seqs,
            self.clock,
            lambda reason: self.metrics.reject(reason),
            is_shared=facts.fair_share,
        )
        admission.resize(self.llm.num_ready())
        self.llm.watch_engines(lambda: admission.resize(self.llm.num_ready()))
        return admission

    def _num_without_engine(self) -> int:
        """Return how many admitted requests wait for an engine that may have them."""
        inside = sum(engine.snapshot().load.num_waiting for engine in self.llm.engines)
        return max(0, self.llm.snapshot().load.num_waiting - inside)

    def _of_engines(self, read: Callable[[EngineVitals], float]) -> Callable[[], list[float]]:
        """Return what reads a value of each engine's life."""
        return lambda: [read(engine.vitals) for engine in self.llm.engines]

    def _add_metrics(self) -> None:
        """Add the metrics that are counted outside the server."""
        add_of_engines, of_engines = self.metrics.add_engine_counter, self._of_engines
        add_of_engines(
            "engine_deaths",
            "Engine processes that ended.",
            of_engines(lambda vitals: vitals.num_deaths),
        )
        add_of_engines(
            "engine_restarts",
            "Engines that became ready again.",
            of_engines(lambda vitals: vitals.num_restarts),
        )
        add_of_engines(
            "engine_down_seconds",
            "Time without this engine; without any, all requests are held.",
            of_engines(lambda vitals: vitals.down_seconds(time.monotonic())),
        )
        self.metrics.add_gauge("engines_ready", "Engines that are ready.", self.llm.num_ready)
        self.metrics.add_shared_gauge(
            "lora_requests_info",
            "The adapters of requests that run and wait; the value is the time.",
            lambda: lora_requests(self),
        )

    @property
    def wall_time(self) -> Callable[[], int]:
        """The seconds since 1970."""
        return wall_time

    @property
    def digests_bodies(self) -> bool:
        """True if requests can be continued, for which their bodies are compared."""
        return self.durability is not None

    @property
    def is_continued_later(self) -> bool:
        """The answer to whether the next server continues what this one has not finished."""
        return self.durability is not None and self.is_draining

    def refusal(self) -> ApiError | None:
        """Return the reason why requests are not served now; None if they are."""
        if self.is_draining:
            return unavailable("the server is shutting down", "server_shutdown")
        if self.idle is not None and self.idle.is_asleep:
            return None  # the next request wakes it
        if self.llm.is_sleeping:
            return unavailable(
                "an operator has put the server to sleep: it has no engine until it is woken",
                "sleeping",
            )
        if not self.llm.is_well():
            return unavailable(
                "the engine is not ready: it is being restarted, or has stopped",
                "engine_not_ready",
            )
        return None

    def readiness_as_number(self) -> float:
        """Return 1 while requests are served and 0 otherwise, for the metric."""
        return 1.0 if self.refusal() is None and self.canary.is_well else 0.0


def _context_of(llm: AsyncLLM, config: ServerSettings) -> TranslationContext:
    """Return what translations of requests read of the model and of the settings."""
    generates = "generate" in llm.facts.pooling.tasks
    return TranslationContext(
        facts=llm.facts,
        formats=choose_formats(config, llm.model.tokenizer, generates=generates),
        chat_template=config.chat_template,
        trust_request_chat_template=config.trust_request_chat_template,
        default_chat_template_kwargs=config.default_chat_template_kwargs,
        log_prompts=config.log_prompts,
        content_format=config.chat_template_content_format,
        cohere_is_reasoning_model=config.cohere_is_reasoning_model,
        max_embed_len=config.max_embed_len or llm.facts.pooling.max_embed_len,
        tokens_only=config.tokens_only,
        is_verbose=logging.getLogger("octavo").isEnabledFor(logging.DEBUG),
        seed=llm.model.seed,
        has_dates=config.chat_template_dates,
    )
