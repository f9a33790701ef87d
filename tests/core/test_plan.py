"""The messages between the core and the workers."""

from array import array

import pytest

from octavo.core.plan import NO_TOKEN, StepPlan, StepResult
from tests.core.make import Rig, tokens


def test_a_plan_counts_its_tokens() -> None:
    plan = StepPlan(1, (), (), (), (), (0, 2), (0, 7), (5, 1), (False, True), ())
    assert plan.num_tokens == 6


def test_messages_are_immutable() -> None:
    with pytest.raises(AttributeError):
        StepResult(1, ()).step = 2  # type: ignore[misc]


def test_the_sparse_parts_of_a_result_are_empty_by_default() -> None:
    result = StepResult(1, (NO_TOKEN,))
    assert (result.accepted, result.drafts, result.payloads, result.errors) == ((), (), (), ())


def test_a_new_slot_has_its_whole_state_and_a_known_one_only_differences() -> None:
    rig = Rig(block_size=4)
    rig.add("a", 7, max_tokens=3, lora=None)
    first = rig.plan()
    assert first is not None
    (new,) = first.opened
    assert (new.slot, new.request_id, new.num_prompt) == (0, "a", 7)
    assert list(new.tokens) == tokens(7)
    assert [len(table) for table in new.tables] == [2]
    assert first.new_blocks == ()
    rig.land()
    second = rig.plan()
    assert second is not None
    assert (second.opened, second.new_blocks) == ((), ())
    assert (second.slots, second.starts, second.counts, second.samples) == (
        (0,),
        (7,),
        (1,),
        (True,),
    )
    rig.land()
    third = rig.plan()
    assert third is not None
    assert [(slot, len(added[0])) for slot, added in third.new_blocks] == [(0, 1)]


def test_the_tokens_of_a_plan_do_not_change_with_the_sequence() -> None:
    rig = Rig()
    rig.add("a", 3, max_tokens=3)
    plan = rig.plan()
    rig.land()
    assert plan is not None
    assert plan.opened[0].tokens == array("i", tokens(3))
