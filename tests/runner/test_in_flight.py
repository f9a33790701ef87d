"""Plans are submitted while earlier steps run, and drafts are proposed from collected results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.backends.step import LAST_SAMPLE, NOT_FINITE, HostBatch
from octavo.core.engine import EngineCore
from octavo.core.sampling_params import SamplingParams
from octavo.exec.inline import InlineExecutor
from octavo.grammar.supply import GrammarSupply
from octavo.runner.model_runner import ModelRunner
from tests.grammar.toy import ToyEngine
from tests.runner.plans import Fixed, make_plan, make_runner, new_slot, run, successor
from tests.runner.tiny import VOCABULARY, StubBackend, make_config, make_request, tokens_of


def test_plans_are_submitted_before_earlier_results_are_known() -> None:
    """Three steps of one sequence are in flight at once: each reads what the last one drew."""
    runner, backend = make_runner()
    opened = (new_slot(0, [7, 8], ((1,), (2,))), new_slot(1, [20], ((3,), (4,))))
    plans = [
        make_plan(opened=opened, chunks=((0, 0, 2, True), (1, 0, 1, True))),
        make_plan(step=1, chunks=((0, 2, 1, True), (1, 1, 1, True))),
        make_plan(step=2, chunks=((0, 3, 1, True), (1, 2, 1, True))),
    ]
    started = [runner.submit(plan) for plan in plans]
    assert not backend.batches
    assert [each.done() for each in started] == [False] * 3
    assert [each.collect().tokens for each in started] == [(9, 21), (10, 22), (11, 23)]
    assert [batch.token_ids.tolist() for batch in backend.submitted] == [
        [7, 8, 20],
        [LAST_SAMPLE, LAST_SAMPLE],
        [LAST_SAMPLE, LAST_SAMPLE],
    ]


def test_steps_are_collected_in_order() -> None:
    runner, _ = make_runner()
    runner.submit(make_plan(opened=(new_slot(0, [7], ((1,), (2,))),), chunks=((0, 0, 1, True),)))
    second = runner.submit(make_plan(step=1, chunks=((0, 1, 1, True),)))
    with pytest.raises(AssertionError, match="in the order of submission"):
        second.collect()


def test_tables_of_a_step_in_flight_do_not_change() -> None:
    runner, backend = make_runner()
    opened = (new_slot(0, [7], ((1, 2), (3, 4))), new_slot(1, [20], ((5, 6), (7, 8))))
    runner.submit(make_plan(opened=opened, chunks=((0, 0, 1, True), (1, 0, 1, True))))
    before = [table.copy() for table in backend.submitted[0].tables]
    grown = make_plan(
        step=1, new_blocks=((0, ((30,), (31,))),), chunks=((0, 1, 1, True), (1, 1, 1, True))
    )
    runner.submit(grown)
    for table, expected in zip(backend.submitted[0].tables, before, strict=True):
        assert np.array_equal(table, expected)


def test_a_reopened_slot_takes_nothing_from_a_step_still_in_flight() -> None:
    """The step's failure belongs to the sequence that the slot has lost since."""

    def logits(batch: HostBatch) -> np.ndarray:
        rows = successor(batch)
        rows[batch.token_ids[batch.logits_rows] == 12] = np.nan
        return rows

    proposer = Fixed(3)
    runner, _ = make_runner(logits, max_drafts=1, proposer=proposer)
    first = runner.submit(
        make_plan(
            opened=(new_slot(0, [12], ((1,), (2,))), new_slot(1, [5], ((3,), (4,)))),
            chunks=((0, 0, 1, True), (1, 0, 1, True)),
        )
    )
    second = runner.submit(
        make_plan(
            step=1,
            freed=(0,),
            opened=(new_slot(0, [40], ((5,), (6,))),),
            chunks=((0, 0, 1, True),),
        )
    )
    assert first.collect().tokens[1] == 6
    assert [slot for slot, _, _ in proposer.shown] == [1]
    result = second.collect()
    assert (result.tokens, result.errors) == ((41,), ())
    assert proposer.shown[1:] == [(0, [40, 41], 1)]


