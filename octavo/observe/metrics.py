"""The metrics of a server: `octavo:*`, or under vLLM's names for its dashboards.

A metric that vLLM has too has its name, type, labels and buckets, and by default our prefix. The
other metrics have our prefix in either mode.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Protocol

from octavo.core.snapshot import EngineSnapshot
from octavo.core.stats import RESTART, RequestStats
from octavo.observe.exposition import (
    Counter,
    Exemplar,
    Gauge,
    Histogram,
    HistogramOfEach,
    Labels,
    Metric,
    Named,
    expose,
)
from octavo.observe.http_metrics import HttpMetrics
from octavo.observe.llama_metrics import NAMES as LLAMA_NAMES
from octavo.observe.llama_metrics import LlamaMetrics, Reading

_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_BETWEEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
_WHOLE = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0),
    *(240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_TOKENS = tuple(factor * 10**power for power in range(6) for factor in (1, 2, 5))
_N = (1, 2, 5, 10, 20)
_PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
# vLLM's names of the limits, by the reasons of our admission queue.
_LIMITS = {"queue_full": "max_num_queued_reqs", "tokens": "max_num_queued_tokens"}
ENGINE = "engine"  # the label that names an engine
_OF_ALL: Labels = ((ENGINE, "all"),)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Queue(Protocol):
    """The requests that wait in the server for admission to the engine."""

    @property
    def num_waiting(self) -> int: ...
    @property
    def waiting_tokens(self) -> int: ...
    @property
    def waiting_bytes(self) -> int: ...
    def by_owner(self) -> Iterable[tuple[str, int, int]]: ...


class Metrics(HttpMetrics):
    """The metrics of one server, as attributes that its parts count on."""

    def __init__(
        self,
        queue: Queue,
        snapshots: Callable[[], Sequence[EngineSnapshot]],  # one of each engine
        readiness: Callable[[], float],
        cache_config: Labels = (),  # the settings of the KV cache
        num_without: Callable[[], int] = lambda: 0,  # admitted requests that no engine has
        first_engine: int = 0,  # the number of the first engine
    ) -> None:
        super().__init__()
        self._queue = queue
        self._snapshots = snapshots
        self._readiness = readiness
        self._num_without = num_without
        self._first_engine = first_engine
        self._cache_config = cache_config
        self._shared: list[Metric] = []  # with vLLM
        # Those whose series have the number of the engine; the others are of all together.
        self._of_engines: set[Metric] = set()
        self._read_totals: list[tuple[Counter, Callable[[], float]]] = []
        self._read_of_engines: list[tuple[Counter, Callable[[], Sequence[float]]]] = []
        self._longest = 0  # tokens of a sequence that has ended
        self._of_llama = LlamaMetrics(self._reading)
        self._add_engine()
        self._add_requests()
        self._add_latencies()
        self._add_own()
        self._add_pace()

    def _add_engine(self) -> None:
        each, engine = self._of_each, (ENGINE,)
        running = each(lambda snapshot: snapshot.load.num_running)
        self.step_tokens = HistogramOfEach(
            "iteration_tokens_total", "Tokens of a step.", _STEP_TOKENS, ENGINE
        )
        self.preemptions = Counter("num_preemptions", "Preemptions.", engine)
        self.queries = Counter(
            "prefix_cache_queries", "Prompt tokens looked up in the cache.", engine
        )
        self.hits = Counter("prefix_cache_hits", "Prompt tokens found in the cache.", engine)
        self.drafts = Counter(
            "spec_decode_num_drafts", "Steps of sequences that verified drafts.", engine
        )
        self.draft_tokens = Counter("spec_decode_num_draft_tokens", "Drafts verified.", engine)
        self.accepted_tokens = Counter(
            "spec_decode_num_accepted_tokens", "Drafts accepted.", engine
        )
        self.accepted_at = Counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Drafts accepted, by place among the drafts of a step.",
            (ENGINE, "position"),
        )
        of_engines: list[Metric] = [
            Gauge("num_requests_running", "Running.", running),
            Gauge("num_requests_waiting", "Requests waiting.", self._waiting_by_engine),
            Gauge(
                "num_requests_waiting_by_reason",
                "Requests waiting, for capacity or for something else.",
                self._waiting_by_reason,
            ),
            Gauge("kv_cache_usage_perc", "KV blocks in use, 0 to 1.", each(usage)),
            Gauge(
                "cache_config_info",
                "The settings of the KV cache, as labels.",
                lambda: [((*name, *self._cache_config), 1.0) for name, _ in self._numbered()],
            ),
            *(self.step_tokens, self.preemptions, self.queries, self.hits, self.drafts),
            *(self.draft_tokens, self.accepted_tokens, self.accepted_at),
        ]
        self._shared += of_engines
        self._of_engines.update(of_engines)

    def _add_requests(self) -> None:
        self.prompt_tokens = Counter("prompt_tokens", "Prompt tokens of admitted requests.")
        self.cached_tokens = Counter(
            "prompt_tokens_cached", "Prompt tokens found in the prefix cache."
        )
        self.num_generated = 0  # counted for each token, so it is a plain number
        generated_tokens = Counter("generation_tokens", "Tokens generated.")
        self._read_totals.append((generated_tokens, lambda: self.num_generated))
        self.success = Counter("request_success", "Requests ended.", ("finished_reason",))
        self.prompt_length = Histogram("request_prompt_tokens", "Prompt tokens.", _TOKENS)
        self.output_length = Histogram("request_generation_tokens", "Tokens generated.", _TOKENS)
        self.longest_output = Histogram(
            "request_max_num_generation_tokens", "Tokens of a request's longest answer.", _TOKENS
        )
        self.computed_tokens = Histogram(
            "request_prefill_kv_computed_tokens", "Prompt tokens that no cache had.", _TOKENS
        )
        self.most_tokens = Histogram(
            "request_params_max_tokens", "max_tokens of the request.", _TOKENS
        )
        self.samples = Histogram("request_params_n", "n of the request.", _N)
        self.times_preempted = Histogram(
            "request_num_preemptions", "Preemptions of a sequence.", _PREEMPTIONS
        )
        self.admission_rejections = Counter(
            "admission_rejections", "Requests rejected by a limit of the queue.", ("reason",)
        )
        for limit in _LIMITS.values():
            self.admission_rejections.add(0, limit)
        self._shared += [self.prompt_tokens, self.cached_tokens, generated_tokens]
        self._shared += [self.success, self.prompt_length, self.output_length]
        self._shared += [self.longest_output, self.computed_tokens, self.most_tokens, self.samples]
        self._shared += [self.times_preempted, self.admission_rejections]

    def _add_latencies(self) -> None:
        self.first_token = Histogram(
            "time_to_first_token_seconds", "Request to first token.", _FIRST_TOKEN
        )
        self.between = Histogram("inter_token_latency_seconds", "Token to token.", _BETWEEN)
        self.per_token = Histogram(
            "request_time_per_output_token_seconds", "A request's mean, token to token.", _BETWEEN
        )
        self.whole = Histogram("e2e_request_latency_seconds", "Request to end.", _WHOLE)
        self.queue = Histogram("request_queue_time_seconds", "Waiting for a slot.", _WHOLE)
        self.inference = Histogram("request_inference_time_seconds", "Slot to end.", _WHOLE)
        self.prefill = Histogram("request_prefill_time_seconds", "Slot to first token.", _WHOLE)
        self.decode = Histogram("request_decode_time_seconds", "First token to end.", _WHOLE)
        self._shared += [self.first_token, self.between, self.per_token, self.whole]
        self._shared += [self.queue, self.inference, self.prefill, self.decode]

    def _add_own(self) -> None:
        self.rejected = Counter(
            "rejected", "Requests rejected by the admission queue.", ("reason",)
        )
        self.unknown_fields = Counter("unknown_fields", "Unknown fields in requests.")
        self.prompt_workers_killed = Counter(
            "prompt_workers_killed", "Prompt workers that exceeded a limit or died."
        )
        self._own += [self.rejected, self.unknown_fields, self.prompt_workers_killed]
        queue = self._queue
        self._own.append(
            Gauge("queue_requests", "Requests waiting for admission.", lambda: queue.num_waiting)
        )
        self._own.append(
            Gauge("queue_tokens", "Their prompt tokens.", lambda: queue.waiting_tokens)
        )
        self._own.append(
            Gauge("key_sequences_admitted", "Sequences in the engine, by key.", self._admitted_by)
        )
        self._own.append(
            Gauge("key_requests_waiting", "Waiting for admission, by key.", self._waiting_by)
        )
        self.preemptions_by_reason = Counter(
            "preemptions_by_reason", "Preemptions, by what they were for.", (ENGINE, "reason")
        )
        self._own.append(self.preemptions_by_reason)
        self._of_engines.add(self.preemptions_by_reason)
        self._own.append(Gauge("queue_bytes", "Their bytes.", lambda: queue.waiting_bytes))
        self._own.append(Gauge("ready", "Whether requests are served.", self._readiness))
        self.held = Histogram(
            "request_held_seconds", "Waiting of a request for a new engine, if any.", _WHOLE
        )
        self._own.append(self.held)

    def _add_pace(self) -> None:
        """Add totals of the steps whose time was predicted, to bound it (itl_goal)."""
        meanings = {
            "paced_steps": ("num_paced", "Steps with prompts beside sequences that generate."),
            "paced_step_seconds": ("paced_seconds", "How long they took."),
            "paced_step_predicted_seconds": (
                "paced_predicted_seconds",
                "How long they were predicted to take.",
            ),
            "deferred_tokens": (
                "num_deferred_tokens",
                "Prompt tokens left to later steps, so that a step took no longer than its goal.",
            ),
        }
        for name, (field, meaning) in meanings.items():
            self.add_engine_counter(name, meaning, self._values(attrgetter(field)))

    def _values(self, read: Callable[[EngineSnapshot], float]) -> Callable[[], list[float]]:
        return lambda: [read(snapshot) for snapshot in self._snapshots()]

    def add_engine_counter(
        self, name: str, meaning: str, read: Callable[[], Sequence[float]]
    ) -> None:
        """Add a total of our own that is counted elsewhere for each engine."""
        counter = Counter(name, meaning, (ENGINE,))
        self._own.append(counter)
        self._of_engines.add(counter)
        self._read_of_engines.append((counter, read))

    def add_counter(self, name: str, meaning: str, read: Callable[[], float]) -> None:
        """Add a total of our own that is counted elsewhere, and read when the metrics are."""
        counter = Counter(name, meaning)
        self._own.append(counter)
        self._read_totals.append((counter, read))

    def add_gauge(
        self, name: str, meaning: str, read: Callable[[], float | Iterable[tuple[Labels, float]]]
    ) -> None:
        """Add a value of our own, which is read when the metrics are."""
        self._own.append(Gauge(name, meaning, read))

    def add_shared_gauge(
        self, name: str, meaning: str, read: Callable[[], float | Iterable[tuple[Labels, float]]]
    ) -> None:
        """Add a value that vLLM has too, likewise."""
        self._shared.append(Gauge(name, meaning, read))

    def _numbered(self) -> list[tuple[Labels, EngineSnapshot]]:
        """Return the statistics of each engine, with its label."""
        return [
            (_label(number), each)
            for number, each in enumerate(self._snapshots(), self._first_engine)
        ]

    def _of_each(
        self, read: Callable[[EngineSnapshot], float]
    ) -> Callable[[], list[tuple[Labels, float]]]:
        return lambda: [(label, read(snapshot)) for label, snapshot in self._numbered()]

    def load(self) -> dict[str, float]:
        """Return what load balancers read in a response, under the metrics' names."""
        used = [usage(snapshot) for snapshot in self._snapshots()]
        num_waiting = sum(count for _, count in self._waiting_by_engine())
        return {
            "kv_cache_usage_perc": sum(used) / max(1, len(used)),
            "num_requests_waiting": float(num_waiting),
        }

    def _waiting_by_engine(self) -> list[tuple[Labels, float]]:
        """Return the requests that wait in each engine, and for admission or any engine."""
        counts: dict[Labels, float] = {}
        for label, snapshot in self._numbered():
            counts[label] = snapshot.load.num_waiting
        before = self._label_of_all()
        num_before = self._queue.num_waiting + self._num_without()
        counts[before] = counts.get(before, 0) + num_before
        return [*counts.items()]

    def _waiting_by_reason(self) -> list[tuple[Labels, float]]:
        """Return what waits for capacity, and what waits for a prefix, a grammar or the like."""
        held = {label: snapshot.load.num_held for label, snapshot in self._numbered()}
        found: list[tuple[Labels, float]] = []
        for label, count in self._waiting_by_engine():
            num_held = held.get(label, 0)
            capacity = max(0.0, count - num_held)
            found.append(((*label, ("reason", "capacity")), capacity))
            found.append(((*label, ("reason", "deferred")), num_held))
        return found

    def _label_of_all(self) -> Labels:
        """Return the label of what is not of one engine among several."""
        return _label(self._first_engine) if len(self._snapshots()) < 2 else _OF_ALL

    def _admitted_by(self) -> list[tuple[Labels, float]]:
        return [((("key", name),), admitted) for name, admitted, _ in self._queue.by_owner()]

    def _waiting_by(self) -> list[tuple[Labels, float]]:
        return [((("key", name),), waiting) for name, _, waiting in self._queue.by_owner()]

    def reject(self, reason: str) -> None:
        """Count a request that was not admitted to the queue."""
        self.rejected.add(1, reason)
        if reason in _LIMITS:
            self.admission_rejections.add(1, _LIMITS[reason])

    def observe_stats(
        self, stats: RequestStats, now: float, exemplar: Exemplar | None = None
    ) -> None:
        """Count the times of a finished sequence, as the engine has measured them."""
        planned, first = stats.first_planned_at, stats.first_token_at
        end = stats.finished_at or now
        self.computed_tokens.observe(max(0, stats.num_prompt_tokens - stats.num_cached_tokens))
        self._longest = max(self._longest, stats.num_prompt_tokens + stats.num_output_tokens)
        self.times_preempted.observe(stats.num_preemptions)
        if RESTART in stats.wait_seconds:
            self.held.observe(stats.wait_seconds[RESTART])
        if planned is not None:
            self.queue.observe(max(0.0, planned - stats.arrival), exemplar=exemplar)
            self.inference.observe(max(0.0, end - planned), exemplar=exemplar)
            if first is not None:
                self.prefill.observe(max(0.0, first - planned), exemplar=exemplar)
                self.decode.observe(max(0.0, end - first), exemplar=exemplar)

    def named(self, model_name: str, prefix: str, *, is_one: bool = True) -> list[Named]:
        """Return the metrics as they are now; `prefix` is for those that vLLM has too.

        If it is llama-server's, its metrics come before ours, without labels if there `is_one`
        model, as programs that read them expect.
        """
        if prefix == LLAMA_NAMES:
            labels: Labels = () if is_one else (("model_name", model_name),)
            return [*self._of_llama.named(labels), *self.named(model_name, "octavo")]
        first = self._first_engine
        for number, snapshot in enumerate(self._snapshots(), first):
            self._take(str(number), snapshot)
        for counter, read in self._read_totals:
            counter.raise_to(read())
        for counter, read_each in self._read_of_engines:
            for number, total in enumerate(read_each(), first):
                counter.raise_to(total, str(number))
        base: Labels = (("model_name", model_name),)
        of_all = (*base, *self._label_of_all())
        named = [(f"{prefix}:{metric.name}", metric) for metric in self._shared]
        named += [(f"octavo:{metric.name}", metric) for metric in self._own]
        labelled = [
            (name, metric, base if metric in self._of_engines else of_all) for name, metric in named
        ]
        return [*labelled, *self.of_process()]

    def _reading(self) -> Reading:
        """Return the numbers that llama-server counts too."""
        snapshots = self._snapshots()
        steps = [step for each in snapshots for step in each.recent]
        return Reading(
            prompt_tokens=self.computed_tokens.reading()[1],
            cached_tokens=self.cached_tokens.value(),
            prompt_seconds=self.prefill.reading()[1],
            generated_tokens=self.num_generated,
            generation_seconds=self.decode.reading()[1],
            num_steps=sum(each.num_steps for each in snapshots),
            longest=self._longest,
            num_draft_tokens=sum(each.num_drafts for each in snapshots),
            num_accepted_tokens=sum(each.num_accepted_drafts for each in snapshots),
            num_drafts=sum(each.num_chunks_with_drafts for each in snapshots),
            num_running=sum(each.load.num_running for each in snapshots),
            num_waiting=sum(count for _, count in self._waiting_by_engine()),
            running_per_step=sum(step.num_chunks for step in steps) / max(1, len(steps)),
        )

    def text(self, model_name: str, prefix: str, *, openmetrics: bool = False) -> bytes:
        """Return the current exposition, in Prometheus's own format or in OpenMetrics."""
        return expose(self.named(model_name, prefix), openmetrics=openmetrics)

    def _take(self, engine: str, snapshot: EngineSnapshot) -> None:
        """Take over the totals of one engine."""
        self.preemptions.raise_to(snapshot.num_preemptions, engine)
        for reason, count in snapshot.preempted_for.items():
            self.preemptions_by_reason.raise_to(count, engine, reason)
        self.hits.raise_to(snapshot.num_cached_tokens, engine)
        queries = snapshot.num_cached_tokens + snapshot.num_prefill_tokens
        self.queries.raise_to(queries, engine)
        self.drafts.raise_to(snapshot.num_chunks_with_drafts, engine)
        self.draft_tokens.raise_to(snapshot.num_drafts, engine)
        self.accepted_tokens.raise_to(snapshot.num_accepted_drafts, engine)
        for place, count in enumerate(snapshot.accepted_at):
            self.accepted_at.raise_to(count, engine, str(place))
        self.step_tokens.load(engine, _by_bound(snapshot.steps_by_size), snapshot.num_tokens)


