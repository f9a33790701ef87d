"""The runner executes plans exactly, and an error in one sequence affects no other."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from octavo.backends.base import ForwardResult
from octavo.backends.step import LAST_SAMPLE, NO_TOKEN_LEFT, NOT_FINITE, HostBatch
from octavo.core.plan import NO_TOKEN, HiddenPayload, LogprobsPayload
from octavo.core.pooling import Pooling
from octavo.core.sampling_params import SamplingParams
from tests.runner.plans import Fixed, make_plan, make_runner, new_slot, run, successor
from tests.runner.tiny import (
    FULL,
    VOCABULARY,
    Engine,
    make_model,
    make_request,
    tokens_of,
)


def test_a_plan_s_changes_reach_the_batch() -> None:
    runner, backend = make_runner()
    first = make_plan(
        opened=(
            new_slot(3, [10, 11, 12, 13, 14], ((1, 2), (3, 4))),
            new_slot(1, [20, 21, 22], ((5,), (6,))),
        ),
        copies=((9, 5, 0), (8, 6, 0)),
        chunks=((3, 0, 5, True), (1, 1, 1, False)),
    )
    result = run(runner, first)
    assert result.tokens == (15, NO_TOKEN)
    (batch,) = backend.batches
    assert batch.copies == ((9, 5, 0), (8, 6, 0))
    assert batch.slots.tolist() == [3, 1]
    assert batch.token_ids.tolist() == [10, 11, 12, 13, 14, 21]
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 1]
    assert batch.row_starts.tolist() == [0, 5, 6]
    assert [table.tolist() for table in batch.tables] == [[[1, 2], [5, 0]], [[3, 4], [6, 0]]]
    assert batch.logits_rows.tolist() == [4]

    # The backend keeps the token that it drew: neither the plan nor the batch carries it.
    second = make_plan(
        step=1,
        new_blocks=((1, ((7,), (0,))),),
        chunks=((1, 2, 1, True), (3, 5, 1, True)),
    )
    assert run(runner, second).tokens == (23, 16)
    assert backend.submitted[1].token_ids.tolist() == [22, LAST_SAMPLE]
    batch = backend.batches[1]
    assert batch.token_ids.tolist() == [22, 15]
    assert batch.positions.tolist() == [2, 5]
    assert [table.tolist() for table in batch.tables] == [[[5, 7], [1, 2]], [[6, 0], [3, 4]]]
    for array_ in (batch.token_ids, batch.positions, batch.row_starts, *batch.tables):
        assert array_.dtype == np.int32
        assert array_.flags.c_contiguous

    # Freeing comes before opening, so the old table of a reopened slot is gone.
    third = make_plan(
        step=2,
        freed=(3,),
        opened=(new_slot(3, [40], ((11,), (12,))),),
        chunks=((3, 0, 1, True), (1, 3, 1, True)),
    )
    assert run(runner, third).tokens == (41, 24)
    assert [t.tolist() for t in backend.batches[2].tables] == [
        [[11, 0], [5, 7]],
        [[12, 0], [6, 0]],
    ]


def test_a_plan_without_chunks_runs_no_forward_pass() -> None:
    runner, backend = make_runner()
    run(runner, make_plan(opened=(new_slot(0, [1], ((1,), (2,))),), chunks=((0, 0, 1, True),)))
    assert run(runner, make_plan(step=1, freed=(0,))).tokens == ()
    assert len(backend.batches) == 1
    with pytest.raises(AssertionError, match="slot 0 is freed but not open"):
        run(runner, make_plan(step=2, freed=(0,)))


@pytest.mark.parametrize(
    ("drafts", "accepted", "fresh"),
    [((), 0, 8), ((8,), 1, 9), ((8, 9, 10), 3, 11), ((8, 5, 10), 1, 9), ((5, 9), 0, 8)],
)
def test_drafts_are_accepted_up_to_the_first_wrong_one(
    drafts: tuple[int, ...], accepted: int, fresh: int
) -> None:
    runner, backend = make_runner(max_drafts=3)
    opened = (new_slot(0, [7], ((1, 2), (3, 4))), new_slot(1, [30], ((5,), (6,))))
    count = 1 + len(drafts)
    plan = make_plan(
        opened=opened,
        chunks=((1, 0, 1, True), (0, 0, count, True)),
        drafts=((0, drafts),) if drafts else (),
    )
    result = run(runner, plan)
    assert result.tokens == (31, fresh)
    assert result.accepted == (((0, accepted),) if accepted else ())
    assert backend.sampler.slots[0].tokens == list(range(7, fresh + 1))


def test_each_accepted_draft_has_log_probabilities() -> None:
    runner, _ = make_runner(max_drafts=3)
    sampling = SamplingParams(temperature=0, logprobs=1)
    plan = make_plan(
        opened=(new_slot(0, [7], ((1,), (2,)), sampling=sampling),),
        chunks=((0, 0, 4, True),),
        drafts=((0, (8, 9, 1)),),
    )
    ((slot, payload),) = run(runner, plan).payloads
    assert slot == 0
    assert isinstance(payload, LogprobsPayload)
    assert [list(entry.token_ids) for entry in payload.sampled] == [[8, 8], [9, 9], [10, 10]]
    assert [entry.rank for entry in payload.sampled] == [1, 1, 1]


def test_logits_that_are_not_finite_fail_their_own_sequence() -> None:
    """The sequence also fails in later plans; the next one in its slot does not."""
    broken = [12]

    def logits(batch: HostBatch) -> np.ndarray:
        rows = successor(batch)
        for row, token in enumerate(batch.token_ids[batch.logits_rows].tolist()):
            if token in broken:
                rows[row, 5] = np.nan
        return rows

    runner, _ = make_runner(logits)
    logprobs = SamplingParams(temperature=0, logprobs=2)
    opened = tuple(
        new_slot(slot, [10 + slot], ((1 + slot,), (9 + slot,)), sampling=logprobs)
        for slot in range(4)
    )
    result = run(runner, make_plan(opened=opened, chunks=[(slot, 0, 1, True) for slot in range(4)]))
    assert result.tokens == (11, 12, NO_TOKEN, 14)
    assert result.errors == ((2, NOT_FINITE),)
    assert [slot for slot, _ in result.payloads] == [0, 1, 3]
    broken.clear()
    again = run(runner, make_plan(step=1, chunks=[(slot, 1, 1, True) for slot in (2, 0)]))
    assert again.tokens == (NO_TOKEN, 12)
    assert again.errors == ((2, NOT_FINITE),)
    last = make_plan(
        step=2,
        freed=(2,),
        opened=(new_slot(2, [33], ((3,), (4,))),),
        chunks=((2, 0, 1, True),),
    )
    assert run(runner, last).errors == ()


@pytest.mark.parametrize("infinity", [np.inf, -np.inf, np.nan])
def test_drafts_are_accepted_up_to_broken_logits(infinity: float) -> None:
    """Accepted drafts and their log-probabilities are part of the result; the failure ends it."""

    def logits(batch: HostBatch) -> np.ndarray:
        rows = successor(batch)
        rows[1, 0] = infinity
        return rows

    runner, _ = make_runner(logits, max_drafts=3)
    sampling = SamplingParams(temperature=0, logprobs=0)
    plan = make_plan(
        opened=(new_slot(0, [7], ((1,), (2,)), sampling=sampling),),
        chunks=((0, 0, 4, True),),
        drafts=((0, (8, 9, 10)),),
    )
    result = run(runner, plan)
    assert (result.tokens, result.accepted) == ((NO_TOKEN,), ((0, 1),))
    assert result.errors == ((0, NOT_FINITE),)
    ((_, payload),) = result.payloads
    assert isinstance(payload, LogprobsPayload)
    assert [list(entry.token_ids) for entry in payload.sampled] == [[8]]
    later = make_plan(step=1, chunks=((0, 2, 2, True),), drafts=((0, (10,)),))
    result = run(runner, later)
    assert (result.tokens, result.accepted, result.payloads) == ((NO_TOKEN,), (), ())
    assert result.errors == ((0, NOT_FINITE),)


@pytest.mark.parametrize(
    ("tokens", "fields", "message"),
    [
        ([1, VOCABULARY], {}, "token id 61 is not in the vocabulary; ids go from 0 to 60"),
        ([1, -5], {}, "token id -5 is not"),
        ([1], {"lora": "x"}, "adapter 'x' is not loaded"),
        (
            [1],
            {"sampling": SamplingParams(logit_bias=((99, 1.0),))},
            "logit_bias has ids that are no tokens: 99",
        ),
        ([1], {"sampling": SamplingParams(logits_processors=("f",))}, "'f' is unknown .* none"),
    ],
)
def test_a_request_that_cannot_be_served_fails_alone(
    tokens: list[int], fields: dict[str, Any], message: str
) -> None:
    runner, backend = make_runner()
    opened = (new_slot(0, tokens, ((1,), (2,)), **fields), new_slot(1, [5], ((3,), (4,))))
    plan = make_plan(opened=opened, chunks=((0, 0, len(tokens), True), (1, 0, 1, True)))
    result = run(runner, plan)
    assert result.tokens == (NO_TOKEN, 6)
    ((slot, error),) = result.errors
    assert slot == 0
    with pytest.raises(ValueError, match=message):
        raise ValueError(error)
    assert backend.batches[0].token_ids.min() >= 0
    assert backend.batches[0].token_ids.max() < VOCABULARY


def test_prompt_log_probabilities_come_chunk_by_chunk() -> None:
    runner, backend = make_runner()
    sampling = SamplingParams(temperature=0, prompt_logprobs=0)
    opened = (
        new_slot(0, [5, 6, 9, 10, 11], ((1, 2), (3, 4)), sampling=sampling),
        new_slot(1, [7], ((5,), (6,))),
    )
    result = run(runner, make_plan(opened=opened, chunks=((0, 0, 3, False), (1, 0, 1, True))))
    ((slot, payload),) = result.payloads
    assert isinstance(payload, LogprobsPayload)
    assert (slot, payload.prompt_start, payload.sampled) == (0, 1, ())
    assert [list(entry.token_ids) for entry in payload.prompt] == [[6], [9], [10]]
    assert [entry.rank for entry in payload.prompt] == [1, 2, 1]
    assert sorted(backend.batches[0].logits_rows.tolist()) == [0, 1, 2, 3]
    result = run(runner, make_plan(step=1, chunks=((1, 1, 1, True), (0, 3, 2, True))))
    ((_, payload),) = result.payloads
    assert isinstance(payload, LogprobsPayload)
    assert payload.prompt_start == 4
    assert [list(entry.token_ids) for entry in payload.prompt] == [[11]]
    assert result.tokens == (9, 12)
    assert run(runner, make_plan(step=2, chunks=((0, 5, 1, True),))).payloads == ()


def test_broken_prompt_logits_fail_the_request() -> None:
    runner, _ = make_runner(lambda batch: successor(batch) * np.nan)
    sampling = SamplingParams(temperature=0, prompt_logprobs=0)
    opened = (new_slot(0, [5, 6, 9], ((1,), (3,)), sampling=sampling),)
    result = run(runner, make_plan(opened=opened, chunks=((0, 0, 2, False),)))
    assert result.errors == ((0, NOT_FINITE),)
    assert result.payloads == ()


def test_prompt_log_probabilities_are_not_returned_again_after_output() -> None:
    runner, _ = make_runner()
    sampling = SamplingParams(temperature=0, prompt_logprobs=0)
    opened = (new_slot(0, [5, 6, 9], ((1,), (3,)), sampling=sampling, num_prompt=2),)
    assert run(runner, make_plan(opened=opened, chunks=((0, 0, 3, True),))).payloads == ()


def test_chunks_that_sample_nothing() -> None:
    """The real model runs even if no row of logits is wanted."""
    engine = Engine(max_num_batched_tokens=4)
    events = engine.answer(make_request("it", range(10), temperature=0.0, max_tokens=2))["it"]
    assert [plan.samples for plan in engine.plans][:3] == [(False,), (False,), (True,)]
    assert len(tokens_of(events)) == 2


def test_a_broken_weight_fails_only_the_requests_that_use_it() -> None:
    """NaN in one token's embedding spreads neither by the layers nor by the shared KV cache."""
    engine = Engine(num_blocks=60)
    healthy = make_request(
        "healthy", [*range(20)], seed=3, max_tokens=30, allowed_token_ids=range(40)
    )
    expected = tokens_of(Engine().answer(healthy)["healthy"])
    broken = [
        make_request(f"bad {n}", [*range(12), 60, *range(n)], temperature=0.0) for n in range(4)
    ]
    backend: Any = engine.runner._backend
    forward = backend.forward
    table = make_model(FULL)[0].embed.weight.values

    def with_nan(batch: HostBatch) -> Any:
        row = table[60].clone()
        table[60] = float("nan")
        try:
            return forward(batch)
        finally:
            table[60] = row

    backend.forward = with_nan
    answers = engine.answer(broken[0], healthy, *broken[1:])
    assert tokens_of(answers["healthy"]) == expected
    for request in broken:
        last = answers[request.request_id][-1]
        assert (last.finish_reason, last.message) == ("error", NOT_FINITE)
    assert (
        tokens_of(
            engine.answer(
                make_request(
                    "later", [*range(20)], seed=3, max_tokens=30, allowed_token_ids=range(40)
                )
            )["later"]
        )
        == expected
    )


