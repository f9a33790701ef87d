"""The effect of a result on one sequence: tokens, counters and its end."""

from array import array
from typing import Any

import pytest

from octavo.core.outcome import Outcome, SlotResults, append_before_failure, append_tokens
from octavo.core.plan import StepResult
from octavo.core.sequence import Sequence
from octavo.core.stopping.repetition import RepetitionDetectionParams
from tests.core.make import a_line, request


def sampling(prompt: int = 5, drafts: tuple[int, ...] = (), **fields: Any) -> Sequence:
    """Return a sequence whose whole prompt and some drafts are in flight."""
    fields.setdefault("eos_token_ids", (90,))
    made = request("a", prompt, **fields)
    one = Sequence(made, (0, 0.0, 0), made.max_total, 0.0, a_line())
    one.verifying = drafts
    one.num_planned = prompt + len(drafts)
    one.num_expected = prompt + 1
    return one


def counters(one: Sequence) -> tuple[int, int, int]:
    """Return the numbers of computed, planned and expected tokens."""
    return one.num_computed, one.num_planned, one.num_expected


def test_after_a_sample_every_token_but_the_newest_is_computed() -> None:
    one = sampling(5)
    assert append_tokens(one, 7, 0) == Outcome((7,))
    assert list(one.tokens)[5:] == [7]
    assert counters(one) == (5, 5, 6)
    assert not one.catching_up


@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
def test_accepted_drafts_are_appended_and_rejected_ones_leave_the_plan(accepted: int) -> None:
    one = sampling(5, drafts=(1, 2, 3))
    assert append_tokens(one, 7, accepted).tokens == (*(1, 2, 3)[:accepted], 7)
    assert counters(one) == (5 + accepted, 5 + accepted, 6 + accepted)
    assert one.verifying == ()
    assert one.stats.num_accepted_drafts == accepted


@pytest.mark.parametrize("accepted", [0, 2])
def test_forced_tokens_are_known_and_still_to_be_computed(accepted: int) -> None:
    one = sampling(5, drafts=(1, 2, 3))
    assert append_tokens(one, 7, accepted, (8, 9)).tokens == (*(1, 2)[:accepted], 7, 8, 9)
    assert counters(one) == (5 + accepted, 5 + accepted, 8 + accepted)
    assert (one.stats.num_accepted_drafts, one.stats.num_forced_tokens) == (accepted, 2)


def test_forced_tokens_end_a_sequence_as_drawn_ones_do() -> None:
    one = sampling(max_tokens=3)
    assert append_tokens(one, 7, 0, (8, 9, 10)) == Outcome((7, 8, 9), "length")
    one = sampling()
    assert append_tokens(one, 7, 0, (8, 90, 9)) == Outcome((7, 8, 90), "stop")
    assert one.stats.num_forced_tokens == 2


def test_a_sequence_ends_at_its_last_token() -> None:
    assert append_tokens(sampling(max_tokens=1), 7, 0) == Outcome((7,), "length")
    one = sampling(drafts=(1, 2), max_tokens=2)
    assert append_tokens(one, 7, 2) == Outcome((1, 2), "length", num_accepted=2)


def test_a_stop_token_ends_a_sequence_and_is_reported_unless_it_is_eos() -> None:
    fields: dict[str, Any] = {"stop_token_ids": (80,), "eos_token_ids": (90,)}
    assert append_tokens(sampling(**fields), 80, 0) == Outcome((80,), "stop", 80)
    assert append_tokens(sampling(**fields), 90, 0) == Outcome((90,), "stop", None)
    assert append_tokens(sampling(**fields, ignore_eos=True), 90, 0) == Outcome((90,))


def test_a_stop_token_among_the_drafts_cuts_off_the_rest() -> None:
    one = sampling(drafts=(1, 90, 3))
    assert append_tokens(one, 7, 3) == Outcome((1, 90), "stop", num_accepted=2)
    assert list(one.tokens)[5:] == [1, 90]
    assert one.num_computed == 6
    assert one.stats.num_accepted_drafts == 2