def _label(number: int) -> Labels:
    """Return the label of an engine's series, as vLLM has it."""
    return ((ENGINE, str(number)),)


def usage(snapshot: EngineSnapshot) -> float:
    """Return the used part of an engine's KV cache, from 0 to 1."""
    usable = snapshot.num_blocks - 1  # one is the null block
    return 0.0 if usable < 1 else 1.0 - min(usable, snapshot.load.num_free_blocks) / usable


def _by_bound(steps_by_size: Iterable[int]) -> list[int]:
    """Return how many steps had at most as many tokens as each bound, and more than the one before.

    The bounds are powers of two, like the sizes.
    """
    counts = [0] * (len(_STEP_TOKENS) + 1)
    for index, count in enumerate(steps_by_size):
        counts[bisect_left(_STEP_TOKENS, 2**index)] += count
    return counts


class RequestMeter:
    """Implements `octavo.api.continuation.Meter`. As in vLLM, each continuation counts alone."""

    __slots__ = ("_metrics", "_most_tokens", "_num_open", "_observe")

    def __init__(self, metrics: Metrics, num_continuations: int) -> None:
        self._metrics = metrics
        self._observe = metrics.between.observe
        self._num_open = num_continuations
        self._most_tokens = 0  # of the longest continuation that has ended

    def add(self, num_tokens: int, seconds: float | None) -> None:
        self._metrics.num_generated += num_tokens
        if seconds is not None:
            self._observe(seconds)

    def end(self, num_tokens: int, seconds: float) -> None:
        metrics = self._metrics
        metrics.output_length.observe(num_tokens)
        if num_tokens > 1:
            metrics.per_token.observe(seconds / (num_tokens - 1))
        self._most_tokens = max(self._most_tokens, num_tokens)
        self._num_open -= 1
        if not self._num_open:
            metrics.longest_output.observe(self._most_tokens)
