"""An executor with real paged memory, which detects every plan that would compute a wrong token.

A worker stores (token, position, conditions, group) for each token that it computes, in the
physical cell that the plan's block table names. Before it samples, it reads the whole prefix back
through the table and compares. Newly allocated blocks are poisoned first. So a block that is freed
too early, a stale hash, a wrong difference or an off-by-one in a chunk fails in the same step in
which it does harm. Two workers run the same plans and must agree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from octavo.core.config import CoreConfig
from octavo.core.plan import NO_TOKEN, NewSlot, StepPlan, StepResult
from octavo.core.request import Request
from tests.sim.truth import VOCABULARY, extend, next_token, start

POISON = -1


class SimulationError(AssertionError):
    """A plan or an event of the core that is wrong."""


class WorkerDiedError(Exception):
    """A fault of the world, not of the core: the executor has died."""


def require(condition: bool, message: str) -> None:
    """Raise SimulationError unless the condition holds."""
    if not condition:
        raise SimulationError(message)


class Slot:
    """A worker's memory of one running sequence."""

    def __init__(self, new: NewSlot, conditions: int, version: int, num_groups: int) -> None:
        self.request_id = new.request_id
        self.tokens = list(new.tokens)
        self.tables = [list(table) for table in new.tables]
        self.conditions = conditions
        self.version = version  # of the weights, when the slot was opened
        self.position = 0  # positions computed; set by the first chunk
        self.is_new = True
        self.cells: list[list[int]] = [[] for _ in range(num_groups)]  # the right content
        self.states = [start(new.lora)]  # hash of each prefix
        for token in self.tokens:
            self.states.append(extend(self.states[-1], token))

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self.states.append(extend(self.states[-1], token))

    def intact_blocks(self, worker: Worker) -> Iterator[int]:
        """Yield the full blocks with this sequence's content, in its window or not."""
        size = worker.block_size
        for table, cells in zip(self.tables, self.cells, strict=True):
            for index, block in enumerate(table[: len(cells) // size]):
                if worker.memory[block] == cells[index * size : (index + 1) * size]:
                    yield block


class Worker:
    """One rank: its slots, and its memory in blocks."""

    def __init__(self, config: CoreConfig, request_of: Callable[[str], Request]) -> None:
        self.config = config
        self.block_size = config.block_size
        self.memory = [[POISON] * config.block_size for _ in range(config.num_blocks)]
        self.versions = [POISON] * config.num_blocks  # of the weights a block was computed with
        self.slots: dict[int, Slot] = {}
        self.version = 0
        self._request_of = request_of
        self._conditions: dict[tuple[str, str | None], int] = {}

    # applying a plan's differences

    def run(self, plan: StepPlan, draft_length: int) -> StepResult:
        """Run a step, in the order that plan.py promises."""
        for number in plan.freed:
            require(number in self.slots, f"slot {number} freed, but not open")
            del self.slots[number]
        for new in plan.opened:
            require(new.slot not in self.slots, f"slot {new.slot} opened while in use")
            self.slots[new.slot] = self._open(new)
        self._copy(plan)
        for number, groups in plan.new_blocks:
            for table, blocks in zip(self.slots[number].tables, groups, strict=True):
                table.extend(blocks)
                self._poison(blocks)
        drafts = dict(plan.drafts)
        tokens: list[int] = []
        accepted: list[tuple[int, int]] = []
        new_drafts: list[tuple[int, tuple[int, ...]]] = []
        chunks = zip(plan.slots, plan.starts, plan.counts, plan.samples, strict=True)
        for number, first, count, samples in chunks:
            require(number in self.slots, f"a chunk for slot {number}, which is not open")
            slot = self.slots[number]
            verified = drafts.get(number, ())
            self._compute(slot, first, first + count, verified)
            known = len(slot.tokens)
            end = known + len(verified)
            require(first + count <= end, f"{slot.request_id}: past its known tokens")
            require(samples == (first + count >= known), f"{slot.request_id}: samples={samples}")
            if not samples:
                tokens.append(NO_TOKEN)
                continue
            num_accepted = self._verify(slot, verified)
            if num_accepted:
                accepted.append((number, num_accepted))
            tokens.append(self._sample(slot))
            if draft_length:
                new_drafts.append((number, self._draft(slot, draft_length)))
        return StepResult(plan.step, tuple(tokens), tuple(accepted), tuple(new_drafts))

    def _open(self, new: NewSlot) -> Slot:
        request = self._request_of(new.request_id)
        require(new.num_prompt == len(request.prompt), f"{new.request_id}: wrong prompt length")
        require(new.sampling == request.sampling, f"{new.request_id}: wrong sampling parameters")
        key = (request.cache_scope, new.lora)
        conditions = self._conditions.setdefault(key, len(self._conditions))
        return Slot(new, conditions, self.version, len(self.config.groups))

    def _copy(self, plan: StepPlan) -> None:
        """Copy blocks before any write: a source may be in use by another sequence already."""
        for source, destination in plan.copies:
            self.memory[destination] = list(self.memory[source])
            self.versions[destination] = self.versions[source]
        destinations = {destination for _, destination in plan.copies}
        starts = dict(zip(plan.slots, plan.starts, strict=True))
        for new in plan.opened:
            shared = starts[new.slot] // self.block_size
            for table in new.tables:
                self._poison(block for block in table[shared:] if block not in destinations)

    def _poison(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            require(block != 0, "the null block was allocated")
            self.memory[block] = [POISON] * self.block_size
            self.versions[block] = POISON

    # computing

    def _compute(self, slot: Slot, first: int, end: int, drafts: tuple[int, ...]) -> None:
        """Write the chunk's tokens, then read the prefix back as attention would."""
        if slot.is_new:
            self._start(slot, first)
        require(
            slot.position == first, f"{slot.request_id}: chunk at {first}, not at {slot.position}"
        )
        tokens = (slot.tokens + list(drafts))[first:end]
        for group, (table, cells) in enumerate(zip(slot.tables, slot.cells, strict=True)):
            require(end <= len(table) * self.block_size, f"{slot.request_id}: table too short")
            del cells[first:]
            cells.extend(self._codes(slot, group, first, tokens))
            for position in range(first, end):
                block = table[position // self.block_size]
                require(block != 0, f"{slot.request_id}: writes position {position} to null")
                self.memory[block][position % self.block_size] = cells[position]
                self.versions[block] = slot.version
            self._read_back(slot, group, first, end)
        slot.position = end

    def _start(self, slot: Slot, first: int) -> None:
        """Take a new slot's prefix as given, and check the versions of its blocks."""
        slot.is_new = False
        slot.position = first
        for group, cells in enumerate(slot.cells):
            cells.extend(self._codes(slot, group, 0, slot.tokens[:first]))
            oldest = self._oldest(group, first) // self.block_size
            for block in slot.tables[group][oldest : -(-first // self.block_size)]:
                if self.versions[block] < slot.version:
                    raise SimulationError(self._unfit(slot, first, block))

    def _unfit(self, slot: Slot, first: int, block: int) -> str:
        """Return the message that a sequence must not start with this block."""
        version = self.versions[block]
        why = f"computed with weights {version}, not {slot.version}"
        if version == POISON:
            why = "which is empty or was left by a failed request"
        return f"{slot.request_id}: starts at {first} with block {block}, {why}"

    def _oldest(self, group: int, position: int) -> int:
        """Return the first position that a query reads, computed independently of the core."""
        window = self.config.groups[group].window
        return 0 if window is None else max(0, position - (window - 1))

    def _codes(self, slot: Slot, group: int, first: int, tokens: list[int]) -> list[int]:
        base = (slot.conditions * len(self.config.groups) + group) << 40
        return [base | position << 12 | token for position, token in enumerate(tokens, first)]

    def _read_back(self, slot: Slot, group: int, first: int, end: int) -> None:
        size, table, cells = self.block_size, slot.tables[group], slot.cells[group]
        oldest = self._oldest(group, first)
        index = oldest // size
        begin = index * size
        if begin < oldest:  # the window begins inside this block
            stop = min(end, begin + size)
            found = self.memory[table[index]][oldest - begin : stop - begin]
            require(found == cells[oldest:stop], _difference(slot, oldest, found, cells))
            begin, index = begin + size, index + 1
        memory = self.memory
        while begin + size <= end:
            found = memory[table[index]]
            if found != cells[begin : begin + size]:
                raise SimulationError(_difference(slot, begin, found, cells))
            begin, index = begin + size, index + 1
        if begin < end:
            found = memory[table[index]][: end - begin]
            require(found == cells[begin:end], _difference(slot, begin, found, cells))

    def _verify(self, slot: Slot, drafts: tuple[int, ...]) -> int:
        """Accept drafts while they equal the model's tokens; return how many."""
        num_right = 0
        for draft in drafts:
            if draft != next_token(slot.states[-1]):
                break
            slot.append(draft)
            num_right += 1
        slot.position -= len(drafts) - num_right
        return num_right

    def _sample(self, slot: Slot) -> int:
        token = next_token(slot.states[-1])
        slot.append(token)
        return token

    def _draft(self, slot: Slot, length: int) -> tuple[int, ...]:
        """Return drafts: sometimes all right, sometimes with a wrong one, sometimes none."""
        state = slot.states[-1]
        wrong_at = state % (length + 2)
        drafts = []
        for index in range(state % 7 % (length + 1)):
            token = next_token(state)
            if index == wrong_at:
                token = (token + 1) % VOCABULARY
            drafts.append(token)
            state = extend(state, token)
        return tuple(drafts)


def _difference(slot: Slot, begin: int, found: list[int], cells: list[int]) -> str:
    """Return the message which cell of the prefix has which wrong content."""
    for position, code in enumerate(found, begin):
        if position < len(cells) and code != cells[position]:
            right = cells[position]
            token, place = code & 4095, code >> 12 & 0xFFFFFFF
            content = f"token {token} of position {place}"
            if code == POISON:
                content = "nothing, since it was never written"
            elif code >> 40 != right >> 40:
                content += ", of another adapter, cache scope or KV group"
            should = f"position {position} should hold token {right & 4095}"
            return f"{slot.request_id}: {should}, and holds {content}"
    return f"{slot.request_id}: reads {len(found)} cells at {begin}"


class SimExecutor:
    """Two workers that must agree, and results that arrive when the world decides."""

    def __init__(
        self,
        config: CoreConfig,
        request_of: Callable[[str], Request],
        is_slow: Callable[[], bool],
        faults: Faults,
        check_plan: Callable[[StepPlan], None],
    ) -> None:
        self.workers = (Worker(config, request_of), Worker(config, request_of))
        self.results: deque[StepResult] = deque()
        self._draft_length = config.max_drafts
        self._is_slow = is_slow
        self._faults = faults
        self._check_plan = check_plan

    def submit(self, plan: StepPlan) -> None:
        """Run a step at once, and keep its result until it is collected."""
        if self._faults.die_at_submit:
            raise WorkerDiedError
        self._check_plan(plan)
        result, other = (worker.run(plan, self._draft_length) for worker in self.workers)
        require(result == other, f"step {plan.step}: the workers disagree")
        self.results.append(self._report(plan, result))

    def collect(self, wait: bool) -> StepResult | None:
        """Return the oldest result; None if the world makes this call slow."""
        if self._faults.die_at_collect:
            raise WorkerDiedError
        if not wait and self._is_slow():
            return None
        return self.results.popleft()

    def reset(self) -> None:
        """Change the weights: no sequence may start with KV of the old ones from now on."""
        for worker in self.workers:
            worker.version += 1

    def _report(self, plan: StepPlan, result: StepResult) -> StepResult:
        """Add payloads for some requests, and errors for poisoned ones."""
        slots = self.workers[0].slots
        tokens = list(result.tokens)
        payloads, errors = [], []
        for index, slot in enumerate(plan.slots):
            request_id = slots[slot].request_id
            if request_id in self._faults.poisoned:
                tokens[index] = NO_TOKEN
                errors.append((slot, "logits are not finite"))
            elif request_id.endswith("7"):
                payloads.append((slot, tokens[index]))
        failed = dict(errors)
        return StepResult(
            result.step,
            tuple(tokens),
            tuple(pair for pair in result.accepted if pair[0] not in failed),
            tuple(pair for pair in result.drafts if pair[0] not in failed),
            tuple(payloads),
            tuple(errors),
        )

    def distrust(self, request_id: str) -> list[int]:
        """Forbid new sequences the blocks that only a failed request has computed; return them."""
        distrusted = []
        for worker in self.workers:
            failed = [s for s in worker.slots.values() if s.request_id == request_id]
            others = [s for s in worker.slots.values() if s.request_id != request_id]
            kept = {block for slot in others for table in slot.tables for block in table}
            for slot in failed:
                for block in slot.intact_blocks(worker):
                    if block not in kept:
                        worker.versions[block] = POISON
                        distrusted.append(block)
        return distrusted


class Faults:
    """The faults that the world injects into the executor at present."""

    def __init__(self) -> None:
        self.die_at_submit = False
        self.die_at_collect = False
        self.poisoned: set[str] = set()  # ids of requests whose next chunk gives no finite logits