def test_drafts_accepted_before_a_failure_come_before_the_error() -> None:
    one = sampling(drafts=(1, 2, 3))
    assert append_before_failure(one, 2) == Outcome((1, 2), "error", num_accepted=2)
    assert list(one.tokens)[5:] == [1, 2]
    assert append_before_failure(sampling(drafts=(1, 2)), 0) == Outcome((), "error")
    assert append_before_failure(sampling(), 0) == Outcome((), "error")


def test_a_failure_behind_the_end_is_none() -> None:
    one = sampling(drafts=(1, 90, 3), stop_token_ids=(90,))
    assert append_before_failure(one, 3) == Outcome((1, 90), "stop", 90, num_accepted=2)
    one = sampling(drafts=(1, 2), max_tokens=2)
    assert append_before_failure(one, 2) == Outcome((1, 2), "length", num_accepted=2)


def test_nothing_stops_a_sequence_before_min_tokens() -> None:
    assert append_tokens(sampling(min_tokens=2), 90, 0) == Outcome((90,))
    drafted = sampling(min_tokens=2, drafts=(90,))
    assert append_tokens(drafted, 90, 1) == Outcome((90, 90), "stop", num_accepted=1)
    resumed = sampling(min_tokens=2, emitted=[1])
    assert append_tokens(resumed, 90, 0) == Outcome((90,), "stop"), "emitted tokens count"


REPEATED = RepetitionDetectionParams(max_pattern_size=2, min_count=3)


def test_a_pattern_that_stands_often_enough_at_the_end_ends_a_sequence() -> None:
    fields: dict[str, Any] = {"repetition_detection": REPEATED, "max_tokens": 50}
    resumed = sampling(emitted=[9, 1, 2, 1, 2, 1], **fields)
    assert append_tokens(resumed, 2, 0) == Outcome((2,), "repetition"), "emitted tokens count"
    assert append_tokens(sampling(emitted=[9, 1, 2, 1, 2, 1], **fields), 3, 0) == Outcome((3,))
    begun = sampling(emitted=[104], **fields)
    assert begun.tokens[-2:] == array("i", [104, 104])
    assert append_tokens(begun, 104, 0) == Outcome((104,)), "the prompt does not count"


def test_a_repetition_among_drafts_cuts_off_the_rest() -> None:
    fields: dict[str, Any] = {"repetition_detection": REPEATED, "max_tokens": 50}
    one = sampling(drafts=(7, 7, 7, 7), **fields)
    assert append_tokens(one, 8, 4) == Outcome((7, 7, 7), "repetition", num_accepted=3)
    late = sampling(drafts=(7, 7, 7, 7), min_tokens=5, **fields)
    assert append_tokens(late, 7, 4) == Outcome((7,) * 5, "repetition", num_accepted=4)
    last = sampling(drafts=(7, 7, 7), max_tokens=3, repetition_detection=REPEATED)
    assert append_tokens(last, 8, 3) == Outcome((7, 7, 7), "length", num_accepted=3)
    stopped = sampling(drafts=(7, 7), stop_token_ids=(7,), min_tokens=3, **fields)
    assert append_tokens(stopped, 7, 2) == Outcome((7, 7, 7), "stop", 7, num_accepted=2)


def test_a_wrong_result_of_a_worker_is_detected() -> None:
    with pytest.raises(AssertionError, match="should have sampled a token"):
        append_tokens(sampling(), -1, 0)
    for wrong in (-1, 2):
        with pytest.raises(AssertionError, match="more drafts accepted than were sent"):
            append_tokens(sampling(drafts=(1,)), 7, wrong)


@pytest.mark.parametrize(
    "part",
    ["accepted", "drafts", "payloads", "errors", "forced", "states"],
    ids=lambda part: f"with {part}",
)
def test_slots_with_more_than_a_token_are_known(part: str) -> None:
    assert not SlotResults(StepResult(1, (7,))).extras
    parts: dict[str, Any] = {part: ((0, 1),)}
    results = SlotResults(StepResult(1, (7,), **parts))
    assert 0 in results.extras
    assert getattr(results, part) == {0: 1}