def test_a_request_with_no_token_left_fails_and_its_neighbours_do_not() -> None:
    runner, _ = make_runner(max_drafts=1, proposer=Fixed(1))
    settings = [
        SamplingParams(temperature=0, logprobs=0),
        SamplingParams(temperature=0, allowed_token_ids=(1,), logit_bias=((1, -5.0),)),
        SamplingParams(allowed_token_ids=(2,), bad_words_token_ids=((2,),), logprobs=0),
    ]
    opened = tuple(
        new_slot(slot, [5], ((1 + slot,), (9 + slot,)), sampling=sampling)
        for slot, sampling in enumerate(settings)
    )
    result = run(runner, make_plan(opened=opened, chunks=[(slot, 0, 1, True) for slot in range(3)]))
    assert result.tokens == (6, 1, NO_TOKEN)
    assert [slot for slot, _ in result.payloads] == [0]
    assert result.errors == ((2, NO_TOKEN_LEFT),)
    assert result.impossible == (2,)
    assert result.drafts == ((0, (1,)), (1, (1,)))


@pytest.mark.parametrize(
    ("pooling", "rows", "vectors"),
    [
        ("last", [[], [1]], [None, [11.0, 4.0]]),
        ("cls", [[0], []], [[5.0, 0.0], None]),
        ("mean", [[0, 1, 2], [0, 1]], [None, [8.2, 2.0]]),
        ("all", [[0, 1, 2], [0, 1]], [[5, 0, 6, 1, 9, 2], [10, 3, 11, 4]]),
    ],
)
def test_a_prompt_s_hidden_states_become_one_vector(
    pooling: Any, rows: list[list[int]], vectors: list[list[float] | None]
) -> None:
    """The vector is made of the wanted rows only, and is returned once."""
    runner, backend = make_runner()
    sampling = SamplingParams(temperature=0, pooling=pooling)
    opened = (
        new_slot(0, [5, 6, 9, 10, 11], ((1, 2), (3, 4)), sampling=sampling),
        new_slot(1, [7], ((5,), (6,))),
    )
    first = run(runner, make_plan(opened=opened, chunks=((0, 0, 3, False), (1, 0, 1, True))))
    second = run(runner, make_plan(step=1, chunks=((0, 3, 2, True), (1, 1, 1, True))))
    third = run(runner, make_plan(step=2, chunks=((0, 5, 1, True),)))
    assert [batch.hidden_rows.tolist() for batch in backend.batches] == [*rows, []]
    for result, vector in zip((first, second, third), (*vectors, None), strict=True):
        if vector is None:
            assert result.payloads == ()
            continue
        ((slot, payload),) = result.payloads
        assert isinstance(payload, HiddenPayload)
        assert slot == 0
        assert list(payload.values) == pytest.approx(vector)


