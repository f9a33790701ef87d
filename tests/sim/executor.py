"""An executor with real paged memory, which detects every plan that would compute a wrong token.

A worker stores (token, position, conditions, group) for each token that it computes, in the
physical cell that the plan's block table names. Before it samples, it reads the whole prefix back
through the table and compares. Newly allocated blocks are poisoned first. So a block that is freed
too early, a stale hash, a wrong difference or an off-by-one in a chunk fails in the same step in
which it does harm. Two workers run the same plans and must agree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from octavo.core.config import CoreConfig
from octavo.core.plan import NO_ADAPTER, NO_TOKEN, NewSlot, StepPlan, StepResult
from octavo.core.request import Request
from octavo.core.trees.form import ROOT, DraftTree, depths_of
from tests.sim.drafts.predicted import chances_of, check_drafts, may_draft, predicted_drafts
from tests.sim.drafts.trees import Branches, Proposed, candidates_in, draw_tree, follow
from tests.sim.extras import sampler_state
from tests.sim.kv.kinds import KINDS
from tests.sim.kv.memory import POISON, Memory, require
from tests.sim.kv.store import Store
from tests.sim.programs.block import BlockProgram
from tests.sim.programs.program import Program
from tests.sim.truth import VOCABULARY, extend, grammar_end, next_token, prefix_hashes

PASS_SECONDS = 0.000_1  # that a pass of the second model takes


class WorkerDiedError(Exception):
    """A fault of the world, not of the core: the executor has died."""


class Slot:
    """A worker's memory of one running sequence."""

    def __init__(self, new: NewSlot, request: Request, conditions: int, version: int) -> None:
        self.request_id = new.request_id
        self.tokens = list(new.tokens)
        self.tables = [list(table) for table in new.tables]
        self.encodes = new.encodes
        self.conditions = conditions
        self.version = version  # of the weights, when the slot was opened
        self.lora, self.adapter = new.lora, new.adapter
        self.salts = request.salts
        self.num_encoder = 0 if request.encoder is None else request.encoder.num_positions
        self.position = 0  # positions computed; set by the first chunk
        self.num_cached = 0  # … before that chunk
        self.is_new = True
        self.cells: list[list[int]] = [[] for _ in new.tables]  # the right content of rows
        self.states = prefix_hashes(self.tokens, request)
        self.may_draft = new.may_draft
        self.sampling = new.sampling
        self.prediction, self.num_prompt = new.prediction, new.num_prompt
        self.proposed = Proposed()  # by the last step that sampled

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self.states.append(extend(self.states[-1], token))

    @property
    def sampler_state(self) -> float | None:
        """The state of its sampler behind the known tokens."""
        num_output = len(self.tokens) - self.num_prompt
        return sampler_state(self.states[-1], self.sampling, num_output)

    def salt_at(self, position: int) -> int:
        """Return a number for the salts that have taken effect at a position."""
        content = b"|".join(b"%d %s" % salt for salt in self.salts if salt[0] <= position)
        return int.from_bytes(content, "little")


