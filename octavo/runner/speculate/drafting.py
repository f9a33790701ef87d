"""Drafts for the slots that have sampled: proposed, checked, and no more than a step has room for.

Where the core sends none of them for some steps, proposals are made for some steps only: to look
for one takes as long as a hundredth of a small model's step. The tokens of the steps between are
kept, and read before anything is proposed or a slot is freed.

The core plans running sequences in order of age. Without a bound, the drafts of the older ones
could take up a step's tokens before the younger ones had got theirs. So drafts share what is left
of the step after one token for each open slot. The core sends as many of them as pay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from octavo.core.config import CoreConfig
from octavo.core.plan import NewSlot, StepPlan, StepResult
from octavo.runner.slots import SlotState
from octavo.runner.speculate.prediction import PredictedTexts, Prediction
from octavo.runner.speculate.proposer import NOTHING, Proposal, Proposer, Turn

# After so many steps in a row without drafts, proposals are made for one in so many steps.
NUM_WITHOUT, NUM_BETWEEN = 4, 4


class Drafting:
    """The open slots that may get drafts, and where these come from."""

    def __init__(
        self, proposer: Proposer | None, vocabulary: int, config: CoreConfig, state: SlotState
    ) -> None:
        self._proposer = proposer
        self._state = state
        self._vocabulary = vocabulary
        self._most = config.max_drafts
        self._budget = config.max_num_batched_tokens
        self._num_open = 0  # slots
        self._drafting: set[int] = set()  # those that may get drafts
        self._texts = PredictedTexts()
        self._predictions: dict[int, Prediction] = {}
        self._num_without = 0  # steps in a row without drafts
        # Slots and tokens of the steps that have not been read.
        self._kept: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    @property
    def is_used(self) -> bool:
        """True if any open slot may get drafts."""
        return bool(self._drafting)

    def open(self, new: NewSlot) -> None:
        """Begin with a sequence that has got a slot."""
        self._num_open += 1
        self._num_without = 0
        if not new.may_draft:
            return
        self._drafting.add(new.slot)
        if new.prediction:
            text = self._texts.find(new.prediction)
            if text is not None:
                answer = new.tokens[new.num_prompt :]
                self._predictions[new.slot] = Prediction(text, new.num_prompt, answer)
        if self._proposer is not None:
            self._proposer.open(new)

    def forget(self) -> None:
        """Forget what is kept beyond the requests."""
        if self._proposer is not None:
            self._proposer.forget()

    def free(self, slot: int) -> None:
        """Forget the sequence of this slot."""
        self.read()
        self._num_open -= 1
        if slot in self._drafting:
            self._drafting.remove(slot)
            self._predictions.pop(slot, None)
            if self._proposer is not None:
                self._proposer.free(slot)

    def keeps(self, plan: StepPlan, drawn: tuple[int, ...]) -> bool:
        """Keep the tokens of a step, one for each slot, if nothing is proposed behind it.

        Return whether that is so.
        """
        if plan.drafts or plan.ahead:
            self._num_without = 0
            return False
        self._num_without += 1
        if self._num_without <= NUM_WITHOUT or self._num_without % NUM_BETWEEN == 0:
            return False
        self._kept.append((plan.slots, drawn))
        return True

    def read(self) -> None:
        """Append the tokens that were kept to the known ones of their slots."""
        if not self._kept:
            return
        texts: dict[int, list[int]] = {}
        for slots, drawn in self._kept:
            for slot, token in zip(slots, drawn, strict=True):
                texts.setdefault(slot, []).append(token)
        self._kept.clear()
        for slot, tokens in texts.items():
            if slot in self._drafting:
                self._state.append(slot, tokens)

    def append(
        self,
        slots: Sequence[int],
        drawn: Sequence[Sequence[int]],
        forced: Mapping[int, Sequence[int]],
        lost: frozenset[int],
    ) -> list[int]:
        """Append what a step has drawn and forced to the known tokens of slots that may get drafts.

        Return those that get them now: none that failed, or whose next tokens are known.
        """
        self.read()
        state, drafting = self._state, []
        for slot, tokens in zip(slots, drawn, strict=True):
            if slot not in self._drafting or slot in lost:
                continue
            if slot in forced:
                state.append(slot, tokens[:-1])  # the last is known, as those that it forces
                state.num_known[slot] += 1 + len(forced[slot])
                continue
            state.append(slot, tokens)
            if slot not in state.failures:
                drafting.append(slot)
        return drafting

    def add_to(
        self,
        result: StepResult,
        sampled: list[int],
        allowed: Callable[[int, Proposal], Proposal] | None = None,
        *,
        is_late: bool = False,
    ) -> StepResult:
        """Add drafts for those of these slots that get some.

        `allowed` leaves of a slot's drafts those that its grammar allows. `is_late` says that the
        next step is in flight: then the core may wait for those that are proposed behind that.
        """
        if not sampled:
            return result
        # Without room the proposer is asked for none, and still sees the new tokens.
        room = max(0, min(self._most, (self._budget - self._num_open) // len(sampled)))
        proposals = self._proposed(sampled, room)
        drafts, chances, predicted, trees = [], [], [], []
        for slot, proposal in zip(sampled, proposals, strict=True):
            prediction = self._predictions.get(slot)
            if prediction is not None:
                known = self._state.known(slot)
                prediction.extend(known[prediction.num_known :].tolist())
                own = prediction.draft(room)
                if own.tokens and sum(own.chances) >= sum(proposal.chances):
                    proposal = own
                    predicted.append(slot)
            found = proposal.first(self._num_valid(proposal.tokens))
            if found.tokens and allowed is not None:
                found = allowed(slot, found)
            if found.tokens:
                drafts.append((slot, tuple(found.tokens)))
                if found.chances:
                    chances.append((slot, tuple(found.chances)))
                if found.tree is not None:
                    trees.append((slot, found.tree))
        if not drafts:
            return result
        if is_late:
            self._num_without = min(self._num_without, NUM_WITHOUT - 1)
        return result._replace(
            drafts=tuple(drafts),
            chances=tuple(chances),
            predicted=tuple(predicted),
            trees=tuple(trees),
        )

    def _proposed(self, slots: list[int], room: int) -> list[Proposal]:
        """Return what the proposer proposes for each slot, cut to what it may and to the room."""
        proposer = self._proposer
        if proposer is None:
            return [NOTHING] * len(slots)
        most = min(room, proposer.most)
        proposals = proposer.propose([Turn(slot, self._state.known(slot), most) for slot in slots])
        return [each.first(most) for each in proposals]

    def _num_valid(self, proposal: Sequence[int]) -> int:
        """Return how many drafts there are before the first id that does not exist."""
        for count, token in enumerate(proposal):
            if not 0 <= token < self._vocabulary:
                return count
        return len(proposal)
