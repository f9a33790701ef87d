"""The plan in which the sequences of the last one decode one token more each, made from that one.

Most plans of a busy engine are of this kind. To decide again for each sequence what it may compute
takes several times as long, above all where a step has evicted everything from the caches. So the
scheduler asks here first. `Scheduler._plan` defines the right plan: what is made here is equal to
it, which tests/core/scheduling/test_steady.py compares in random worlds.

Nothing that a plan depends on may have changed since the last one, except the counters:

    who runs               `Lifecycle.num_moves`, which counts all that began or ceased to run
    who waits              none, or none can start since all slots are taken; and there is one line
                           in the order of arrival, so that no share and no priority matters
    what each lacks        one token: none catches up, has drafts or knows more tokens than it has
                           computed, and none reaches its end
    transfers              none is to be announced
    stages                 there are none: the next plan has other sequences
    limits                 they let the last plan pass, which had as many tokens: a limiter that
                           clips what decodes may depend on nothing else

A table that must grow is no change, if there is a block for it: `growing` has the sequences whose
tables must, by the number of the plan.
"""

from __future__ import annotations

from octavo.core.config import CoreConfig
from octavo.core.kv.manager import KVManager
from octavo.core.lifecycle import Lifecycle
from octavo.core.plan import StepPlan
from octavo.core.plan_draft import PlanDraft
from octavo.core.sequence import UNLIMITED, Sequence

NewBlocks = list[tuple[int, tuple[tuple[int, ...], ...]]]


class SteadyDecode:
    """The last plan, as far as the next can be made from it."""

    __slots__ = (
        "_block_size",
        "_by_priority",
        "_free_slots",
        "_has_stages",
        "_lifecycle",
        "_lines",
        "_num_left",
        "_num_moves",
        "_plan",
        "_queue",
        "_running",
        "_transfers",
        "growing",
        "num_read",
        "stop_ids",
    )

    def __init__(self, config: CoreConfig, kv: KVManager, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._running = lifecycle.running
        self._queue = lifecycle.queue
        self._lines = lifecycle.queue.lines
        self._free_slots = lifecycle.free_slots
        self._by_priority = config.policy == "priority"
        self._block_size = config.block_size
        self._has_stages = config.num_stages > 1
        self._transfers = kv.transfers
        self._plan: StepPlan | None = None  # None: the next plan cannot be made from the last one
        self._num_moves = -1  # of the lifecycle, when the last plan was made
        # Plans of this kind until one of the sequences must not be planned. Below 0: not known yet.
        self._num_left = 0
        # The sequences whose tables must grow for a plan, in order, by the number of the plan.
        self.growing: dict[int, list[Sequence]] = {}
        self.num_read = 0  # positions before the chunks of the last plan
        # The tokens that end a sequence of the last plan; None if any token may end one.
        self.stop_ids: dict[int, None] | None = None

    def remember(self, plan: StepPlan, draft: PlanDraft) -> None:
        """Keep a plan that the scheduler has made, if the next may be made from it."""
        self._plan = None
        num_chunks = len(plan.slots)
        if (
            not self._has_stages
            and 0 < num_chunks == len(self._running) == plan.num_tokens
            and not draft.num_prefill_tokens
            and False not in plan.samples
        ):
            self._plan = plan
            self._num_moves = self._lifecycle.num_moves
            self._num_left = -1

    def forget(self) -> None:
        """Make the next plan without the last one: what some sequence lacks has changed."""
        self._plan = None

    def continues(self) -> bool:
        """Return whether the next plan can be made here."""
        plan = self._plan
        if (
            plan is None
            or self._num_moves != self._lifecycle.num_moves
            or len(self._lines) != 1
            or (self._queue.num_ready and (self._free_slots or self._by_priority))
            or (self._transfers is not None and self._transfers.are_due)
        ):
            return False
        if self._num_left < 0:
            self._look_ahead(plan)
        return self._num_left > 0

    def _look_ahead(self, last: StepPlan) -> None:
        """Find out which sequences end first, and when the tables of each must grow."""
        running, growing = self._running, dict[int, list[Sequence]]()
        num_left = UNLIMITED
        for each in running:
            num_left = min(num_left, each.max_total - each.num_expected)
            step = last.step + 1 + each.num_capacity - each.num_planned
            growing.setdefault(step, []).append(each)
        self.growing, self._num_left = growing, num_left
        self.num_read = sum(last.starts)
        self.stop_ids = stop_ids = dict[int, None]()
        for each in running:
            stop_ids.update(dict.fromkeys(each.stop_ids))
            if each.may_end_at < each.max_total:  # any token may, not only these
                self.stop_ids = None

    def has_grown(self, step: int, sequences: list[Sequence]) -> None:
        """Note that tables have grown by a block for the plan with this number."""
        self.growing.setdefault(step + self._block_size, []).extend(sequences)

    def next_plan(self, step: int, new_blocks: NewBlocks) -> StepPlan:
        """Make the plan, when the tables have grown; the counters of the sequences move."""
        last = self._plan
        assert last is not None
        starts = []
        for each in self._running:
            starts.append(each.num_planned)
            each.num_planned = expected = each.num_expected
            each.num_expected = expected + 1
        self._num_left -= 1
        if not self._num_left:
            self.stop_ids = None
        self.num_read += len(starts)
        # The same as StepPlan(…), a third faster.
        fields = (
            *(step, (), (), (), tuple(new_blocks), last.slots, tuple(starts), last.counts),
            *(last.samples, (), (), (), (), False, (), ()),
        )
        self._plan = plan = tuple.__new__(StepPlan, fields)
        return plan
