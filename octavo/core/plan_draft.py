"""A plan while the scheduler collects its parts, and a plan in flight with its chunks' owners."""

from __future__ import annotations

from octavo.core.plan import BlockTransfer, Branch, NewSlot, StepPlan
from octavo.core.sequence import Sequence
from octavo.core.trees.form import DraftTree


class InFlight:
    """A plan that the workers have, and the sequence of each chunk; None for a dropped chunk."""

    __slots__ = (
        "_index_of_slot",
        "is_usual",
        "plan",
        "planned_at",
        "predicted_seconds",
        "sequences",
        "stop_ids",
    )

    def __init__(
        self,
        plan: StepPlan,
        sequences: list[Sequence | None],
        planned_at: float,
        predicted_seconds: float = 0.0,
        stop_ids: dict[int, None] | None = None,
        is_usual: bool = True,
    ) -> None:
        self.plan = plan
        self.sequences = sequences
        self.planned_at = planned_at
        self.predicted_seconds = predicted_seconds  # 0: nothing had to be predicted
        # If each chunk adds a token to its sequence, and only some tokens end one: those tokens.
        # None: that is not known.
        self.stop_ids = stop_ids
        # It was made as early as steps without drafts are: with as many in flight before it.
        self.is_usual = is_usual
        self._index_of_slot: dict[int, int] | None = None  # made at the first drop

    @property
    def is_alike(self) -> bool:
        """True if it was made at the usual time, and its chunks are a token of each sequence."""
        plan = self.plan
        is_plain = not (plan.drafts or plan.ahead) and False not in plan.samples
        return self.is_usual and is_plain and plan.num_tokens == len(plan.slots)

    def drop(self, sequence: Sequence) -> None:
        """Ignore the result of this sequence's chunk, if the plan has one."""
        if self._index_of_slot is None:
            self._index_of_slot = {slot: index for index, slot in enumerate(self.plan.slots)}
        index = self._index_of_slot.get(sequence.slot)
        if index is not None and self.sequences[index] is sequence:
            self.sequences[index] = None
            self.stop_ids = None


class PlanDraft:
    """The parts of a plan while the scheduler collects them."""

    __slots__ = (
        "ahead",
        "ahead_trees",
        "branches",
        "copies",
        "counts",
        "drafts",
        "new_blocks",
        "num_deferred_tokens",
        "num_pooled_tokens",
        "num_prefill_pairs",
        "num_prefill_tokens",
        "opened",
        "predicted_seconds",
        "preempted",
        "prefill_starts",
        "samples",
        "sequences",
        "starts",
    )

    def __init__(self) -> None:
        self.sequences: list[Sequence | None] = []
        self.starts: list[int] = []
        self.counts: list[int] = []
        self.samples: list[bool] = []
        self.opened: list[NewSlot] = []
        self.copies: list[tuple[int, int, int]] = []
        self.new_blocks: list[tuple[int, tuple[tuple[int, ...], ...]]] = []
        self.drafts: list[tuple[int, tuple[int, ...]]] = []
        self.branches: list[Branch] = []
        self.ahead: list[tuple[int, tuple[float, ...]]] = []
        self.ahead_trees: list[tuple[int, DraftTree]] = []
        self.num_prefill_tokens = 0
        self.prefill_starts = 0  # the sum of their chunks' starts
        self.num_prefill_pairs = 0  # see `StepStats`
        self.num_pooled_tokens = 0
        self.num_deferred_tokens = 0  # left out to bound the step's time
        self.predicted_seconds = 0.0
        self.preempted: list[Sequence] = []

    def add_chunk(self, sequence: Sequence, count: int) -> None:
        """Plan the next `count` positions of a sequence whose tables cover them."""
        start = sequence.num_planned
        end = start + count
        expected = sequence.num_expected
        samples = end >= expected
        if samples:
            sequence.num_expected = expected + 1
            if sequence.drafts:
                sequence.verifying = sequence.drafts[: end - expected]
                if len(sequence.verifying) < len(sequence.drafts):
                    sequence.side = ()  # what they follow may be left out
                sequence.drafts = ()
                if sequence.verifying:
                    self.drafts.append((sequence.slot, sequence.verifying))
        if sequence.catching_up:
            self.num_prefill_tokens += count
            self.prefill_starts += start
            self.num_prefill_pairs += count * start + count * (count + 1) // 2
            if sequence.request.sampling.pooling is not None:
                self.num_pooled_tokens += count
        sequence.num_planned = end
        self.sequences.append(sequence)
        self.starts.append(start)
        self.counts.append(count)
        self.samples.append(samples)

    def add_blocks(self, slot: int, blocks: tuple[tuple[int, ...], ...]) -> None:
        """Append blocks to a slot's tables, for which the plan may have some already."""
        for index, (other, before) in enumerate(self.new_blocks):
            if other == slot:
                both = tuple([(*a, *b) for a, b in zip(before, blocks, strict=True)])
                self.new_blocks[index] = slot, both
                return
        self.new_blocks.append((slot, blocks))

    def finish(
        self,
        step: int,
        freed: tuple[int, ...],
        loads: tuple[BlockTransfer, ...] = (),
        saves: tuple[BlockTransfer, ...] = (),
        *,
        forgets: bool = False,
    ) -> StepPlan:
        """Return the plan as it goes to the workers."""
        slots = tuple([sequence.slot for sequence in self.sequences if sequence is not None])
        return StepPlan(
            step=step,
            freed=freed,
            opened=tuple(self.opened),
            copies=tuple(self.copies),
            new_blocks=tuple(self.new_blocks),
            slots=slots,
            starts=tuple(self.starts),
            counts=tuple(self.counts),
            samples=tuple(self.samples),
            drafts=tuple(self.drafts),
            loads=loads,
            saves=saves,
            ahead=tuple(self.ahead),
            forgets=forgets,
            branches=tuple(self.branches),
            ahead_trees=tuple(self.ahead_trees),
        )
