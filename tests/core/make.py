"""Makes what the tests of the core need: settings, requests, a worker, a rig that turns the crank.

`Worker` is the smallest machine that can carry plans out. It keeps a row for each slot, writes
tokens into blocks and reads them back through the block tables, so a wrong table is an error here
and not a wrong number later. What it samples is a pure function of the tokens so far.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from zlib import crc32

from octavo.core.block_pool import BlockPool
from octavo.core.check import check_integrity
from octavo.core.config import CoreConfig
from octavo.core.plan import NO_TOKEN, StepPlan, StepResult
from octavo.core.request import Request, TokenEvent
from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler import Scheduler

KEY = b"the key of the tests"
SAMPLING_FIELDS = (
    *("max_tokens", "min_tokens", "stop_token_ids", "ignore_eos", "seed", "pooling"),
    "prompt_logprobs",
)

NextToken = Callable[[Sequence[int]], int]
# What follows these tokens, as a drafter guesses it.
Drafter = Callable[[Sequence[int]], Sequence[int]]


def config(**settings: Any) -> CoreConfig:
    """Small numbers that a reader can follow: blocks of 4, room for 63 of them."""
    small: dict[str, Any] = {
        "num_blocks": 64,
        "max_model_len": 64,
        "block_size": 4,
        "max_num_batched_tokens": 64,
        "max_num_seqs": 8,
        "watermark": 0.0,
    }
    return CoreConfig(**{**small, **settings})


def tokens(count: int, family: int = 1) -> list[int]:
    """A prompt; those of one family are prefixes of each other."""
    return [family * 100 + position for position in range(count)]


def request(request_id: str, prompt: int | Sequence[int], **fields: Any) -> Request:
    """A request; a number as prompt means so many tokens. Sampling fields stand among others."""
    sampling = {name: fields.pop(name) for name in SAMPLING_FIELDS if name in fields}
    known = tokens(prompt) if isinstance(prompt, int) else prompt
    fields.setdefault("arrival", 0.0)
    fields["emitted"] = array("i", fields.get("emitted", ()))
    return Request(request_id, array("i", known), SamplingParams(**sampling), **fields)


def scrambled(known: Sequence[int]) -> int:
    """The default model: the next token depends on every token before it."""
    return crc32(array("i", known).tobytes()) % 90


def counting(known: Sequence[int]) -> int:
    """A model that is easy to follow: the next token is how many there are."""
    return len(known)


def expected_output(prompt: Sequence[int], count: int, model: NextToken = scrambled) -> list[int]:
    """What a model says after a prompt, computed without an engine."""
    known = list(prompt)
    for _ in range(count):
        known.append(model(known))
    return known[len(prompt) :]


class Row:
    """What a worker knows of a slot."""

    def __init__(self, request_id: str, known: Iterable[int], tables: Iterable[Iterable[int]]):
        self.request_id = request_id
        self.known = list(known)
        self.tables = [list(table) for table in tables]


class Worker:
    """Carries out plans; `failing` names requests whose every chunk is answered with an error."""

    def __init__(
        self, settings: CoreConfig, model: NextToken = scrambled, drafter: Drafter | None = None
    ) -> None:
        self.config = settings
        self.model = model
        self.drafter = drafter
        self.failing: set[str] = set()
        self.payloads: dict[str, object] = {}
        self.rows: dict[int, Row] = {}
        self.kv: dict[tuple[int, int], int] = {}  # (block, offset in it) → token

    def run(self, plan: StepPlan) -> StepResult:
        """One step, whole."""
        for slot in plan.freed:
            del self.rows[slot]
        for new in plan.opened:
            assert new.slot not in self.rows, f"slot {new.slot} was not freed before its reuse"
            self.rows[new.slot] = Row(new.request_id, new.tokens, new.tables)
        for source, destination in plan.copies:
            for offset in range(self.config.block_size):
                if (source, offset) in self.kv:
                    self.kv[destination, offset] = self.kv[source, offset]
        for slot, added in plan.new_blocks:
            for table, blocks in zip(self.rows[slot].tables, added, strict=True):
                table.extend(blocks)
        drafts = dict(plan.drafts)
        chunks = zip(plan.slots, plan.starts, plan.counts, plan.samples, strict=True)
        answers = [
            (slot, *self._chunk(drafts.get(slot, ()), slot, start, count, samples))
            for slot, start, count, samples in chunks
        ]
        named = [(slot, self.rows[slot]) for slot in plan.slots]
        return StepResult(
            plan.step,
            tokens=tuple(token for _, token, _ in answers),
            accepted=tuple((slot, count) for slot, _, count in answers if count),
            drafts=tuple(self._guess(slot) for slot, token, _ in answers if token != NO_TOKEN)
            if self.drafter
            else (),
            payloads=tuple(
                (slot, self.payloads[row.request_id])
                for slot, row in named
                if row.request_id in self.payloads
            ),
            errors=tuple(
                (slot, "not a number") for slot, row in named if row.request_id in self.failing
            ),
        )

    def _chunk(
        self, drafts: Sequence[int], slot: int, start: int, count: int, samples: bool
    ) -> tuple[int, int]:
        """Write a chunk, read everything back, sample: the token, and how many drafts are right."""
        row = self.rows[slot]
        inputs = [*row.known, *drafts]
        size = self.config.block_size
        end = start + count
        for group, table in zip(self.config.groups, row.tables, strict=True):
            for position in range(start, end):
                block = table[position // size]
                assert block, f"{row.request_id} writes to the null block at {position}"
                self.kv[block, position % size] = inputs[position]
            first = group.first_needed(start)
            read = [self.kv[table[p // size], p % size] for p in range(first, end)]
            assert read == inputs[first:end], f"{row.request_id} reads what it did not write"
        if not samples:
            return NO_TOKEN, 0
        assert end == len(inputs), f"{row.request_id} samples in the middle"
        num_accepted = 0
        for draft in drafts:
            if self.model(row.known) != draft:
                break
            row.known.append(draft)
            num_accepted += 1
        row.known.append(self.model(row.known))
        return row.known[-1], num_accepted

    def _guess(self, slot: int) -> tuple[int, tuple[int, ...]]:
        assert self.drafter is not None
        return slot, tuple(self.drafter(self.rows[slot].known))[: self.config.max_drafts]


class Wire:
    """An executor whose results come when the test lets them, or when they are waited for."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.flying: deque[StepResult] = deque()
        self.num_arrived = 0
        self.waits: list[bool] = []

    def submit(self, plan: StepPlan) -> None:
        """Run at once, tell later."""
        self.flying.append(self.worker.run(plan))

    def collect(self, wait: bool) -> StepResult | None:
        """Something that has arrived, or whatever is waited for."""
        self.waits.append(wait)
        if not (wait or self.num_arrived):
            return None
        self.num_arrived = max(0, self.num_arrived - 1)
        return self.flying.popleft()


