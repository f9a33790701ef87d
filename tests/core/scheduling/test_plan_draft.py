"""Plan drafts and plans in flight."""

from octavo.core.plan_draft import InFlight, PlanDraft
from octavo.core.sequence import Sequence
from tests.core.make import a_line, request


def sequence(request_id: str, slot: int, prompt: int = 5) -> Sequence:
    """Return a sequence in a slot, with nothing computed."""
    made = Sequence(request(request_id, prompt), (0, 0.0, slot), prompt + 16, 0.0, a_line())
    made.slot = slot
    return made


def test_a_chunk_that_reaches_the_last_expected_token_samples() -> None:
    draft, one = PlanDraft(), sequence("a", 0)
    draft.add_chunk(one, 3)
    assert (one.num_planned, one.num_expected) == (3, 5)
    draft.add_chunk(one, 2)
    assert (one.num_planned, one.num_expected) == (5, 6)
    assert (draft.starts, draft.counts, draft.samples) == ([0, 3], [3, 2], [False, True])
    assert draft.num_prefill_tokens == 5


def test_decoding_is_not_counted_as_prefill() -> None:
    draft, one = PlanDraft(), sequence("a", 0)
    one.catching_up = False
    draft.add_chunk(one, 5)
    assert draft.num_prefill_tokens == 0


def test_drafts_follow_the_last_expected_token() -> None:
    """Drafts that do not fit into the chunk are given up, not kept for later."""
    draft, one = PlanDraft(), sequence("a", 2)
    one.drafts = (7, 8, 9)
    draft.add_chunk(one, 7)
    assert one.verifying == (7, 8)
    assert not one.drafts
    assert one.num_planned == 7
    assert draft.drafts == [(2, (7, 8))]


def test_drafts_without_room_in_the_chunk_are_not_in_the_plan() -> None:
    draft, one = PlanDraft(), sequence("a", 2)
    one.drafts = (7, 8, 9)
    draft.add_chunk(one, 5)
    assert one.verifying + one.drafts == ()
    assert draft.drafts == []


def test_drafts_are_kept_while_the_chunk_does_not_reach_them() -> None:
    draft, one = PlanDraft(), sequence("a", 2)
    one.drafts = (7,)
    draft.add_chunk(one, 4)
    assert one.drafts == (7,)
    assert one.verifying == ()
    assert draft.drafts == []


def test_a_finished_draft_is_a_plan_of_parallel_tuples() -> None:
    draft = PlanDraft()
    draft.add_chunk(sequence("a", 4), 5)
    draft.add_chunk(sequence("b", 1), 2)
    plan = draft.finish(9, (4, 3))
    assert (plan.step, plan.freed) == (9, (4, 3))
    assert (plan.slots, plan.starts, plan.counts) == ((4, 1), (0, 0), (5, 2))
    assert plan.samples == (True, False)


def test_a_dropped_chunk_has_no_sequence() -> None:
    draft, one, other = PlanDraft(), sequence("a", 0), sequence("b", 1)
    draft.add_chunk(one, 5)
    draft.add_chunk(other, 5)
    step = InFlight(draft.finish(1, ()), draft.sequences, 3.0)
    step.drop(sequence("c", 2))
    assert step.sequences == [one, other]
    step.drop(one)
    assert step.sequences == [None, other]
    assert step.plan.slots == (0, 1)


def test_blocks_are_appended_to_those_that_a_slot_gets_anyway() -> None:
    draft = PlanDraft()
    draft.new_blocks = [(1, ((4,), (5,))), (2, ((6,), ()))]
    draft.add_blocks(2, ((7,), (8,)))
    draft.add_blocks(3, ((9,), (10,)))
    assert draft.new_blocks == [(1, ((4,), (5,))), (2, ((6, 7), (8,))), (3, ((9,), (10,)))]