def test_a_slot_that_ends_with_its_prompt_draws_nothing() -> None:
    """Another slot draws as always, and a payload says where its vectors begin."""
    runner, backend = make_runner()
    sampling = SamplingParams(max_tokens=0, pooling=Pooling("all"))
    opened = (
        new_slot(0, [5, 6, 9], ((1, 2), (3, 4)), sampling=sampling),
        new_slot(1, [7], ((5,), (6,))),
    )
    first = run(runner, make_plan(opened=opened, chunks=((0, 0, 2, False), (1, 0, 1, True))))
    second = run(runner, make_plan(step=1, chunks=((0, 2, 1, True), (1, 1, 1, True))))
    assert [batch.logits_rows.tolist() for batch in backend.batches] == [[2], [1]]
    assert [result.tokens for result in (first, second)] == [(NO_TOKEN, 8), (NO_TOKEN, 9)]
    starts = []
    for result in (first, second):
        ((_, payload),) = result.payloads
        assert isinstance(payload, HiddenPayload)
        starts.append((payload.start, payload.num_vectors))
    assert starts == [(0, 2), (2, 1)]


def test_a_reopened_slot_starts_its_vector_again() -> None:
    """The sum starts again after a preemption; with output, no vector is returned again."""
    runner, _ = make_runner()
    new = new_slot(0, [5, 9], ((1,), (2,)), sampling=SamplingParams(pooling=Pooling("mean")))
    run(runner, make_plan(opened=(new,), chunks=((0, 0, 1, False),)))
    again = make_plan(step=1, freed=(0,), opened=(new,), chunks=((0, 0, 2, True),))
    ((_, payload),) = run(runner, again).payloads
    assert isinstance(payload, HiddenPayload)
    assert list(payload.values) == [7.0, 0.5]
    late = replace(new, tokens=array("i", [5, 9, 7]))
    plan = make_plan(step=2, freed=(0,), opened=(late,), chunks=((0, 0, 3, True),))
    assert run(runner, plan).payloads == ()


def test_a_vector_that_is_not_finite_fails_its_request() -> None:
    runner, backend = make_runner()
    forward = backend.forward

    def broken(batch: HostBatch) -> ForwardResult:
        logits, hidden, _ = forward(batch)
        return ForwardResult(logits, np.where(hidden == 6, np.float32(np.inf), hidden))

    backend.forward = broken  # type: ignore[method-assign]
    sampling = SamplingParams(temperature=0, pooling=Pooling("mean"))
    opened = tuple(
        new_slot(slot, [5, token], ((1 + slot,), (3 + slot,)), sampling=sampling)
        for slot, token in ((0, 6), (1, 8))
    )
    result = run(runner, make_plan(opened=opened, chunks=((0, 0, 2, True), (1, 0, 2, True))))
    assert result.errors == ((0, NOT_FINITE),)
    assert [slot for slot, _ in result.payloads] == [1]