class Worker:
    """One rank: its slots, and its memory in blocks."""

    def __init__(
        self,
        config: CoreConfig,
        request_of: Callable[[str], Request],
        store: Store,
        has_drafter: bool = False,
    ) -> None:
        self.config = config
        self.store = store
        self.memory = Memory(config)
        self.groups = [
            KINDS[group.kind](index, config, self.memory)
            for index, group in enumerate(config.groups)
        ]
        kind = BlockProgram if config.ahead_in_block else Program
        self.program = kind(config, self.groups) if has_drafter else None
        self.slots: dict[int, Slot] = {}
        self.adapters: dict[int, str] = {}  # by their slot
        self.idle_adapters: dict[str, None] = {}  # in the order of their last sequences' leaving
        self.request_of = request_of
        self.num_branches = self.num_nested = self.num_turned = 0  # the last: they were accepted

    # applying a plan's differences

    def run(self, plan: StepPlan, draft_length: int) -> StepResult:
        """Run a step, in the order that plan.py promises."""
        self._change(plan)
        drafts = dict(plan.drafts)
        tokens: list[int] = []
        accepted: list[tuple[int, int]] = []
        new_drafts: list[tuple[int, tuple[int, ...]]] = []
        chances: list[tuple[int, tuple[float, ...]]] = []
        predicted: list[int] = []
        trees: list[tuple[int, DraftTree]] = []
        walks: list[tuple[int, tuple[int, ...]]] = []
        states: list[tuple[int, float]] = []
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
            walk = self._verify(slot, verified, plan, first) if samples else []
            for group in self.groups:
                group.settle(slot, first)
            if not samples:
                tokens.append(NO_TOKEN)
                continue
            if walk:
                accepted.append((number, len(walk)))
                if walk != [*range(len(walk))]:
                    walks.append((number, tuple(walk)))
            tokens.append(self._sample(slot))
            if slot.sampler_state is not None:
                states.append((number, slot.sampler_state))
            slot.proposed = Proposed()
            if slot.may_draft and (self.program is None or slot.prediction):
                slot.proposed = self._draft(slot, draft_length)
                new_drafts.append((number, slot.proposed.tokens))
                if slot.prediction:
                    predicted.append(number)
                    count = len(slot.proposed.tokens)
                    chances.append((number, chances_of(slot.states[-1], count)))
                elif slot.proposed.tree is not None:  # so likely that nearly all are sent
                    count = len(slot.proposed.tokens)
                    chances.append((number, tuple(0.999**place for place in range(count))))
        ahead_seconds = 0.0
        if self.program is not None:
            for number, length in self._go_ahead(plan, self.program).items():
                new_drafts.append((number, self.slots[number].proposed.tokens))
                chances.append((number, dict(plan.ahead)[number]))
                ahead_seconds = max(ahead_seconds, length * PASS_SECONDS)
        require(not plan.ahead or self.program is not None, f"step {plan.step}: no second model")
        for number, _ in new_drafts:
            tree = self.slots[number].proposed.tree
            if tree is not None:
                trees.append((number, tree))
        return StepResult(
            plan.step,
            tuple(tokens),
            tuple(accepted),
            tuple(new_drafts),
            chances=tuple(chances),
            predicted=tuple(predicted),
            ahead_seconds=ahead_seconds,
            trees=tuple(trees),
            walks=tuple(walks),
            states=tuple(states),
        )

    def _change(self, plan: StepPlan) -> None:
        """Apply what a plan changes before anything is computed."""
        self.memory.check_pages()
        for save in plan.saves:
            # A table keeps entries that the core has dropped: the block may be another's by now.
            intact = self.groups[save.group].intact_blocks
            owners = [each for each in self.slots.values() if save.block in intact(each)]
            self.store.save(self.memory, save, owners)
        for number in plan.freed:
            require(number in self.slots, f"slot {number} freed, but not open")
            lora = self.slots.pop(number).lora
            if lora is not None and all(each.lora != lora for each in self.slots.values()):
                self.idle_adapters[lora] = None
        for new in plan.opened:
            require(new.slot not in self.slots, f"slot {new.slot} opened while in use")
            self.slots[new.slot] = self._open(new)
        self._copy(plan)
        for number, parts in plan.new_blocks:
            tables = self.slots[number].tables
            for group, table, blocks in zip(self.groups, tables, parts, strict=True):
                table.extend(blocks)
                group.allocated(blocks)
        for load in plan.loads:
            self.memory.poison(load.group, (load.block,))

    def _go_ahead(self, plan: StepPlan, program: Program) -> dict[int, int]:
        """Let the second model do what a plan asks for; return how much it proposed, by slot."""
        proposed = {}
        chunks = zip(plan.slots, plan.starts, plan.counts, plan.samples, strict=True)
        parts = {number: chunk for number, *chunk in chunks}
        trees = dict(plan.ahead_trees)
        for number, chances in plan.ahead:
            slot = self.slots[number]
            first, count, samples = parts[number]
            require(slot.may_draft, f"{slot.request_id}: it may not draft")
            require(samples == bool(chances), f"{slot.request_id}: samples={samples}, {chances}")
            require(list(chances) == sorted(chances, reverse=True), f"{slot.request_id}: {chances}")
            end = len(slot.tokens) if samples else first + count
            if program.follow(slot, first, end) and samples and not slot.prediction:
                tree = trees.get(number)
                length = len(chances) if tree is None else max(depths_of(tree.parents))
                tokens = program.propose(slot, length, self.slots.values())
                slot.proposed = Proposed(tokens)
                if tree is not None:
                    tokens = tuple(candidates_in(tree, tokens, slot.states[-1]))
                    slot.proposed = Proposed(tokens, tree)
                proposed[number] = length
        return proposed

    def _open(self, new: NewSlot) -> Slot:
        request = self.request_of(new.request_id)
        require(new.num_prompt == len(request.prompt), f"{new.request_id}: wrong prompt length")
        require(new.sampling == request.sampling, f"{new.request_id}: wrong sampling parameters")
        right = may_draft(self.config, request)
        require(new.may_draft == right, f"{new.request_id}: may_draft={new.may_draft}")
        require(new.prediction == request.prediction, f"{new.request_id}: another prediction")
        require((new.lora is None) == (new.adapter == NO_ADAPTER), f"{new.lora}: {new.adapter}")
        if new.lora is not None:
            require(0 <= new.adapter < self.config.max_loras, f"adapter slot {new.adapter}")
            before = self.adapters.get(new.adapter, new.lora)
            if before != new.lora:
                longest = next(iter(self.idle_adapters), None)
                require(before == longest, f"adapter {before} gives its slot up, not {longest}")
                del self.idle_adapters[before]
            self.idle_adapters.pop(new.lora, None)
            self.adapters[new.adapter] = new.lora
        key = (request.cache_scope, new.lora, request.encoder)
        numbers = self.store.conditions
        conditions = numbers.setdefault(key, len(numbers))
        slot = Slot(new, request, conditions, self.store.version)
        kept = new.sampler_state == slot.sampler_state
        require(kept, f"{new.request_id}: its sampler has another state")
        return slot

    def _copy(self, plan: StepPlan) -> None:
        """Copy blocks before any write: a source may be in use by another sequence already."""
        branched = {
            (index, block): None
            for branch in plan.branches
            for index, blocks in enumerate(branch.blocks)
            for block in blocks
        }
        for source, destination, index in plan.copies:
            if (index, destination) in branched:
                del branched[index, destination]
                self.memory.poison(index, (destination,))
            self.memory.copy(index, source, destination)
        for index, block in branched:
            self.memory.poison(index, (block,))
        starts = dict(zip(plan.slots, plan.starts, strict=True))
        for new in plan.opened:
            for index, (group, table) in enumerate(zip(self.groups, new.tables, strict=True)):
                copied = {destination for _, destination, of in plan.copies if of == index}
                group.opened(table, starts[new.slot], copied, new.encodes)

    # computing

    def _compute(self, slot: Slot, first: int, end: int, drafts: tuple[int, ...]) -> None:
        """Let each group write and read what a chunk writes and reads."""
        if slot.is_new:
            slot.is_new = False
            slot.position = slot.num_cached = first
            for group in self.groups:
                group.start(slot, first)
        require(
            slot.position == first, f"{slot.request_id}: chunk at {first}, not at {slot.position}"
        )
        lora = self.adapters.get(slot.adapter)
        require(lora == slot.lora, f"{slot.request_id}: computed with adapter {lora}")
        tokens = (slot.tokens + list(drafts))[first:end]
        for group in self.groups:
            if self.program is None or not group.is_owned:
                group.compute(slot, first, end, tokens)
        slot.position = end

    def _verify(self, slot: Slot, drafts: tuple[int, ...], plan: StepPlan, first: int) -> list[int]:
        """Accept drafts while they equal the model's tokens; return which, by their numbers."""
        branches = [branch for branch in plan.branches if self.slots[branch.slot] is slot]
        rows = Branches(slot, drafts, branches)
        rows.compute(self.groups, first, self.config.block_size)
        walk: list[int] = []
        before = ROOT
        while True:
            token = next_token(slot.states[-1])
            pairs = enumerate(zip(rows.parents, rows.tokens, strict=True))
            found = next((n for n, pair in pairs if pair == (before, token)), None)
            if found is None:
                break
            slot.append(token)
            walk.append(found)
            before = found
        slot.position -= len(drafts) - len(walk)
        self.num_branches += len(branches)
        self.num_nested += sum(branch.after >= len(drafts) for branch in branches)
        self.num_turned += bool(walk) and walk[-1] >= len(drafts)
        rows.accept(self.groups, walk, self.config.block_size)
        if branches:
            follow(self.groups, slot)
        return walk

    def _sample(self, slot: Slot) -> int:
        token = next_token(slot.states[-1])
        slot.append(token)
        return token

    def room_in_grammar(self, number: int) -> int:
        """Return how many further tokens the toy grammar of a slot allows; negative: too many."""
        slot = self.slots[number]
        request = self.request_of(slot.request_id)
        end = grammar_end(request, self.config.max_model_len)
        num_output = len(slot.tokens) - len(request.prompt)
        return self.config.max_model_len if end is None else end - num_output

    def force(self, number: int) -> tuple[int, ...]:
        """Append the tokens that a toy grammar forces: often none, as many as the text decides."""
        slot = self.slots[number]
        run = []
        most = slot.states[-1] // 7 % 24 - 12
        for _ in range(max(0, min(most, self.room_in_grammar(number)))):
            run.append(next_token(slot.states[-1]))
            slot.append(run[-1])
        return tuple(run)

    def _draft(self, slot: Slot, length: int) -> Proposed:
        """Return drafts: sometimes all right, sometimes with a wrong one, sometimes none."""
        if slot.prediction:
            num_output = len(slot.tokens) - slot.num_prompt
            return Proposed(predicted_drafts(slot.prediction, num_output, length))
        if self.config.max_branches:
            return draw_tree(slot.states[-1], length)
        state = slot.states[-1]
        wrong_at = state % (length + 2)
        drafts = []
        for index in range(state % 7 % (length + 1)):
            token = next_token(state)
            if index == wrong_at:
                token = (token + 1) % VOCABULARY
            drafts.append(token)
            state = extend(state, token)
        return Proposed(drafts)


