"""One run of a world: a front end with journals, an engine that may die, and the checks.

The core's integrity is checked after every tick, and every event is compared with the right
output of its request. When the faults are over, every request must finish within a computed
number of ticks, and the engine must be empty.
"""

from __future__ import annotations

import math
import random
from array import array
from dataclasses import replace

from octavo.core.check import check_integrity
from octavo.core.engine import EngineCore
from octavo.core.plan import StepPlan
from octavo.core.request import (
    Abort,
    FinishReason,
    Pause,
    Ready,
    Request,
    ResetPrefixCache,
    Resume,
    TokenEvent,
)
from octavo.core.sampling_params import SamplerOptions, SamplingParams
from octavo.core.stats import RequestStats
from tests.sim.costs import TimeCheck, TimedExecutor
from tests.sim.events import Arrival, Fault, Wait
from tests.sim.executor import Faults, SimExecutor, WorkerDiedError
from tests.sim.extras import encoder_input
from tests.sim.journal import Journal
from tests.sim.kv.follower import Follower
from tests.sim.kv.memory import require
from tests.sim.kv.refusing import Refusals, refusing_pool
from tests.sim.kv.store import MOST_STEPS, Store
from tests.sim.shares.owners import FairnessOracle
from tests.sim.truth import right_output
from tests.sim.world import World

TICK_SECONDS = 0.001
CALL_SECONDS = 0.000_01  # the time that each reading of the clock takes


