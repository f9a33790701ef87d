"""Drafts: tokens that are verified many at a time, and change nothing but the speed."""

from collections.abc import Sequence

import pytest

from tests.core.make import Drafter, Rig, counting, expected_output, scrambled, tokens


def right(count: int) -> Drafter:
    """Return a drafter whose first `count` drafts are right and whose others are wrong."""

    def draft(known: Sequence[int]) -> list[int]:
        following = expected_output(known, 4)
        return [token + (index >= count) for index, token in enumerate(following)]

    return draft


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("num_right", [0, 1, 2, 4])
def test_the_tokens_do_not_depend_on_how_many_drafts_are_right(num_right: int, depth: int) -> None:
    rig = Rig(max_drafts=4, drafter=right(num_right), pipeline_depth=depth)
    rig.add("a", 6, max_tokens=16)
    rig.add("b", tokens(9, 2), max_tokens=11)
    outputs = rig.finish()
    assert outputs == {
        "a": expected_output(tokens(6), 16),
        "b": expected_output(tokens(9, 2), 11),
    }
    timeline = rig.end_of("a").stats
    assert timeline is not None
    assert bool(timeline.num_accepted_drafts) is bool(num_right)


def test_right_drafts_save_steps() -> None:
    rig = Rig(max_drafts=4, drafter=right(4))
    rig.add("a", 6, max_tokens=16)
    rig.finish()
    assert [len(event.tokens) for event in rig.events] == [1, 5, 5, 5]


def test_drafts_do_not_exceed_the_end_of_the_sequence() -> None:
    """Two drafts are verified if 3 tokens are left; the last token is sampled after them."""
    rig = Rig(max_drafts=4, drafter=right(4))
    rig.add("a", 6, max_tokens=4)
    rig.step()
    assert rig.chunks(rig.plan()) == {"a": (6, 3)}
    rig.land()
    assert (rig.outputs()["a"], rig.ends()) == (expected_output(tokens(6), 4), {"a": "length"})


def test_a_stop_token_among_accepted_drafts_cuts_off_the_rest() -> None:
    rig = Rig(
        model=counting,
        max_drafts=4,
        drafter=lambda known: [len(known) + index for index in range(4)],
    )
    rig.add("a", 5, max_tokens=30, stop_token_ids=(8,))
    assert rig.finish() == {"a": [5, 6, 7, 8]}
    assert rig.end_of("a").stop_token == 8
    assert rig.scheduler.kv.pool.num_free == 63


@pytest.mark.parametrize("max_drafts", [0, 1, 4])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("failing_at", [5, 7, 8, 9, 10, 12])
def test_a_failing_draw_gives_what_it_gives_without_drafts(
    failing_at: int, depth: int, max_drafts: int
) -> None:
    """Tokens 5 to 8, which ends it: the draw after 9 known tokens is never wanted."""
    rig = Rig(
        model=counting,
        max_drafts=max_drafts,
        drafter=lambda known: [len(known) + index for index in range(4)],
        pipeline_depth=depth,
    )
    rig.worker.failing_at["a"] = failing_at
    rig.worker.impossible.update("a" if depth == 1 else "")
    rig.add("a", 5, max_tokens=30, stop_token_ids=(8,))
    has_failed = failing_at < 9
    failure = "impossible" if depth == 1 else "error"
    assert rig.finish() == {"a": [5, 6, 7, 8][: failing_at - 5]}
    last = rig.end_of("a")
    assert last.finish_reason == (failure if has_failed else "stop")
    assert last.message == ("not a number" if has_failed else None)
    assert last.stop_token == (None if has_failed else 8)
    assert rig.scheduler.kv.pool.num_free == 63