def test_a_sequence_that_failed_stays_failed_in_the_plans_in_flight() -> None:
    def logits(batch: HostBatch) -> np.ndarray:
        rows = successor(batch)
        rows[batch.positions[batch.logits_rows] == 0] = np.nan
        return rows

    runner, _ = make_runner(logits)
    first = runner.submit(
        make_plan(opened=(new_slot(0, [7], ((1,), (2,))),), chunks=((0, 0, 1, True),))
    )
    second = runner.submit(make_plan(step=1, chunks=((0, 1, 1, True),)))
    assert first.collect().errors == second.collect().errors == ((0, NOT_FINITE),)


@pytest.mark.parametrize(
    ("guessed", "kept"), [((1, 2, 3, 4), (1, 2)), ((1, VOCABULARY), (1,)), ((-1,), ()), ((), ())]
)
def test_valid_drafts_are_part_of_the_result(
    guessed: tuple[int, ...], kept: tuple[int, ...]
) -> None:
    proposer = Fixed(*guessed)
    runner, _ = make_runner(max_drafts=2, proposer=proposer)
    opened = (new_slot(0, [7], ((1,), (2,))), new_slot(1, [9, 9], ((3,), (4,))))
    plan = make_plan(opened=opened, chunks=((0, 0, 1, True), (1, 0, 1, False)))
    assert run(runner, plan).drafts == (((0, kept),) if kept else ())
    assert proposer.shown == [(0, [7, 8], 2)]
    assert proposer.changes == [("open", 0), ("open", 1)]
    run(runner, make_plan(step=1, freed=(0,)))
    assert proposer.changes[2:] == [("free", 0)]


def test_a_proposer_is_shown_accepted_drafts_and_the_token_after_them() -> None:
    proposer = Fixed(8, 9, 5)
    runner, _ = make_runner(max_drafts=3, proposer=proposer)
    run(runner, make_plan(opened=(new_slot(0, [7], ((1,), (2,))),), chunks=((0, 0, 1, True),)))
    plan = make_plan(step=1, chunks=((0, 1, 4, True),), drafts=((0, (9, 10, 5)),))
    result = run(runner, plan)
    assert (result.tokens, result.accepted) == ((11,), ((0, 2),))
    assert proposer.shown == [(0, [7, 8], 3), (0, [7, 8, 9, 10, 11], 3)]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_pipeline_fills_over_a_backend_that_begins_nothing_unasked(depth: int) -> None:
    """Each step is collected only once as many are in flight as the depth allows."""
    config = make_config((None, 5), pipeline_depth=depth)
    stub: Any = StubBackend(successor)
    executor = InlineExecutor(ModelRunner(stub, VOCABULARY, config))
    core = EngineCore(config, executor, lambda: 0.0, b"key", check_interval=1)
    core.on_event(make_request("it", [3, 4], temperature=0.0, max_tokens=12))
    events, num_ahead = [], []
    while core.has_work:
        before = len(stub.batches)
        events += core.step()
        if len(stub.batches) > before:
            num_ahead.append(len(stub.submitted) - len(stub.batches))
    assert tokens_of(events) == list(range(5, 17))
    assert num_ahead[: 12 - depth] == [depth - 1] * (12 - depth)


def test_masks_wait_for_the_steps_that_draw_for_their_texts_and_for_no_others() -> None:
    """Stages have steps of different sequences: a mask is computed when its own are known."""
    stub: Any = StubBackend(successor)
    config = make_config((None, 5), pipeline_depth=3)
    supply = GrammarSupply(ToyEngine)
    runner = ModelRunner(stub, VOCABULARY, config, grammars=supply, masks_beside=False)
    shaped = SamplingParams(temperature=0, max_tokens=9, grammar="5|6 6|7 7|8 8|9")

    def opened(slot: int) -> Any:
        block = 2 * slot + 1
        return new_slot(slot, [4], ((block,), (block + 1,)), sampling=shaped)

    plans = [
        make_plan(opened=(opened(0),), chunks=((0, 0, 1, True),)),
        make_plan(step=1, opened=(opened(1),), chunks=((1, 0, 1, True),)),
        make_plan(step=2, chunks=((0, 1, 1, True), (1, 1, 1, True))),
    ]
    started = [runner.submit(plan) for plan in plans]
    works = [each.mask_work for each in started]
    assert [work is not None and work.has_begun for work in works] == [True, True, False]
    assert works[1] is not None
    works[1].masks.wait()
    assert started[0].collect().tokens == (5,)
    assert works[2] is not None
    assert not works[2].has_begun, "a text has a token that is not known yet"
    assert started[1].collect().tokens == (5,)
    assert started[2].collect().tokens == (6, 6)