class Simulation:
    """One run of one world."""

    def __init__(self, world: World, record: bool = False) -> None:
        self.world = world
        self.config = world.config
        self.now = 1000.0
        self.num_ticks = 0
        self.journals: dict[str, Journal] = {}
        self.backlog: list[str] = []  # to be submitted to the engine, oldest first
        self.faults = Faults()
        self.refusals = Refusals(world.refuse_at)
        self.ready: list[tuple[int, str, Wait]] = []  # by tick: ends of waits
        self.paused = self.jumped = False
        self.trace: list[str] | None = [] if record else None
        self._rng = random.Random(world.seed + 1)
        self._num_engines = 0
        self.store = self._make_store()
        self._start_engine()

    def _clock(self) -> float:
        self.now += CALL_SECONDS
        return self.now

    def _request_of(self, request_id: str) -> Request:
        return self.journals[request_id].request

    def _is_slow(self) -> bool:
        return self._rng.random() < self.world.slowness

    def _start_engine(self) -> None:
        self._num_engines += 1
        self.executor = self._make_executor()
        pool = refusing_pool(self.config, self.refusals)
        has_store = self.world.store != "none"
        key = b"key" if has_store else b"key %d" % self._num_engines
        self.store.restart()
        index = None if self.world.store == "none" else self.store
        parts = replace(self.config, logs_cache=True), self.executor, self._clock, key
        self.engine = EngineCore(*parts, pool=pool, index=index)
        self.follower = Follower(self.engine.scheduler)
        self.oracle = FairnessOracle(self.config, self.engine)
        if self.paused:
            self.engine.on_event(Pause())

    # A subclass overrides these methods to run the worlds with another model.

    def _make_store(self) -> Store:
        """Return what outlives the engines of this world."""
        return Store(self.world.seed, self.world.store)

    def _make_executor(self) -> SimExecutor:
        parts = (self.config, self._request_of, self._is_slow, self.faults, self._check_plan)
        if self.world.costs is None:
            return SimExecutor(*parts, self.store, self.world.forces, self.world.has_drafter)
        times = TimeCheck(self.world.costs, self.config, self.world.seed)
        return TimedExecutor(*parts, self.store, self.world.forces, times=times, world=self)

    def _expect(self, request: Request) -> tuple[list[int], FinishReason]:
        """Return the right output and finish reason of a request."""
        return right_output(request, self.config.max_model_len, self.world.forces)

    def _sampling(self, arrival: Arrival) -> SamplingParams:
        return SamplingParams(
            max_tokens=arrival.max_tokens,
            min_tokens=arrival.min_tokens,
            stop_token_ids=arrival.stop_token_ids,
            ignore_eos=arrival.ignore_eos,
            repetition_detection=arrival.repetition,
            sampler_options=SamplerOptions(mirostat=2) if arrival.name.endswith("5") else None,
        )

    def _check_payload(self, journal: Journal, event: TokenEvent) -> None:
        name = event.request_id
        if event.payload is not None:
            last = event.tokens[-1] if event.tokens else -1
            require(name.endswith("7"), f"{name}: another request's payload")
            # An accepted draft may end it before the last token.
            early = event.finish_reason in ("stop", "repetition")
            require(early or event.payload == last, f"{name}: payload {event.payload}")

    def _restart(self) -> None:
        """Start a new engine, and resubmit every unfinished request from its journal."""
        self._log("engine died")
        self.faults.die_at_submit = self.faults.die_at_collect = False
        self.backlog = []
        for name, journal in self.journals.items():
            if journal.reason is None and journal.aborted:
                journal.reason = "abort"
            elif journal.reason is None:
                journal.restarted = True
                self.backlog.append(name)
        self._start_engine()

    def _log(self, line: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.num_ticks:4} {line}")

    # running

    def run(self) -> Simulation:
        """Run the whole world; raise if anything is wrong."""
        events = iter(self.world.events)
        event = next(events, None)
        while event is not None:
            while event is not None and event[0] <= self.num_ticks:
                self._happen(event[1])
                event = next(events, None)
            self._tick()
        self._heal()
        bound = self.num_ticks + self._most_ticks()
        while self.backlog or self.engine.has_work or self.engine.scheduler.queue.held:
            require(self.num_ticks < bound, f"not finished after {bound} ticks: {self._living()}")
            self._tick()
        self._check_rest()
        return self

    def _heal(self) -> None:
        """End all faults; every request must finish from now on."""
        self.faults.die_at_submit = self.faults.die_at_collect = False
        self.refusals.to_refuse = 0
        if self.paused:
            self.paused = False
            self.engine.on_event(Resume())

    def _most_ticks(self) -> int:
        """Return a bound on the ticks until every request has finished.

        Every tick in which no step is only in flight advances the first sequence in order. Twice
        as many, since under priorities a waiting sequence may preempt a running one; and where
        owners take turns, each turn may begin with all of a sequence again.
        """
        living = [j for j in self.journals.values() if j.reason is None]
        lengths = [len(j.request.prompt) + len(j.expected) + 2 for j in living]
        turns = sum(len(j.expected) // self.config.share_quantum + 1 for j in living)
        positions = sum(lengths)
        if len({j.request.owner for j in living}) > 1:
            positions += turns * max(lengths)
        slow = 1 + int(10 * self.world.slowness) + (2 if self.world.costs else 0)
        holds = int(self.config.hold_seconds / TICK_SECONDS) if self.config.hold_seconds < 1 else 0
        loads = MOST_STEPS * slow * len(living) if self.world.store != "none" else 0
        return 2 * positions * (self.config.pipeline_depth + 1) * slow + 20 + holds + loads

    def _living(self) -> list[str]:
        return [name for name, journal in self.journals.items() if journal.reason is None]

    def _tick(self) -> None:
        self.num_ticks += 1
        self.now += TICK_SECONDS
        self._submit_backlog()
        self._end_waits()
        scheduler = self.engine.scheduler
        can_run = len(scheduler.sequences) > len(scheduler.queue.held)
        transfers = scheduler.kv.transfers
        is_loading = transfers is not None and bool(transfers.loading)
        was_idle = not scheduler.in_flight and can_run and not self.paused and not is_loading
        refused, num_tokens = self.refusals.num_refused, scheduler.stats.num_tokens
        num_begun = self.store.num_begun
        try:
            events = self.engine.step(wait=self._rng.random() < 0.7)
        except WorkerDiedError:
            self._restart()
            return
        for event in events:
            self._receive(event)
        check_integrity(scheduler)
        self.follower.follow()
        is_due = bool(transfers and transfers.are_due) and self.engine.only_frees
        require(not is_due, "saves wait for another request")
        if self.trace is not None:
            self._log_step(events)
        if was_idle and self.refusals.num_refused == refused:
            planned = scheduler.stats.num_tokens > num_tokens or self.store.num_begun > num_begun
            require(planned, "nothing planned, although nothing is in flight and sequences live")

    def _submit_backlog(self) -> None:
        """Submit all requests that must be started, or started again, in their order."""
        names, self.backlog = self.backlog, []
        for name in names:
            journal = self.journals[name]
            was_full = not journal.restarted and self._is_full(journal)
            journal.unready = {wait.reason for wait in journal.waits}
            journal.submitted_at = self.now
            self.engine.on_event(journal.resume())
            self.ready += [(self.num_ticks + each.ticks, name, each) for each in journal.waits]
            taken = name in self.engine.scheduler.sequences
            require(not (taken and was_full), f"{name}: admitted although the queue is full")
            journal.could_overload = was_full

    def _end_waits(self) -> None:
        """Report what has been loaded, or could not be, since the last tick."""
        due = [each for each in self.ready if each[0] <= self.num_ticks]
        self.ready = [each for each in self.ready if each[0] > self.num_ticks]
        for _, name, wait in due:
            journal = self.journals[name]
            if wait.end == "never" or wait.reason not in journal.unready:
                continue
            error = "it cannot be loaded" if wait.end == "error" else None
            journal.unready.discard(wait.reason)
            if error is not None and journal.reason is None and name not in self.backlog:
                journal.failed_wait = wait.reason
            self.engine.on_event(Ready(name, wait.reason, error))

    def _is_full(self, journal: Journal) -> bool:
        """Return whether the engine must reject a new request, by its documented bounds."""
        queue, config = self.engine.scheduler.queue, self.config
        if queue.num_waiting == 0:
            return False
        request = journal.request
        num_tokens = queue.num_tokens + len(request.prompt) + len(request.prediction)
        return queue.num_waiting >= config.max_num_waiting or num_tokens > config.max_waiting_tokens

    # events of the world

    def _happen(self, event: Arrival | Fault) -> None:
        self._log(f"{event}")
        if isinstance(event, Arrival):
            self._arrive(event)
            return
        match event.kind:
            case "abort":
                self._abort(event.argument)
            case "abort all":
                for name in self._living():
                    self._abort(name)
            case "pause":
                self.paused = True
                self.engine.on_event(Pause())
            case "resume":
                self.paused = False
                self.engine.on_event(Resume())
            case "reset":
                self.engine.on_event(ResetPrefixCache())
                self.executor.reset()
            case "die" if event.argument == "between":
                self._restart()
            case "die":
                self.faults.die_at_submit = event.argument == "submit"
                self.faults.die_at_collect = event.argument == "collect"
            case "refuse":
                self.refusals.to_refuse += int(event.number)
            case "nan":
                self.faults.poisoned.add(event.argument)
            case "jump":
                self.jumped = True
                self.now += event.number
            case _:
                raise ValueError(f"unknown fault {event.kind!r}")

    def _abort(self, name: str) -> None:
        journal = self.journals.get(name)
        if journal is not None and journal.reason is None:
            journal.aborted = True
            if name in self.backlog:
                self.backlog.remove(name)
                journal.reason = "abort"
                return
        self.engine.on_event(Abort(name))

    def _arrive(self, arrival: Arrival) -> None:
        prompt, encoder = list(arrival.prompt), None
        lora, scope, salts = arrival.lora, arrival.scope, arrival.salts
        if arrival.encoder is not None:
            encoder = encoder_input(arrival.encoder)
        parent = self.journals.get(arrival.parent or "")
        if parent is not None:
            request = parent.request
            prompt = [*request.prompt, *parent.output[: arrival.keep], *prompt]
            if arrival.inherits:
                lora, scope = request.lora, request.cache_scope
                salts, encoder = request.salts, request.encoder
        request = Request(
            request_id=arrival.name,
            prompt=array("i", prompt),
            sampling=self._sampling(arrival),
            arrival=self._clock(),
            eos_token_ids=arrival.eos_token_ids,
            priority=arrival.priority,
            lora=lora,
            cache_scope=scope,
            parent_id=arrival.parent,
            salts=tuple(salt for salt in salts if salt[0] < len(prompt)),
            encoder=encoder,
            holds=tuple(wait.reason for wait in arrival.holds),
            owner=arrival.owner,
            weight=arrival.weight,
            is_background=arrival.is_background,
        )
        expected, reason = self._expect(request)
        sent = self.world.predicting(request, expected)
        self.journals[arrival.name] = Journal(sent, expected, reason, waits=arrival.holds)
        self.backlog.append(arrival.name)
        self._submit_backlog()

    # checks

    def _receive(self, event: TokenEvent) -> None:
        """Compare an event of the core with the right output of its request."""
        name = event.request_id
        journal = self.journals[name]
        require(journal.reason is None, f"{name}: an event after its end: {event}")
        require(event.position == len(journal.output), f"{name}: position {event.position}")
        journal.output.extend(event.tokens)
        right = journal.expected[: len(journal.output)]
        require(journal.output == right, f"{name}: {journal.output} should be {right}")
        self._check_payload(journal, event)
        if event.sampler_state is not None:
            journal.sampler_state = event.sampler_state
        if event.finish_reason is None:
            ended = journal.output == journal.expected and journal.expected_reason != "impossible"
            require(not ended, f"{name}: should have ended")
            require(bool(event.tokens) or event.payload is not None, f"{name}: empty event")
            return
        journal.reason = event.finish_reason
        self._check_end(journal, event)

    def _check_end(self, journal: Journal, event: TokenEvent) -> None:
        name, request = event.request_id, journal.request
        match event.finish_reason:
            case "stop" | "length" | "repetition" | "impossible":
                require(journal.output == journal.expected, f"{name}: ended early")
                require(not journal.aborted, f"{name}: an abort was lost")
                failed = journal.failed_wait
                require(failed is None, f"{name}: {failed} had failed")
                right = journal.expected_reason
                require(event.finish_reason == right, f"{name}: {event.finish_reason}, not {right}")
                last = journal.output[-1] if journal.output else None
                named = event.finish_reason == "stop" and last in request.sampling.stop_token_ids
                require(event.stop_token == (last if named else None), f"{name}: stop token")
            case "abort":
                require(journal.aborted, f"{name}: aborted without a command")
            case "error" if self._could_fail_waiting(journal):
                require(bool(event.message), f"{name}: failed without a message")
            case "error":
                require(name in self.faults.poisoned, f"{name}: failed without a fault")
                pool = self.engine.scheduler.kv.pool
                for group, block in self.executor.distrust(name):
                    is_cached = pool.label_of(block, group) is not None
                    require(not is_cached, f"{name} failed, and block {block} is cached")
            case "refused":
                require(bool(event.message) and self._could_refuse(request), f"{name}: {event}")
            case "overloaded":
                full = journal.could_overload
                require(bool(event.message) and full, f"{name}: rejected: {event.message}")
            case _:
                require(False, f"{name}: ended as {event.finish_reason}")
        if event.finish_reason is not None and event.stats and not journal.restarted:
            self._check_stats(journal, event.stats)

    def _could_refuse(self, request: Request) -> bool:
        """Return whether some bound could be too small for this request."""
        config = self.config
        most = min(request.max_total, config.max_model_len) - 1
        kinds = [group.kind for group in config.groups]
        lengths = [most, 0 if request.encoder is None else request.encoder.num_positions]
        blocks = sum(
            math.ceil(math.ceil(lengths[kind == "cross"] / config.block_size) / per_page)
            for kind, per_page in zip(kinds, config.blocks_per_page, strict=True)
        )
        return (
            ("cross" in kinds) != (request.encoder is not None)
            or ("none" in kinds and request.sampling.max_tokens > 1)
            or not request.prompt
            or len(request.prompt) >= config.max_model_len
            or blocks >= config.num_blocks
            or (not config.chunked_prefill and most > config.max_num_batched_tokens)
            or (request.lora is not None and not config.max_loras)
        )

    def _could_fail_waiting(self, journal: Journal) -> bool:
        """Return whether something that the request waits for has failed, or is overdue."""
        is_late = self.now >= journal.submitted_at + self.config.hold_seconds
        is_overdue = self.jumped or is_late
        return journal.failed_wait is not None or (bool(journal.unready) and is_overdue)

    def _check_stats(self, journal: Journal, stats: RequestStats) -> None:
        name = journal.request.request_id
        require(stats.num_output_tokens == len(journal.output), f"{name}: output tokens")
        if stats.num_preemptions or stats.first_planned_at is None:
            return
        at = stats.num_cached_tokens
        for chunk in stats.chunks:
            require(chunk.start == at < chunk.end, f"{name}: chunk {chunk} does not start at {at}")
            at = chunk.end
        if journal.output:
            require(at == len(journal.request.prompt), f"{name}: prefill ends at {at}")
        if not self.jumped:
            explained = sum(stats.wait_seconds.values())
            waited = stats.first_planned_at - stats.added_at
            right = abs(explained - waited) < 1e-6
            require(right, f"{name}: waited {waited}, explained {explained}")

    def _check_plan(self, plan: StepPlan) -> None:
        """Check a new plan: it respects every bound, and overtakes nothing without a reason."""
        config = self.config
        require(not (self.paused and plan.slots), "planned while paused")
        cap = config.long_prefill_tokens or config.max_num_batched_tokens
        require(max(plan.counts, default=0) <= cap, f"a chunk of more than {cap} tokens")
        samples = dict(zip(plan.slots, plan.samples, strict=True))
        for new in plan.opened:
            whole = samples[new.slot] or config.chunked_prefill
            require(whole, f"{new.request_id}: its prompt was cut")
            unready = self.journals[new.request_id].unready
            require(not unready, f"{new.request_id}: started before {unready}")
        transfers = self.engine.scheduler.kv.transfers
        require(not (transfers and transfers.are_due), "a plan leaves transfers to the next one")
        self.oracle.check_order(plan)
        self.oracle.after_step(plan, self.refusals.num_refused > 0 or self.world.store != "none")

    def _check_rest(self) -> None:
        """Check that the engine is as empty as at its start."""
        require(not self._living(), f"lost: {self._living()}")
        scheduler = self.engine.scheduler
        pool = scheduler.kv.pool
        require(pool.num_free == pool.num_blocks - 1, "blocks are still in use")
        num_free_slots = len(scheduler.lifecycle.free_slots)
        require(num_free_slots == self.config.max_num_seqs, "slots are still in use")
        require(not scheduler.queue.num_waiting and not scheduler.running, "sequences are left")
        require(not scheduler.kv.upcoming, "blocks are still announced as upcoming")
        for worker in self.executor.workers:
            require(not worker.slots, f"slots {list(worker.slots)} were never announced as freed")

    def _log_step(self, events: list[TokenEvent]) -> None:
        recent = self.engine.scheduler.stats.recent
        for event in events:
            ended = f" {event.finish_reason}" if event.finish_reason else ""
            self._log(f"{event.request_id} {event.position}: {list(event.tokens)}{ended}")
        if recent:
            last = recent[-1]
            self._log(
                f"step {last.step}: {last.num_chunks} chunks, {last.num_tokens} tokens, "
                f"{last.num_prefill_tokens} prefill, {last.num_admitted} in, "
                f"{last.num_preempted} out, {last.num_running} run, {last.num_waiting} wait, "
                f"{last.num_free_blocks} free, blocked by {last.blocked_by}"
            )