@pytest.mark.parametrize("failing_at", [99, 9, 8])
def test_drafts_cut_off_behind_the_end_count_nowhere_as_accepted(failing_at: int) -> None:
    """The second step's tokens are drafts: 6, 7 and 8, of which 8 ends the text."""
    rig = Rig(
        model=counting,
        max_drafts=4,
        drafter=lambda known: [len(known) + index for index in range(4)],
    )
    rig.worker.failing_at["a"] = failing_at
    rig.add("a", 5, max_tokens=30, stop_token_ids=(8,))
    rig.finish()
    known, totals = rig.end_of("a").stats, rig.scheduler.stats
    assert known is not None
    num_accepted = min(failing_at - 6, 3)
    assert known.num_accepted_drafts == totals.num_accepted_drafts == num_accepted
    assert totals.accepted_at == [1] * num_accepted
    assert known.num_decode_steps == 1


@pytest.mark.parametrize(("failing_at", "num_cached"), [(99, 8), (9, 4)])
def test_what_a_failed_draw_leaves_in_blocks_is_not_shared(
    failing_at: int, num_cached: int
) -> None:
    """A worker may leave the rows of drafts where only its draws would have sorted them."""
    rig = Rig(model=counting, max_drafts=3, drafter=lambda known: [6, 7, 8])
    rig.worker.failing_at["a"] = failing_at
    rig.add("a", tokens(5), max_tokens=30, stop_token_ids=(8,))
    assert rig.finish() == {"a": [5, 6, 7, 8]}
    rig.add("b", [*tokens(5), 5, 6, 7, 8], max_tokens=1)
    rig.finish()
    known = rig.end_of("b").stats
    assert known is not None
    assert known.num_cached_tokens == num_cached


def test_drafts_count_against_the_budget() -> None:
    rig = Rig(max_drafts=4, drafter=right(4), max_num_batched_tokens=7)
    rig.add("a", 3, max_tokens=16)
    rig.add("b", tokens(3, 2), max_tokens=16)
    rig.step()
    plan = rig.plan()
    assert rig.chunks(plan) == {"a": (3, 5), "b": (3, 2)}
    assert plan is not None
    assert [len(drafts) for _, drafts in plan.drafts] == [4, 1]
    rig.land()
    assert rig.finish()["b"] == expected_output(tokens(3, 2), 16)


@pytest.mark.parametrize("num_right", [0, 4])
@pytest.mark.parametrize("length", [3, 40])
@pytest.mark.parametrize("depth", [1, 2])
def test_drafts_leave_tokens_to_a_request_that_waits(
    depth: int, length: int, num_right: int
) -> None:
    """Eight requests could use all 40 tokens of a step; the 32 beside theirs are shared."""
    rig = Rig(
        max_drafts=4,
        drafter=right(num_right),
        max_num_batched_tokens=40,
        max_num_seqs=9,
        num_blocks=400,
        pipeline_depth=depth,
    )
    for number in range(8):
        rig.add(f"old{number}", tokens(3, number), max_tokens=300)
    while len(rig.outputs()) < 8:
        rig.step()
    rig.add("new", tokens(length, 9), max_tokens=5)
    num_planned = len(rig.plans)
    while "new" not in rig.outputs():
        rig.step()
    assert len(rig.plans) - num_planned <= 2 * depth + 2
    assert any(plan.drafts for plan in rig.plans[num_planned:])


def test_every_running_sequence_gets_a_token_before_the_drafts_of_others() -> None:
    rig = Rig(max_drafts=4, drafter=right(0), max_num_batched_tokens=7, pipeline_depth=1)
    for number in range(5):
        rig.add(f"r{number}", tokens(1, number), max_tokens=30)
    rig.step()
    chunks = rig.chunks(rig.plan())
    assert [count for _, count in chunks.values()] == [3, 1, 1, 1, 1]


def test_nothing_is_planned_behind_drafts_in_flight() -> None:
    rig = Rig(max_drafts=4, drafter=right(2), pipeline_depth=3)
    rig.add("a", 6, max_tokens=16)
    rig.plan()
    assert rig.chunks(rig.plan()) == {"a": (6, 1)}
    rig.land()
    assert rig.plan() is None, "drafts behind the step in flight are worth more"
    rig.land()
    assert rig.chunks(rig.plan()) == {"a": (7, 5)}
    assert rig.plan() is None


