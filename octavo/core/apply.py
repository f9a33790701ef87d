"""The effect of a step's result on all sequences with a chunk in it, and the events it causes."""

from __future__ import annotations

from collections.abc import Sequence as Series

from octavo.core.config import CoreConfig
from octavo.core.kv.manager import KVManager
from octavo.core.lifecycle import Lifecycle
from octavo.core.outcome import (
    Outcome,
    SlotResults,
    append_before_failure,
    append_tokens,
    end_with_prompt,
    failure_reason,
)
from octavo.core.pace.ahead_counts import AheadCounts
from octavo.core.pace.comparison import Comparison
from octavo.core.plan import StepResult
from octavo.core.plan_draft import InFlight
from octavo.core.request import FAILURES, TokenEvent
from octavo.core.sequence import Sequence
from octavo.core.stats import PrefillChunk
from octavo.core.steady.next_plan import SteadyDecode

# The fields after the tokens, in a result that has tokens alone.
_TOKENS_ALONE = StepResult(0, ())[2:]


class ResultRules:
    """The scheduler's second half: `schedule` plans a step, `apply` takes its result."""

    def __init__(
        self,
        config: CoreConfig,
        kv: KVManager,
        lifecycle: Lifecycle,
        steady: SteadyDecode,
        comparison: Comparison,
        ahead: AheadCounts | None = None,
    ) -> None:
        self._max_drafts = config.max_drafts
        self._has_trees = config.max_branches > 0
        self._comparison = comparison
        self._ahead = ahead  # if there is a second model
        self.kv = kv
        self.lifecycle = lifecycle
        self._steady = steady

    def apply(self, result: StepResult, now: float) -> list[TokenEvent]:
        """Apply the result of the oldest step in flight; return what it means for each request."""
        step = self.lifecycle.in_flight.popleft()
        assert result.step == step.plan.step, f"result {result.step} came out of order"
        assert len(result.tokens) == len(step.sequences), "a result must answer every chunk"
        stats, ahead_seconds = self.lifecycle.stats, result.ahead_seconds
        stats.end_step(step.planned_at, now, step.predicted_seconds, ahead_seconds)
        if (
            step.stop_ids is not None
            and result[2:] == _TOKENS_ALONE
            and step.stop_ids.keys().isdisjoint(result.tokens)
        ):
            if self.lifecycle.num_drafting:
                self._learn(step, 0, ahead_seconds)
            return self._append(step.sequences, result.tokens)
        results = SlotResults(result)
        self.lifecycle.offers.clear()
        if result.loaded:
            self.lifecycle.end_loads(result.loaded, now)
        events: list[TokenEvent] = []
        ended = False
        some_draft = self.lifecycle.num_drafting > 0
        extras = results.extras
        new_event = tuple.__new__
        pairs = zip(step.sequences, result.tokens, strict=True)
        for index, (sequence, token) in enumerate(pairs):
            if sequence is None:
                continue
            tokens = sequence.tokens
            known = len(tokens)
            if (
                (extras and sequence.slot in extras)
                or sequence.catching_up
                or sequence.verifying
                or token in sequence.stop_ids
                or known + 1 >= sequence.may_end_at
                or token < 0  # a chunk of forced tokens that was cut
            ):
                event = self._apply_chunk(sequence, index, step, results, now)
                if event is not None:
                    if event.message is not None and (event.tokens or event.payload is not None):
                        before, event = _split_failure(event)
                        events.append(before)
                    events.append(event)
                    ended = ended or event.finish_reason is not None
                continue
            # The common case, one more token of a sequence that decodes, is inlined: this loop
            # is most of what the core does in a busy engine.
            tokens.append(token)
            sequence.num_computed = known
            if known >= sequence.commit_at:
                self.kv.commit(sequence)
            position = known - sequence.num_prompt
            # The same as TokenEvent(request_id, position, (token,)), a third faster.
            fields = (sequence.request_id, position, (token,), None, None, None, None, None, None)
            events.append(new_event(TokenEvent, fields))
        if ended:
            self.lifecycle.remove_finished()
        if some_draft or self._ahead is not None:
            self._learn(step, sum(results.accepted.values()), ahead_seconds)
        return events

    def _learn(self, step: InFlight, num_accepted: int, ahead_seconds: float) -> None:
        """Add a step to what is known of the times of steps with drafts, and without."""
        seconds = self.lifecycle.stats.own_seconds(1)
        if step.is_alike:
            self._comparison.add_alike(step.plan, seconds)
        elif self._ahead is not None:
            self._ahead.learn(
                step.plan, num_accepted, seconds, ahead_seconds, is_usual=step.is_usual
            )
        else:
            self._comparison.learn(step.plan, num_accepted, seconds, is_usual=step.is_usual)

    def _append(
        self, sequences: Series[Sequence | None], tokens: tuple[int, ...]
    ) -> list[TokenEvent]:
        """Append a token to each sequence of a step in which that is all."""
        events = []
        new_event = tuple.__new__
        for sequence, token in zip(sequences, tokens, strict=True):
            assert sequence is not None
            known = len(sequence.tokens)
            sequence.tokens.append(token)
            sequence.num_computed = known
            if known >= sequence.commit_at:
                self.kv.commit(sequence)
            position = known - sequence.num_prompt
            fields = (sequence.request_id, position, (token,), None, None, None, None, None, None)
            events.append(new_event(TokenEvent, fields))
        return events

    def _apply_chunk(
        self, sequence: Sequence, index: int, step: InFlight, results: SlotResults, now: float
    ) -> TokenEvent | None:
        """Apply one chunk's result in the general case."""
        plan = step.plan
        slot = plan.slots[index]
        error = results.errors.get(slot)
        num_accepted = results.accepted.get(slot, 0)
        payload = results.payloads.get(slot)
        position = len(sequence.tokens) - sequence.num_prompt
        end = plan.starts[index] + plan.counts[index]
        was_decoding = not sequence.catching_up
        walk = results.walks.get(slot, ())
        if sequence.verifying and not sequence.are_predicted and self._ahead is not None:
            self._ahead.score(sequence, walk[:num_accepted] or range(num_accepted))
        if error is not None:
            reason = failure_reason(is_impossible=slot in results.impossible)
            outcome = append_before_failure(sequence, num_accepted, reason, walk)
        elif plan.samples[index] and sequence.request.sampling.is_about_prompt:
            outcome = end_with_prompt(sequence, end)
        elif plan.samples[index]:
            forced = results.forced.get(slot, ())
            if forced:
                self._steady.forget()
            outcome = append_tokens(sequence, results.tokens[index], num_accepted, forced, walk)
        else:
            outcome = Outcome()
            sequence.num_computed = end
        sequence.sampler_state = results.states.get(slot, sequence.sampler_state)
        if was_decoding:
            self.lifecycle.stats.add_accepted(outcome.num_accepted)
        if outcome.reason in FAILURES:
            return self.lifecycle.finish(
                sequence, outcome, now, position=position, payload=payload, message=error
            )
        # Drafts before a failure may lack their rows, though one of them has ended the text.
        if error is None and sequence.num_computed >= sequence.commit_at:
            self.kv.commit(sequence)
        if not was_decoding:
            chunk = PrefillChunk(plan.starts[index], end, step.planned_at, now)
            sequence.stats.add_chunk(chunk)
            if sequence.followers:
                self.lifecycle.release_followers(sequence, now)
        # A stop string may end the text at any time: so what an answer says of it is sent now.
        stats = None
        if outcome.tokens and sequence.stats.first_token_at is None:
            stats = sequence.stats
            stats.first_token_at = now
        elif sequence.are_predicted:
            stats = sequence.stats
        if outcome.reason is not None:
            return self.lifecycle.finish(sequence, outcome, now, position=position, payload=payload)
        drafts = results.drafts.get(slot, ())
        assert not (drafts and slot in results.forced), "drafts behind forced tokens"
        self._keep_drafts(sequence, drafts, results)
        if not outcome.tokens and payload is None:
            if was_decoding or not sequence.request.reports_prompt:
                return None
            stats = sequence.stats
        return TokenEvent(
            sequence.request_id,
            position,
            outcome.tokens,
            payload=payload,
            stats=stats,
            sampler_state=results.states.get(slot),
        )

    def _keep_drafts(
        self, sequence: Sequence, drafts: tuple[int, ...], results: SlotResults
    ) -> None:
        """Keep drafts of the tokens that follow the newest one, for the next plan.

        Where a step in flight draws the first of them they come too late, and show how probably
        those are right that will come with its result.
        """
        assert len(drafts) <= self._max_drafts, f"{len(drafts)} drafts are too many"
        assert not (drafts and sequence.catching_up), "drafts behind an unknown token"
        assert sequence.may_draft or not drafts, "drafts of a sequence that has none"
        most = sequence.max_total - len(sequence.tokens) - 1
        sequence.tree = sequence.form = None
        sequence.drafts = ()
        if not drafts[:most]:
            return
        chances = results.chances.get(sequence.slot, ())
        if sequence.in_flight:
            first = chances[0] if chances else 1.0
            either = chances or (1.0,) * len(drafts)
            self.lifecycle.offers.append(tuple([first * chance for chance in either[:most]]))
            return
        self._steady.forget()
        sequence.drafts, sequence.chances = drafts[:most], chances
        sequence.tree = results.trees.get(sequence.slot)
        assert sequence.tree is None or self._has_trees, "a tree of drafts, and none may be"
        sequence.are_predicted = sequence.slot in results.predicted


def _split_failure(event: TokenEvent) -> tuple[TokenEvent, TokenEvent]:
    """Return what preceded a failure in its step, and the failure, as two events.

    Without speculation they would come from different steps. The message may be all that a user
    gets of the event of a failure, and a stop string among the tokens may end the text before it.
    """
    position = event.position + len(event.tokens)
    before = TokenEvent(event.request_id, event.position, event.tokens, payload=event.payload)
    return before, event._replace(position=position, tokens=(), payload=None)
