"""Owners of requests: who asks for what in a world, and the checks that each gets its share.

The oracle recounts what every owner holds, by the rules of docs/operations.md, and requires three
things of each step: a sequence is preempted for another owner only if that owner holds less; an
owner that holds less than another, and waits, is given what it lacks within a few steps; and each
owner's first sequence computes its prompt at the speed that its part of the step allows.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from octavo.core.config import CoreConfig
from octavo.core.engine import EngineCore
from octavo.core.plan import StepPlan
from octavo.core.request import Request
from octavo.core.sequence import Line, Sequence
from octavo.core.stats import PRIORITY, SHARE
from tests.sim.events import Arrival, Fault
from tests.sim.kv.memory import require
from tests.sim.truth import VOCABULARY

MOST_STEPS = 4  # for which an owner may lack what is its share

Event = tuple[int, Arrival | Fault]


def draw_owners(
    rng: random.Random, config: CoreConfig, events: list[Event]
) -> tuple[CoreConfig, list[Event]]:
    """Return the world's configuration and events with owners, in about half of the worlds."""
    if rng.random() < 0.45:
        return config, events
    names = [f"key {index}" for index in range(rng.randint(1, 8))]
    weights = {name: rng.choice((1.0, 1.0, 1.0, 2.0, 0.5, 3.0)) for name in names}
    background_rate = rng.choice((0.0, 0.0, 0.2, 0.6))
    # In many worlds the first owner floods the engine, and the others follow.
    first_rate = rng.choice((0.0, 0.5, 0.8, 0.9))
    config = replace(
        config,
        share_quantum=rng.choice((1, 2, 5, 20, 256)),
        fair_share=rng.random() < 0.95,
        max_num_seqs=rng.choice((config.max_num_seqs, 1, 2, 3, 4, 8)),
    )
    if config.chunked_prefill and rng.random() < 0.5:
        config = replace(config, max_num_batched_tokens=rng.choice((12, 32, 128)))
    is_ample = config.chunked_prefill and rng.random() < 0.5
    if is_ample:  # nothing but slots lacks, so that every step owes each owner its share
        longest = -(-config.max_model_len // config.block_size) * len(config.groups)
        config = replace(
            config,
            num_blocks=max(config.num_blocks, min(1000, 12 * longest)),
            max_num_batched_tokens=rng.choice((12, 16, 24, 128)),
            max_num_seqs=rng.choice((3, 4, 5, 6)),
            max_num_waiting=1000,
            max_waiting_tokens=100_000,
            policy="fcfs",
            max_loras=0,
        )
    # In some of these worlds a prompt takes many steps, if other owners get their part of each.
    is_long = is_ample and rng.random() < 0.6
    owners: dict[str, str] = {}
    found: list[Event] = []
    for tick, event in events:
        if isinstance(event, Arrival):
            name = names[0] if rng.random() < first_rate else rng.choice(names)
            name = owners[event.name] = owners.get(event.parent or "", name)
            event = replace(
                event,
                owner=name,
                weight=weights[name],
                is_background=rng.random() < background_rate,
            )
            if is_ample:
                most = min(config.max_model_len // 2, 40)
                kinds = [group.kind for group in config.groups]
                tokens = event.max_tokens if "none" in kinds else max(event.max_tokens, most)
                event = replace(event, lora=None, max_tokens=tokens)
                if is_long and event.prompt and not event.parent:
                    lacking = max(0, config.max_model_len - tokens - len(event.prompt))
                    more = tuple(rng.randrange(VOCABULARY) for _ in range(lacking))
                    event = replace(event, prompt=event.prompt + more)
                other = rng.choice(names)  # it asks for the same, so that many wait
                twin = replace(event, name=event.name + "a", parent=None, owner=other)
                found.append((tick, replace(twin, weight=weights[other])))
        found.append((tick, event))
    return config, found


class FairnessOracle:
    """The checks of one engine; `after_step` is called when a step has been planned."""

    def __init__(self, config: CoreConfig, engine: EngineCore) -> None:
        self.config = config
        self.scheduler = engine.scheduler
        self.num_lacking: Counter[tuple[str, int]] = Counter()  # steps in a row, by line
        self.num_slow: Counter[str] = Counter()  # steps, by request
        self.num_overdue = 0  # steps in a row in which an owner had no slot, and turns had ended
        self.num_given = 0  # sequences preempted for the share of another owner
        self.num_urgent = 0  # … for a more urgent request, since the last plan
        self.num_checked = 0  # steps in which an owner waited and held less than another
        self._preempt = self.scheduler.lifecycle.preempt
        self.scheduler.lifecycle.preempt = self._checked_preempt  # type: ignore[method-assign]

    # what is held

    def _held(self, line: Line) -> list[Sequence]:
        return [each for each in self.scheduler.running if each.line is line]

    def _level(self, line: Line, held: list[Sequence]) -> float:
        """Return what these sequences of a line hold, in slots for each unit of weight."""
        pages = sum(self.scheduler.kv.peak_pages(each.num_capacity) for each in held)
        worth = pages * self.config.max_num_seqs // (self.config.num_blocks - 1)
        return max(len(held), worth) / line.weight

    def _level_before(self, sequence: Sequence) -> float:
        """Return what a running sequence's line holds without it and those behind it."""
        held = [each for each in self._held(sequence.line) if each.order < sequence.order]
        return self._level(sequence.line, held)

    # who is next

    def check_order(self, plan: StepPlan) -> None:
        """Require that no started sequence overtook one of its line without a reason."""
        for new in plan.opened:
            started = self.scheduler.sequences[new.request_id]
            place = self._place(started.request)
            for waiting in started.line.waiting:
                # It may be overtaken only if it waits for an adapter or prompt_logprobs.
                reports_prompt = waiting.request.sampling.prompt_logprobs is not None
                capped = reports_prompt and self.config.prompt_logprob_tokens
                may_be_passed = waiting.request.lora or capped
                passed = self._place(waiting.request) < place and not may_be_passed
                require(not passed, f"{new.request_id} overtook {waiting.request_id}")

    def _place(self, request: Request) -> tuple[float, ...]:
        """Return the place that the policy promises; equal places may go in either order."""
        if self.config.policy == "fcfs":
            return (request.arrival,)
        if self.config.ageing_seconds:
            return (request.arrival + self.config.ageing_seconds * request.priority,)
        return (request.priority, request.arrival)

    # who yields

    def _checked_preempt(self, victim: Sequence, reason: str, now: float) -> None:
        """Preempt a sequence; if it is for another owner's share, that owner must hold less."""
        if reason == SHARE:
            self.num_given += 1
            require(
                self._may_yield(victim),
                f"{victim.request_id} yields without need",
            )
        self.num_urgent += reason == PRIORITY
        self._preempt(victim, reason, now)

    def _may_yield(self, victim: Sequence) -> bool:
        lines = self.scheduler.queue.lines.values()
        others = [each for each in lines if each is not victim.line and each.waiting]
        before = (victim.line.rank, self._level_before(victim))
        # Pages are recounted now and then only: an owner holds at least its slots.
        if any((each.rank, len(self._held(each)) / each.weight) < before for each in others):
            return True
        is_over = len(victim.tokens) - victim.num_at_start >= self.config.share_quantum
        return is_over and not before[1] and any(not self._held(each) for each in others)

    # who waits

    def after_step(self, plan: StepPlan, is_disturbed: bool) -> None:
        """Check what every owner has after a step was planned."""
        self._check_turns(is_disturbed)
        in_vain = self.num_urgent > 0 and not plan.opened
        require(not in_vain or is_disturbed, f"{self.num_urgent} sequences yield, and none starts")
        self.num_urgent = 0
        if is_disturbed or not self._is_binding():
            self.num_lacking.clear()
            self.num_slow.clear()
            return
        for line in self.scheduler.queue.lines.values():
            key = (line.name, line.rank)
            if not self._lacks(line, plan):
                del self.num_lacking[key]
                continue
            self.num_lacking[key] += 1
            self.num_checked += 1
            many = self.num_lacking[key]
            require(many <= MOST_STEPS, f"{key} has waited {many} steps for its share")
        self._check_speed(plan)

    def _check_turns(self, is_disturbed: bool) -> None:
        """Require that an owner without a slot gets one soon after another's turn has ended."""
        config, lines = self.config, self.scheduler.queue.lines.values()
        usual = config.fair_share and config.policy == "fcfs" and config.chunked_prefill
        is_usual = usual and not config.max_loras and not self.scheduler.kv.pool.can_fragment
        is_full = not self.scheduler.lifecycle.free_slots
        out = [
            each
            for each in lines
            if each.waiting
            and not (each.num_running or each.rank or self._awaits_prefix(each.waiting[-1]))
        ]
        is_ended = any(
            not each.line.rank
            and len(each.tokens) - each.num_at_start > config.share_quantum
            and each.line.served > min((line.served for line in out), default=0.0) + 1
            for each in self.scheduler.running
        )
        if is_usual and is_full and out and is_ended and not is_disturbed:
            self.num_overdue += 1
            require(self.num_overdue <= MOST_STEPS, "turns have ended, and no other owner has one")
        else:
            self.num_overdue = 0

    def _is_binding(self) -> bool:
        """Return whether an engine of these settings owes each owner its share now."""
        config, num_lines = self.config, len(self.scheduler.queue.lines)
        return (
            num_lines > 1
            and config.fair_share
            and config.policy == "fcfs"
            and config.chunked_prefill
            and not config.max_loras
            and not self.scheduler.kv.pool.can_fragment
            and num_lines <= config.max_num_seqs
            and config.max_num_batched_tokens >= 4 * num_lines * (1 + config.max_drafts)
            and self._has_blocks()
        )

    def _has_blocks(self) -> bool:
        """Return whether the heads, and all that run, fit even when all are at their longest."""
        kv, lines = self.scheduler.kv, self.scheduler.queue.lines.values()
        heads = [line.waiting[-1] for line in lines if line.waiting]
        pages = 0
        for each in [*self.scheduler.running, *heads]:
            encoder = each.request.encoder
            num_encoded = 0 if encoder is None else encoder.num_positions
            pages += kv.peak_pages(each.max_total, num_encoded)
        spare = int(self.config.watermark * self.config.num_blocks)
        return pages + spare < self.config.num_blocks

    def _lacks(self, line: Line, plan: StepPlan) -> bool:
        """Return whether a line waits although another one yields less than it would get."""
        if not line.waiting or self._awaits_prefix(line.waiting[-1]):
            return False
        if not (line.rank or self._held(line)) and self.scheduler.lifecycle.free_slots:
            return True  # not even its first sequence has begun
        if self.config.bounds_step_time and self._held(line):
            return False  # its prompts wait for the time of a step, as those of all others do
        if self._takes_part(line, plan):
            return False  # its prompts that were begun earlier get all that it has of the step
        if line.rank and self._is_used_up(plan):
            return False  # clients leave background work nothing to begin with
        mine = (line.rank, self._level(line, self._held(line)))
        others = [each for each in self.scheduler.running if each.line is not line]
        return any(mine < (each.line.rank, self._level_before(each)) for each in others)

    def _part_of(self, line: Line, plan: StepPlan) -> int:
        """Return how many tokens of a step are owed to the prompts of a line of clients."""
        config, lines = self.config, self.scheduler.queue.lines
        weight = sum(each.weight for each in lines.values() if not each.rank)
        # Each decodes a token at least, and all that are forced.
        num_decoding = sum(
            max(1, plan.counts[plan.slots.index(each.slot)] if each.slot in plan.slots else 1)
            for each in self.scheduler.running
            if not each.catching_up
        )
        budget = config.max_num_batched_tokens
        left = max(budget - num_decoding, budget // len(lines))
        left -= sum(not each.rank for each in lines.values()) * (1 + config.max_drafts)
        part = int(left * line.weight / weight)
        if config.bounds_step_time:  # the room for prompts may be a block, in parts
            weighted = int(config.block_size * line.weight / weight)
            part = min(part, max(1, min(config.block_size // len(lines), weighted)))
        return part

    def _awaits_prefix(self, head: Sequence) -> bool:
        """Return whether a head may wait for what another computes of the same prompt."""
        size = self.config.block_size
        return self.config.prefix_caching and any(
            each.catching_up and each.tokens[:size] == head.tokens[:size]
            for each in self.scheduler.running
        )

    def _takes_part(self, line: Line, plan: StepPlan) -> bool:
        """Return whether the prompts that a line has begun get all that is owed to it."""
        chunks = dict(zip(plan.slots, plan.counts, strict=True))
        got = dict.fromkeys(self.scheduler.queue.lines.values(), 0)
        for each in self.scheduler.running:
            got[each.line] += chunks.get(each.slot, 0) * each.catching_up
        if not line.rank:
            return got[line] > 0 and got[line] >= self._part_of(line, plan)
        # Background work is owed its part of what clients leave.
        others = [each for each in got if each.rank]
        total, weight = sum(got[each] for each in others), sum(each.weight for each in others)
        has_begun = any(each.catching_up for each in self._held(line))
        return has_begun and got[line] >= int(total * line.weight / weight)

    def _is_used_up(self, plan: StepPlan) -> bool:
        """Return whether the sequences of clients take all of a step, its tokens or its time."""
        if self.config.bounds_step_time and any(
            each.catching_up and not each.line.rank and each.num_planned < each.num_expected
            for each in self.scheduler.running
        ):
            return True  # their prompts lack more than the time of the step has room for
        chunks = dict(zip(plan.slots, plan.counts, strict=True))
        of_clients = (each.slot for each in self.scheduler.running if not each.line.rank)
        taken = sum(chunks.get(slot, 0) for slot in of_clients)
        return taken >= self.config.max_num_batched_tokens

    def _check_speed(self, plan: StepPlan) -> None:
        """Require that each owner's first sequence gets its part of the step, or all it lacks."""
        config, running = self.config, self.scheduler.running
        chunks = dict(zip(plan.slots, plan.counts, strict=True))
        for sequence in running:
            line = sequence.line
            if line.rank or not sequence.catching_up or self._level_before(sequence):
                continue
            part = self._part_of(line, plan)
            part = min(part, config.long_prefill_tokens or part)
            got, name = chunks.get(sequence.slot, 0), sequence.request_id
            if got < part and sequence.num_planned < sequence.num_expected:
                self.num_slow[name] += 1
            many = self.num_slow[name]
            require(many <= MOST_STEPS, f"{name} got {got} tokens, {part} are its part")