def test_drafts_that_come_too_late_are_not_sent() -> None:
    """A step in flight draws the first of them; where they are unlikely, nothing waits for it."""
    rig = Rig(max_drafts=4, drafter=right(4), pipeline_depth=2)
    rig.worker.chances = (0.01, 0.001)
    rig.add("a", 6, max_tokens=16)
    rig.plan()
    for _ in range(12):
        assert rig.chunks(rig.plan())["a"][1] == 1
        rig.land()
        assert not rig.scheduler.sequences["a"].drafts
    assert rig.plan() is not None, "a step is planned behind the one in flight"


def test_nothing_waits_for_drafts_while_none_may_be_sent() -> None:
    rig = Rig(max_drafts=4, drafter=right(4), pipeline_depth=2)
    rig.worker.chances = (0.9, 0.9)
    rig.add("a", 6, max_tokens=16)
    rig.plan()
    rig.plan()
    comparison = rig.scheduler._drafts._comparison
    comparison.is_resting, comparison.seconds = True, -9.0  # they cost more than they saved
    rig.land()
    assert rig.plan() is not None


def test_nothing_follows_a_step_whose_drafts_may_be_accepted() -> None:
    """Sequences of it that have none would take turns in two smaller steps."""
    rig = Rig(max_drafts=4, proposes=False, pipeline_depth=2)
    rig.add("plain", 6, max_tokens=40)
    rig.add("predicted", tokens(6, 1), max_tokens=9, prediction=tokens(3, 7))
    while "predicted" in rig.scheduler.sequences:
        plan = rig.plan()
        if plan is not None and plan.drafts:
            assert len(plan.slots) == 2
            assert rig.plan() is None
        if len(rig.results) == 2 or plan is None:
            rig.land()


def test_rejected_drafts_are_overwritten_and_never_shared() -> None:
    rig = Rig(max_drafts=4, drafter=right(1), prefix_caching=True)
    rig.add("a", 6, max_tokens=16)
    answer = rig.finish()["a"]
    rig.add("b", [*tokens(6), *answer, 1], max_tokens=4)
    rig.finish()
    assert rig.outputs()["b"] == expected_output([*tokens(6), *answer, 1], 4, scrambled)


def test_a_worker_that_sends_too_many_drafts_is_detected() -> None:
    rig = Rig(max_drafts=1, drafter=right(4))
    rig.add("a", 6)
    rig.plan()
    result = rig.results.popleft()
    rig.results.append(result._replace(drafts=((0, (1, 2)),)))
    with pytest.raises(AssertionError, match="2 drafts are too many"):
        rig.land()


def test_giving_up_drafts_leaves_the_known_tokens_in_the_plan() -> None:
    """A cap of 3 cuts a token and three drafts to 3; without the drafts, the token remains."""
    rig = Rig(num_blocks=4, max_drafts=3, drafter=lambda known: (0, 0, 0), long_prefill_tokens=3)
    rig.add("a", 7, max_tokens=6)
    rig.step()
    rig.step()
    rig.add("b", tokens(3, 2), max_tokens=2)
    rig.step()
    assert rig.scheduler.kv.pool.num_free == 0
    assert rig.chunks(rig.plan()) == {"a": (7, 1), "b": (3, 1)}


def test_a_worker_that_sends_drafts_before_the_first_token_is_detected() -> None:
    """Drafts continue the newest token, and a sequence that catches up has none."""
    rig = Rig(max_drafts=3, max_num_batched_tokens=4)
    rig.add("a", 12, max_tokens=4)
    rig.plan()
    result = rig.results.popleft()
    rig.results.append(result._replace(drafts=((0, (1, 2)),)))
    with pytest.raises(AssertionError, match="drafts behind an unknown token"):
        rig.land()


def test_the_plan_after_a_reset_of_the_prefix_cache_says_so() -> None:
    rig = Rig()
    rig.scheduler.reset_prefix_cache()
    rig.add("a", 5, max_tokens=9)
    plans = []
    for step in range(5):
        if step == 3:
            rig.scheduler.reset_prefix_cache()
        plan = rig.plan()
        assert plan is not None
        plans.append(plan.forgets)
        rig.land()
    assert plans == [True, False, False, True, False]
