"""A plan in the making, and a plan on its way: which sequence each chunk belongs to."""

from __future__ import annotations

from octavo.core.plan import NewSlot, StepPlan
from octavo.core.sequence import Sequence


class InFlight:
    """A plan that workers have, and whose chunks they are; a struck chunk is nobody's."""

    __slots__ = ("_places", "plan", "planned_at", "sequences")

    def __init__(self, plan: StepPlan, sequences: list[Sequence | None], planned_at: float) -> None:
        self.plan = plan
        self.sequences = sequences
        self.planned_at = planned_at
        self._places: dict[int, int] | None = None  # slot → index, once something is struck

    def strike(self, sequence: Sequence) -> None:
        """Let this sequence's chunk, if there is one, belong to nobody."""
        if self._places is None:
            self._places = {slot: index for index, slot in enumerate(self.plan.slots)}
        index = self._places.get(sequence.slot)
        if index is not None and self.sequences[index] is sequence:
            self.sequences[index] = None


class PlanDraft:
    """The parts of a plan while the scheduler collects them."""

    __slots__ = (
        "copies",
        "counts",
        "drafts",
        "new_blocks",
        "num_preempted",
        "num_prefill_tokens",
        "opened",
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
        self.copies: list[tuple[int, int]] = []
        self.new_blocks: list[tuple[int, tuple[tuple[int, ...], ...]]] = []
        self.drafts: list[tuple[int, tuple[int, ...]]] = []
        self.num_prefill_tokens = 0
        self.num_preempted = 0

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
                sequence.drafts = ()
                if sequence.verifying:
                    self.drafts.append((sequence.slot, sequence.verifying))
        if sequence.catching_up:
            self.num_prefill_tokens += count
        sequence.num_planned = end
        self.sequences.append(sequence)
        self.starts.append(start)
        self.counts.append(count)
        self.samples.append(samples)

    def finish(self, step: int, freed: list[int]) -> StepPlan:
        """The plan as it goes to the workers."""
        slots = tuple([sequence.slot for sequence in self.sequences if sequence is not None])
        return StepPlan(
            step=step,
            freed=tuple(freed),
            opened=tuple(self.opened),
            copies=tuple(self.copies),
            new_blocks=tuple(self.new_blocks),
            slots=slots,
            starts=tuple(self.starts),
            counts=tuple(self.counts),
            samples=tuple(self.samples),
            drafts=tuple(self.drafts),
        )
