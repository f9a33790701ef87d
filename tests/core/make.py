"""Helpers of the core's tests: settings, requests, a worker, and a rig that runs steps by hand.

`Worker` is the smallest program that can execute plans. It keeps a row for each slot, writes
tokens into blocks and reads them back through the block tables, so that a wrong table is detected
at once. The token that it samples is a pure function of the tokens so far.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from zlib import crc32

from octavo.core.check import check_integrity
from octavo.core.config import CoreConfig
from octavo.core.kv.block_pool import BlockPool
from octavo.core.plan import NO_TOKEN, StepPlan, StepResult
from octavo.core.request import Request, TokenEvent
from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler import Scheduler
from octavo.core.sequence import Line
from octavo.core.stats import WaitClock

KEY = b"the key of the tests"
SAMPLING_FIELDS = (
    *("max_tokens", "min_tokens", "stop_token_ids", "ignore_eos", "seed", "pooling"),
    *("prompt_logprobs", "repetition_detection", "speculation"),
)

NextToken = Callable[[Sequence[int]], int]
# Returns drafts of the tokens that follow the known ones. Only slots that may have some get them.
Drafter = Callable[[Sequence[int]], Sequence[int]]


def config(**settings: Any) -> CoreConfig:
    """Return settings with small numbers: 63 blocks of 4 tokens."""
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
    """Return a prompt; the prompts of one family are prefixes of each other."""
    return [family * 100 + position for position in range(count)]


def request(request_id: str, prompt: int | Sequence[int], **fields: Any) -> Request:
    """Return a request. A number as prompt means so many tokens; `fields` has all parameters."""
    sampling = {name: fields.pop(name) for name in SAMPLING_FIELDS if name in fields}
    known = tokens(prompt) if isinstance(prompt, int) else prompt
    fields.setdefault("arrival", 0.0)
    for name in ("emitted", "prediction"):
        fields[name] = array("i", fields.get(name, ()))
    return Request(request_id, array("i", known), SamplingParams(**sampling), **fields)


def a_line() -> Line:
    """Return the line of a sequence that is used without a queue."""
    return Line("", 0, 1.0, WaitClock())


def scrambled(known: Sequence[int]) -> int:
    """Return the default model's next token, which depends on every token before it."""
    return crc32(array("i", known).tobytes()) % 90


def counting(known: Sequence[int]) -> int:
    """Return the number of tokens: a model that is easy to follow."""
    return len(known)


def expected_output(prompt: Sequence[int], count: int, model: NextToken = scrambled) -> list[int]:
    """Return the output of a model, computed without an engine."""
    known = list(prompt)
    for _ in range(count):
        known.append(model(known))
    return known[len(prompt) :]


class Row:
    """A worker's state of one slot."""

    def __init__(self, request_id: str, known: Iterable[int], tables: Iterable[Iterable[int]]):
        self.request_id = request_id
        self.known = list(known)
        self.tables = [list(table) for table in tables]
        self.has_failed = False
        self.may_draft = True