class SimExecutor:
    """Two workers that must agree, and results that arrive when the world decides."""

    def __init__(
        self,
        config: CoreConfig,
        request_of: Callable[[str], Request],
        is_slow: Callable[[], bool],
        faults: Faults,
        check_plan: Callable[[StepPlan], None],
        store: Store | None = None,
        forces: bool = False,
        has_drafter: bool = False,
    ) -> None:
        self.store = store or Store(0, "none")
        self.workers = (
            Worker(config, request_of, self.store, has_drafter),
            Worker(config, request_of, self.store, has_drafter),
        )
        self.results: deque[tuple[StepPlan, StepResult]] = deque()
        self.num_forced = 0
        self.config = config
        self._forces = forces
        self._draft_length = config.max_drafts
        self._is_slow = is_slow
        self._faults = faults
        self._check_plan = check_plan

    def submit(self, plan: StepPlan) -> None:
        """Run a step at once, and keep its result until it is collected."""
        if self._faults.die_at_submit:
            raise WorkerDiedError
        self._check_plan(plan)
        open_slots = self.workers[0].slots
        proposed = {number: slot.proposed for number, slot in open_slots.items()}
        drafting = frozenset(number for number, slot in open_slots.items() if slot.may_draft)
        check_drafts(plan, self.config, proposed, self.results, drafting)
        result, other = (worker.run(plan, self._draft_length) for worker in self.workers)
        require(result == other, f"step {plan.step}: the workers disagree")
        memories = [worker.memory for worker in self.workers]
        loaded = self.store.load(plan.loads, memories)
        self.results.append((plan, self._report(plan, result)._replace(loaded=loaded)))

    def collect(self, wait: bool) -> StepResult | None:
        """Return the oldest result; None if the world makes this call slow."""
        if self._faults.die_at_collect:
            raise WorkerDiedError
        if not wait and self._is_slow():
            return None
        plan, result = self.results.popleft()
        return self._with_forced(plan, result) if self._forces and not self.results else result

    def _with_forced(self, plan: StepPlan, result: StepResult) -> StepResult:
        """Let tokens follow those that were drawn; no other step is in flight."""
        # What a payload is about is drawn, and so is what changes a sampler's state.
        drawn = dict(result.errors) | dict(result.payloads) | dict(result.states)
        forced, drafts = [], dict(result.drafts)
        for slot, token in zip(plan.slots, result.tokens, strict=True):
            if token == NO_TOKEN or slot in drawn:
                continue
            run, other = (worker.force(slot) for worker in self.workers)
            require(run == other, f"step {plan.step}: the workers force other tokens")
            if run:
                forced.append((slot, run))
                self.num_forced += len(run)
                drafts.pop(slot, None)
        return result._replace(forced=tuple(forced), drafts=tuple(drafts.items()))

    def reset(self) -> None:
        """Change the weights: no sequence may start with KV of the old ones from now on."""
        self.store.version += 1

    def _report(self, plan: StepPlan, result: StepResult) -> StepResult:
        """Add payloads for some requests, and errors for poisoned ones."""
        slots = self.workers[0].slots
        tokens = list(result.tokens)
        payloads, errors, impossible = [], [], []
        accepted = dict(result.accepted)
        for index, slot in enumerate(plan.slots):
            request_id = slots[slot].request_id
            if request_id in self._faults.poisoned:
                tokens[index] = NO_TOKEN
                errors.append((slot, "logits are not finite"))
            elif self._forces and tokens[index] >= 0 and self._has_failed(slot, accepted):
                tokens[index] = NO_TOKEN
                errors.append((slot, "the grammar fails"))
                impossible.append(slot)
            elif request_id.endswith("7"):
                payloads.append((slot, tokens[index]))
        failed = dict(errors)
        walks = [(slot, walk[: accepted.get(slot, 0)]) for slot, walk in result.walks]
        poisoned = failed.keys() - set(impossible)
        return StepResult(
            result.step,
            tuple(tokens),
            tuple(pair for pair in accepted.items() if pair[1] and pair[0] not in poisoned),
            tuple(pair for pair in result.drafts if pair[0] not in failed),
            tuple(payloads),
            tuple(errors),
            impossible=tuple(impossible),
            chances=result.chances,
            predicted=result.predicted,
            ahead_seconds=result.ahead_seconds,
            trees=result.trees,
            walks=tuple(walks),
            states=result.states,
        )

    def _has_failed(self, slot: int, accepted: dict[int, int]) -> bool:
        """Return whether a grammar forbids what was drawn; keep the drafts accepted before it."""
        room = self.workers[0].room_in_grammar(slot)
        if room >= 0:
            return False
        if slot in accepted:
            accepted[slot] = max(0, accepted[slot] + 1 + room)
        return True

    def distrust(self, request_id: str) -> list[tuple[int, int]]:
        """Forbid new sequences the blocks that only a failed request has computed; return them."""
        distrusted = []
        for worker in self.workers:
            failed = [s for s in worker.slots.values() if s.request_id == request_id]
            others = [s for s in worker.slots.values() if s.request_id != request_id]
            place = worker.memory.place
            kept = {
                place(group, block)
                for slot in others
                for group, table in enumerate(slot.tables)
                for block in table
            }
            for slot in failed:
                require(not self.store.has_of(slot), f"{request_id} failed, and its KV is stored")
                for group in worker.groups:
                    for block in group.intact_blocks(slot):
                        if place(group.group, block) not in kept:
                            worker.memory.versions[group.group][block] = POISON
                            distrusted.append((group.group, block))
        return distrusted


class Faults:
    """The faults that the world injects into the executor at present."""

    def __init__(self) -> None:
        self.die_at_submit = False
        self.die_at_collect = False
        self.poisoned: set[str] = set()  # ids of requests whose next chunk gives no finite logits
