"""A source of drafts and a worker that compute nothing: steps take what a table of costs says.

The right token of each position is fixed, and so is which candidate of a second model it is: the
first, the second and so on with given chances, or none. In place of a second model, a proposer may
send the first candidates, at no cost. So the tokens per second that a rule of the core reaches
follow from the rates and the costs alone.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from octavo.core.plan import NO_TOKEN, StepPlan, StepResult
from octavo.core.scheduler import Scheduler
from octavo.core.trees.form import ROOT, depths_of, path_to, walked
from tests.core.make import KEY, config, request


class Costs(NamedTuple):
    """The seconds of a step, of each row and branch in it, and of a pass of the second model."""

    fixed: float = 0.1
    row: float = 0.005
    branch: float = 0.0
    each_pass: float = 0.015
    candidate: float = 0.0  # of a pass, for each candidate of a place but the first
    more: float = 0.0  # of each row beyond eight, besides

    def plain(self, num_rows: int) -> float:
        """Return the seconds of a step of so many rows."""
        return self.fixed + self.row * num_rows + self.more * max(0, num_rows - 8)


def no_stall(_: int) -> float:
    """Return by what a step takes longer: nothing."""
    return 1.0


@dataclass
class Paced:
    """A scheduler whose steps take what they cost."""

    scheduler: Scheduler
    costs: Costs
    rates: Sequence[float]  # of the right token: to be the first candidate, the second …
    forks: bool
    in_block: bool = False
    stall: Callable[[int], float] = no_stall
    stall_of_passes: Callable[[int], float] = no_stall  # besides
    believed: Sequence[float] = ()  # chances that a proposer gives with its drafts
    now: float = 0.0
    num_steps: int = 0
    num_rows: int = 0  # of drafts
    num_accepted: int = 0

    @classmethod
    def of(cls, costs: Costs, rates: Sequence[float], **settings: Any) -> Paced:
        """Return one with room for long texts."""
        stall = settings.pop("stall", no_stall)
        of_passes = settings.pop("stall_of_passes", no_stall)
        believed = settings.pop("believed", ())
        fields: dict[str, Any] = {
            "max_drafts": 4,
            "max_ahead": 0 if believed else 4,
            "num_blocks": 8000,
            "block_size": 16,
            "max_model_len": 4096,
            "max_num_batched_tokens": 512,
        }
        made = config(**{**fields, **settings})
        scheduler, forks = Scheduler(made, KEY), made.ahead_forks
        in_block = made.ahead_in_block
        return cls(scheduler, costs, rates, forks, in_block, stall, of_passes, believed)

    def rank(self, slot: int, position: int) -> int:
        """Return which candidate the right token of a position is; -1: none."""
        drawn = random.Random(f"{slot} {position}").random()
        for rank, rate in enumerate(self.rates):
            drawn -= rate
            if drawn < 0.0:
                return rank
        return -1

    def run(self, streams: int, num_tokens: int) -> float:
        """Answer requests together; return the tokens per second."""
        for stream in range(streams):
            prompt = [1000 + stream] * 20
            name = f"{self.num_steps} {stream}"
            self.scheduler.add(
                request(name, prompt, max_tokens=num_tokens, ignore_eos=True), self.now
            )
        began = self.now
        in_flight = deque[StepPlan]()
        while self.scheduler.sequences:
            while len(in_flight) < self.scheduler.config.pipeline_depth:
                plan = self.scheduler.schedule(self.now)
                if plan is None:
                    break
                in_flight.append(plan)
            self.scheduler.apply(self._result(in_flight.popleft()), self.now)
        return streams * num_tokens / (self.now - began)

    def _result(self, plan: StepPlan) -> StepResult:
        """Return what a step gives, and let its time go by."""
        costs, stall = self.costs, self.stall(self.num_steps)
        trees = dict(plan.ahead_trees)
        places = [
            len(chances) if slot not in trees else max(depths_of(trees[slot].parents))
            for slot, chances in plan.ahead
        ]
        width = max([1 + max(tree.ranks) for tree in trees.values()], default=1)
        num_passes = max(places, default=0)
        if self.in_block:
            num_passes = min(1, num_passes)
        ahead = num_passes * (costs.each_pass + (width - 1) * costs.candidate) * stall
        ahead *= self.stall_of_passes(self.num_steps)
        seconds = costs.plain(plan.num_tokens) + costs.branch * len(plan.branches)
        self.now += seconds * stall + ahead
        self.num_steps += 1
        main = dict(plan.drafts)
        tokens, accepted, walks, ends = [], [], [], {}
        for slot, start, count, samples in zip(
            plan.slots, plan.starts, plan.counts, plan.samples, strict=True
        ):
            if not samples:
                tokens.append(NO_TOKEN)
                continue
            drafts, parents = [*main.get(slot, ())], [*range(ROOT, len(main.get(slot, ())) - 1)]
            known = start + count - len(drafts)
            for branch in plan.branches:
                if branch.slot == slot:
                    parents += [
                        branch.after,
                        *range(len(drafts), len(drafts) + len(branch.tokens) - 1),
                    ]
                    drafts += branch.tokens
            right = [_right(position) for position in range(known, known + len(drafts))]
            walk = walked(parents, drafts, right)
            self.num_rows += len(drafts)
            self.num_accepted += len(walk)
            if walk:
                accepted.append((slot, len(walk)))
                walks.append((slot, tuple(walk)))
            ends[slot] = known + len(walk)
            tokens.append(_right(ends[slot]))
        proposed = [
            (slot, self._drafts(slot, ends[slot] + 1, len(chances), trees.get(slot)), chances)
            for slot, chances in plan.ahead
            if chances
        ]
        if self.believed:
            for slot, end in ends.items():
                sequence = self.scheduler.lifecycle.slots[slot]
                assert sequence is not None
                most = max(0, sequence.max_total - end - 3)
                chances = tuple(self.believed[:most])
                sent = self._drafts(slot, end + 1, len(chances), None)
                proposed.append((slot, sent, chances))
        return StepResult(
            plan.step,
            tuple(tokens),
            accepted=tuple(accepted),
            walks=tuple(walks),
            drafts=tuple([(slot, drafts) for slot, drafts, _ in proposed]),
            chances=tuple([(slot, chances) for slot, _, chances in proposed]),
            trees=plan.ahead_trees,
            ahead_seconds=ahead,
        )

    def _drafts(self, slot: int, first: int, count: int, tree: Any) -> tuple[int, ...]:
        """Return drafts for the positions from the first on: tokens that are right, or none is."""
        parents = tuple(range(ROOT, count - 1)) if tree is None else tree.parents
        ranks = (0,) * count if tree is None else tree.ranks
        drafts = []
        for number in range(count):
            path = path_to(parents, number)
            position = first + len(path) - 1
            is_right = ranks[number] == self.rank(slot, position) and (
                self.forks
                or all(
                    ranks[each] == self.rank(slot, first + at) for at, each in enumerate(path[:-1])
                )
            )
            drafts.append(_right(position) if is_right else 500 + ranks[number])
        return tuple(drafts)


def _right(position: int) -> int:
    return position % 400
