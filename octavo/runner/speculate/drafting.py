"""Drafts for the slots that have sampled: proposed, checked, and no more than a step has room for.

The core plans running sequences in order of age. Without a bound, the drafts of the older ones
could take up a step's tokens before the younger ones had got theirs. So drafts share what is left
of the step after one token for each open slot. The core sends as many of them as pay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from octavo.backends.base import Ints
from octavo.core.config import CoreConfig
from octavo.core.plan import NewSlot, StepResult
from octavo.runner.speculate.prediction import PredictedTexts, Prediction
from octavo.runner.speculate.proposer import NOTHING, Proposal, Proposer, Turn


class Drafting:
    """The open slots that may get drafts, and where these come from."""

    def __init__(self, proposer: Proposer | None, vocabulary: int, config: CoreConfig) -> None:
        self._proposer = proposer
        self._vocabulary = vocabulary
        self._most = config.max_drafts
        self._budget = config.max_num_batched_tokens
        self._num_open = 0  # slots
        self._drafting: set[int] = set()  # those that may get drafts
        self._texts = PredictedTexts()
        self._predictions: dict[int, Prediction] = {}

    def __contains__(self, slot: int) -> bool:
        return slot in self._drafting

    @property
    def is_used(self) -> bool:
        """True if any open slot may get drafts."""
        return bool(self._drafting)

    def open(self, new: NewSlot) -> None:
        """Begin with a sequence that has got a slot."""
        self._num_open += 1
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
        self._num_open -= 1
        if slot in self._drafting:
            self._drafting.remove(slot)
            self._predictions.pop(slot, None)
            if self._proposer is not None:
                self._proposer.free(slot)

    def add_to(
        self,
        result: StepResult,
        slots: Iterable[int],
        tokens: Callable[[int], Ints],
        allowed: Callable[[int, Proposal], Proposal] | None = None,
    ) -> StepResult:
        """Add drafts for those of these slots that get some; `tokens` has their text.

        `allowed` leaves of a slot's drafts those that its grammar allows.
        """
        sampled = list(slots)
        if not sampled:
            return result
        # Without room the proposer is asked for none, and still sees the new tokens.
        room = max(0, min(self._most, (self._budget - self._num_open) // len(sampled)))
        proposals = self._proposed(sampled, tokens, room)
        drafts, chances, predicted, trees = [], [], [], []
        for slot, proposal in zip(sampled, proposals, strict=True):
            prediction = self._predictions.get(slot)
            if prediction is not None:
                prediction.extend(tokens(slot)[prediction.num_known :].tolist())
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
        return result._replace(
            drafts=tuple(drafts),
            chances=tuple(chances),
            predicted=tuple(predicted),
            trees=tuple(trees),
        )

    def _proposed(
        self, slots: list[int], tokens: Callable[[int], Ints], room: int
    ) -> list[Proposal]:
        """Return what the proposer proposes for each slot, cut to what it may and to the room."""
        proposer = self._proposer
        if proposer is None:
            return [NOTHING] * len(slots)
        most = min(room, proposer.most)
        proposals = proposer.propose([Turn(slot, tokens(slot), most) for slot in slots])
        return [each.first(most) for each in proposals]

    def _num_valid(self, proposal: Sequence[int]) -> int:
        """Return how many drafts there are before the first id that does not exist."""
        for count, token in enumerate(proposal):
            if not 0 <= token < self._vocabulary:
                return count
        return len(proposal)