class Worker:
    """A worker that executes plans.

    Chunks of requests in `failing` have an error as result, and the draw after `failing_at` known
    tokens fails.
    """

    def __init__(
        self, settings: CoreConfig, model: NextToken = scrambled, drafter: Drafter | None = None
    ) -> None:
        self.config = settings
        self.model = model
        self.drafter = drafter
        self.chances: tuple[float, ...] = ()  # of all drafts
        self.predicts = False  # the drafts are of the requests' predictions
        self.failing: set[str] = set()
        self.failing_at: dict[str, int] = {}
        self.impossible: set[str] = set()  # those whose failure their request asks for
        self.payloads: dict[str, object] = {}
        self.rows: dict[int, Row] = {}
        self.kv: dict[tuple[int, int, int], int] = {}  # (group, block, offset in it) → token

    def run(self, plan: StepPlan) -> StepResult:
        for slot in plan.freed:
            del self.rows[slot]
        for new in plan.opened:
            assert new.slot not in self.rows, f"slot {new.slot} was not freed before its reuse"
            self.rows[new.slot] = Row(new.request_id, new.tokens, new.tables)
            self.rows[new.slot].may_draft = new.may_draft
        for source, destination, group in plan.copies:
            for offset in range(self.config.block_size):
                if (group, source, offset) in self.kv:
                    self.kv[group, destination, offset] = self.kv[group, source, offset]
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
            drafts=tuple(
                self._guess(slot)
                for slot, token, _ in answers
                if self.drafter and token != NO_TOKEN and self.rows[slot].may_draft
            ),
            chances=tuple((slot, self.chances) for slot, _, _ in answers) if self.chances else (),
            predicted=plan.slots if self.predicts else (),
            payloads=tuple(
                (slot, self.payloads[row.request_id])
                for slot, row in named
                if row.request_id in self.payloads
            ),
            errors=tuple(
                (slot, "not a number")
                for slot, row in named
                if row.request_id in self.failing or row.has_failed
            ),
            impossible=tuple(slot for slot, row in named if row.request_id in self.impossible),
        )

    def _chunk(
        self, drafts: Sequence[int], slot: int, start: int, count: int, samples: bool
    ) -> tuple[int, int]:
        """Write a chunk, read everything back and sample; return the token and accepted drafts."""
        row = self.rows[slot]
        if row.has_failed:
            return NO_TOKEN, 0
        inputs = [*row.known, *drafts]
        size = self.config.block_size
        end = start + count
        groups = enumerate(zip(self.config.groups, row.tables, strict=True))
        for index, (group, table) in groups:
            for position in range(start, end):
                block = table[position // size]
                assert block, f"{row.request_id} writes to the null block at {position}"
                self.kv[index, block, position % size] = inputs[position]
            first = group.first_needed(start)
            read = [self.kv[index, table[p // size], p % size] for p in range(first, end)]
            assert read == inputs[first:end], f"{row.request_id} reads what it did not write"
        if not samples:
            return NO_TOKEN, 0
        assert end == len(inputs), f"{row.request_id} samples in the middle"
        num_accepted = 0
        failing_at = self.failing_at.get(row.request_id)
        for draft in drafts:
            if len(row.known) == failing_at or self.model(row.known) != draft:
                break
            row.known.append(draft)
            num_accepted += 1
        if len(row.known) == failing_at:
            row.has_failed = True
            return NO_TOKEN, num_accepted
        row.known.append(self.model(row.known))
        return row.known[-1], num_accepted

    def _guess(self, slot: int) -> tuple[int, tuple[int, ...]]:
        assert self.drafter is not None
        return slot, tuple(self.drafter(self.rows[slot].known))[: self.config.max_drafts]


class Wire:
    """An executor whose results arrive when the test says so, or when the engine waits."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.results: deque[StepResult] = deque()
        self.num_arrived = 0
        self.waits: list[bool] = []

    def submit(self, plan: StepPlan) -> None:
        """Run a step at once, and keep its result."""
        self.results.append(self.worker.run(plan))

    def collect(self, wait: bool) -> StepResult | None:
        """Return the oldest result if it has arrived or is waited for."""
        self.waits.append(wait)
        if not (wait or self.num_arrived):
            return None
        self.num_arrived = max(0, self.num_arrived - 1)
        return self.results.popleft()


class Rig:
    """A scheduler and a worker, run by hand, with an integrity check after every action."""

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
        """Add a request, which arrives now unless `fields` has another time."""
        fields.setdefault("arrival", self.now)
        event = self.scheduler.add(request(request_id, prompt, **fields), self.now)
        return self._seen(event)

    def abort(self, request_id: str) -> TokenEvent | None:
        return self._seen(self.scheduler.abort(request_id, self.now))

    def plan(self) -> StepPlan | None:
        """Plan a step a second later; `land` applies its result."""
        self.now += 1.0
        plan = self.scheduler.schedule(self.now)
        check_integrity(self.scheduler)
        if plan is not None:
            self.plans.append(plan)
            self.results.append(self.worker.run(plan))
        return plan

    def land(self) -> list[TokenEvent]:
        """Apply the oldest result that has not been applied."""
        events = self.scheduler.apply(self.results.popleft(), self.now)
        self.events.extend(events)
        check_integrity(self.scheduler)
        return events

    def step(self) -> list[TokenEvent]:
        """Plan or apply a step as the engine does."""
        planned = len(self.results) < self.config.pipeline_depth and self.plan() is not None
        full = len(self.results) >= self.config.pipeline_depth
        return self.land() if self.results and (full or not planned) else []

    def finish(self, most_steps: int = 500) -> dict[str, list[int]]:
        """Step until all requests have ended; return all tokens emitted, by request."""
        for _ in range(most_steps):
            if not (self.scheduler.sequences or self.results):
                return self.outputs()
            self.step()
        raise AssertionError(f"unfinished: {list(self.scheduler.sequences)}")

    def outputs(self) -> dict[str, list[int]]:
        """Return all tokens emitted, by request, after a check for gaps and repetitions."""
        outputs: dict[str, list[int]] = {}
        for event in self.events:
            output = outputs.setdefault(event.request_id, [0] * event.position)
            assert event.position == len(output), f"a gap or a repetition in {event}"
            output.extend(event.tokens)
        return outputs

    def ends(self) -> dict[str, str]:
        """Return the finish reasons of the requests that have ended."""
        return {e.request_id: e.finish_reason for e in self.events if e.finish_reason is not None}

    def end_of(self, request_id: str) -> TokenEvent:
        """Return the last event of a request."""
        return [e for e in self.events if e.request_id == request_id and e.finish_reason][-1]

    @property
    def running(self) -> list[str]:
        """Ids of the running sequences in order."""
        return [sequence.request_id for sequence in self.scheduler.running]

    @property
    def waiting(self) -> list[str]:
        """Ids of the waiting sequences, without those that follow another."""
        return [sequence.request_id for sequence in self.scheduler.queue]

    @property
    def following(self) -> list[str]:
        """Ids of the sequences that follow another."""
        return list(self.scheduler.queue.held)

    def chunks(self, plan: StepPlan | None) -> dict[str, tuple[int, int]]:
        """Return a plan's chunks, request id → (start, count), before their slots are reused."""
        assert plan is not None, "nothing was planned"
        ids = [self.worker.rows[slot].request_id for slot in plan.slots]
        return dict(zip(ids, zip(plan.starts, plan.counts, strict=True), strict=True))

    def _seen(self, event: TokenEvent | None) -> TokenEvent | None:
        if event is not None:
            self.events.append(event)
        check_integrity(self.scheduler)
        return event