class Rig:
    """A scheduler and a worker, turned by hand; every turn is followed by an integrity check."""

    def __init__(
        self,
        *,
        model: NextToken = scrambled,
        drafter: Drafter | None = None,
        pool: BlockPool | None = None,
        **settings: Any,
    ) -> None:
        self.config = config(**settings)
        self.scheduler = Scheduler(self.config, KEY, pool)
        self.worker = Worker(self.config, model, drafter)
        self.results: deque[StepResult] = deque()
        self.events: list[TokenEvent] = []
        self.plans: list[StepPlan] = []
        self.now = 0.0

    def add(self, request_id: str, prompt: int | Sequence[int], **fields: Any) -> TokenEvent | None:
        """Add a request that arrives now, unless it says otherwise."""
        fields.setdefault("arrival", self.now)
        event = self.scheduler.add(request(request_id, prompt, **fields), self.now)
        return self._seen(event)

    def abort(self, request_id: str) -> TokenEvent | None:
        """Abort a request."""
        return self._seen(self.scheduler.abort(request_id, self.now))

    def plan(self) -> StepPlan | None:
        """Plan a step a second later; the worker's answer waits for `land`."""
        self.now += 1.0
        plan = self.scheduler.schedule(self.now)
        check_integrity(self.scheduler)
        if plan is not None:
            self.plans.append(plan)
            self.results.append(self.worker.run(plan))
        return plan

    def land(self) -> list[TokenEvent]:
        """Apply the oldest answer."""
        events = self.scheduler.apply(self.results.popleft(), self.now)
        self.events.extend(events)
        check_integrity(self.scheduler)
        return events

    def step(self) -> list[TokenEvent]:
        """Plan if another step may fly, land if none may or none was planned: the engine's beat."""
        planned = len(self.results) < self.config.pipeline_depth and self.plan() is not None
        full = len(self.results) >= self.config.pipeline_depth
        return self.land() if self.results and (full or not planned) else []

    def finish(self, most_steps: int = 500) -> dict[str, list[int]]:
        """Step until nothing lives: everything that was ever emitted, a list a request."""
        for _ in range(most_steps):
            if not (self.scheduler.sequences or self.results):
                return self.outputs()
            self.step()
        raise AssertionError(f"still alive: {list(self.scheduler.sequences)}")

    def outputs(self) -> dict[str, list[int]]:
        """All tokens emitted, and a check that events follow each other without a gap."""
        outputs: dict[str, list[int]] = {}
        for event in self.events:
            output = outputs.setdefault(event.request_id, [0] * event.position)
            assert event.position == len(output), f"a gap or a repetition in {event}"
            output.extend(event.tokens)
        return outputs

    def ends(self) -> dict[str, str]:
        """How each request that is over ended."""
        return {e.request_id: e.finish_reason for e in self.events if e.finish_reason is not None}

    def end_of(self, request_id: str) -> TokenEvent:
        """The last event of a request."""
        return [e for e in self.events if e.request_id == request_id and e.finish_reason][-1]

    @property
    def running(self) -> list[str]:
        """Ids of the running, first in order first."""
        return [sequence.request_id for sequence in self.scheduler.running]

    @property
    def waiting(self) -> list[str]:
        """Ids of the waiting, the held not among them."""
        return [sequence.request_id for sequence in self.scheduler.queue]

    @property
    def following(self) -> list[str]:
        """Ids of those that follow another."""
        return list(self.scheduler.queue.following)

    def chunks(self, plan: StepPlan | None) -> dict[str, tuple[int, int]]:
        """A plan's chunks: request id → (start, count). To be asked before the slots move on."""
        assert plan is not None, "there was nothing to plan"
        ids = [self.worker.rows[slot].request_id for slot in plan.slots]
        return dict(zip(ids, zip(plan.starts, plan.counts, strict=True), strict=True))

    def _seen(self, event: TokenEvent | None) -> TokenEvent | None:
        if event is not None:
            self.events.append(event)
        check_integrity(self.scheduler)
        return event
