"""The effect of a step's result on one sequence: the tokens it gains, and whether they end it.

With drafts d1..dn in flight, of which the workers accepted the first k, tokens and counters
move like this (f is the token sampled after the last accepted draft):

    before the result   tokens … t            num_planned covers t d1 … dn
    after the result    tokens … t d1 … dk f  num_planned covers t d1 … dk: n-k fewer

so every known token but the newest is computed again. If one of the accepted tokens ends the
sequence, those after it are cut off.

If the draw after the last accepted draft failed, there is no f. The drafts come first all the same:
without speculation, they would have been drawn one by one before the failure. If one of them ends
the sequence, the failed row was beyond its end, and there is no error.

Forced tokens follow the sampled one. They are known, but have not been computed: the next chunks of
the sequence do that, as those of a prompt.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from octavo.core.plan import StepResult
from octavo.core.request import FinishReason
from octavo.core.sequence import Sequence
from octavo.core.stopping.repetition import RepetitionDetectionParams, ends_in_repetition


class Outcome(NamedTuple):
    """The tokens that a sequence gained, and how they ended it if they did."""

    tokens: tuple[int, ...] = ()
    reason: FinishReason | None = None
    stop_token: int | None = None
    num_accepted: int = 0  # tokens that were drafts


class SlotResults:
    """A step's result with its sparse parts indexed by slot."""

    __slots__ = (
        "accepted",
        "chances",
        "drafts",
        "errors",
        "extras",
        "forced",
        "impossible",
        "payloads",
        "predicted",
        "states",
        "tokens",
        "trees",
        "walks",
    )

    def __init__(self, result: StepResult) -> None:
        self.tokens = result.tokens
        self.accepted = dict(result.accepted)
        self.drafts = dict(result.drafts)
        self.payloads = dict(result.payloads)
        self.errors = dict(result.errors)
        self.forced = dict(result.forced)
        self.impossible = result.impossible
        self.chances = dict(result.chances)  # only slots with drafts have any
        self.predicted = result.predicted
        self.trees = dict(result.trees)
        self.walks = dict(result.walks)
        self.states = dict(result.states)
        # Slots whose result is more than a token.
        self.extras = {**self.accepted, **self.drafts, **self.payloads, **self.errors}
        if self.forced:
            self.extras |= self.forced
        if self.states:
            self.extras |= self.states


def append_tokens(
    sequence: Sequence,
    token: int,
    num_accepted: int,
    forced: tuple[int, ...] = (),
    walk: tuple[int, ...] = (),
) -> Outcome:
    """Append the accepted drafts, the sampled token and those forced by it; move the counters."""
    assert token >= 0, f"slot {sequence.slot} should have sampled a token"
    is_last = sequence.num_expected == len(sequence.tokens) + 1
    assert is_last or not forced, "forced tokens before a token in flight"
    outcome = _append(sequence, num_accepted, (token, *forced), walk)
    sequence.stats.num_prefills += sequence.catching_up
    sequence.catching_up = False
    return outcome


def end_with_prompt(sequence: Sequence, end: int) -> Outcome:
    """End a sequence that is about its prompt alone; the last chunk ends at `end`."""
    sequence.num_computed = end
    sequence.catching_up = False
    return Outcome((), "stop")


def failure_reason(*, is_impossible: bool) -> FinishReason:
    """Return the finish reason of a sequence that failed."""
    return "impossible" if is_impossible else "error"


def append_before_failure(
    sequence: Sequence,
    num_accepted: int,
    failure: FinishReason = "error",
    walk: tuple[int, ...] = (),
) -> Outcome:
    """Append the drafts accepted before the draw that failed; the error ends what they do not."""
    if not num_accepted:
        return Outcome((), failure)
    outcome = _append(sequence, num_accepted, (), walk)
    return outcome if outcome.reason is not None else outcome._replace(reason=failure)


def _append(
    sequence: Sequence, num_accepted: int, sampled: tuple[int, ...], walk: tuple[int, ...]
) -> Outcome:
    """Append accepted drafts and what was sampled after them, up to the end."""
    accepted, num_sent = _accepted(sequence, num_accepted, walk), len(sequence.verifying)
    known = len(sequence.tokens)
    outcome = _until_end(sequence, (*accepted, *sampled))
    if num_accepted:
        outcome = outcome._replace(num_accepted=min(num_accepted, len(outcome.tokens)))
    sequence.tokens.extend(outcome.tokens)
    num_forced = max(0, len(outcome.tokens) - num_accepted - 1)
    sequence.num_computed = known + len(outcome.tokens) - num_forced - 1
    sequence.num_expected += num_accepted + num_forced
    sequence.num_planned -= num_sent - num_accepted
    sequence.stats.num_forced_tokens += num_forced
    if num_sent:
        sequence.stats.add_drafts(
            num_sent,
            outcome.num_accepted,
            num_branched=sequence.num_branched,
            are_predicted=sequence.are_predicted,
        )
    sequence.verifying = ()
    sequence.side = ()
    return outcome


def _accepted(sequence: Sequence, num_accepted: int, walk: tuple[int, ...]) -> tuple[int, ...]:
    """Return the drafts that a step has accepted: the first ones, or those of a walk."""
    drafts = sequence.verifying
    if walk:
        assert len(walk) >= num_accepted, "more drafts accepted than a walk has"
        drafts = (*drafts, *[token for _, tokens in sequence.side for token in tokens])
        return tuple([drafts[number] for number in walk[:num_accepted]])
    assert 0 <= num_accepted <= len(drafts), "more drafts accepted than were sent"
    return drafts[:num_accepted]


def _until_end(sequence: Sequence, tokens: tuple[int, ...]) -> Outcome:
    """Cut off the tokens after the first one that ends the sequence."""
    sampling = sequence.request.sampling
    asked = sampling.repetition_detection
    known = len(sequence.tokens)
    for count, token in enumerate(tokens, 1):
        num_output = known + count - sequence.num_prompt
        if token in sequence.stop_ids and num_output >= sampling.min_tokens:
            named = token if token in sampling.stop_token_ids else None
            return Outcome(tokens[:count], "stop", named)
        if known + count >= sequence.max_total:
            return Outcome(tokens[:count], "length")
        if (
            asked is not None
            and num_output >= sampling.min_tokens
            and ends_in_repetition(_latest(sequence, tokens[:count], asked), asked)
        ):
            return Outcome(tokens[:count], "repetition")
    return Outcome(tokens)


def _latest(
    sequence: Sequence, new: tuple[int, ...], asked: RepetitionDetectionParams
) -> array[int]:
    """Return the end of the output with new tokens, as long as a repetition may be."""
    first = max(sequence.num_prompt, len(sequence.tokens) + len(new) - asked.span)
    latest = sequence.tokens[first:]
    latest.extend(new)
    return latest
