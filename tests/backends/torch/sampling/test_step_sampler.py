"""Everything that a step does besides the forward pass, as the reference defines it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.backends.step import (
    LAST_SAMPLE,
    NO_ROWS,
    NOT_FINITE,
    Draws,
    HostBatch,
    Masks,
    PoolRows,
    PromptRows,
    SlotSampling,
)
from octavo.backends.torch.sampling.step_sampler import StepSampler
from tests.backends.torch.sampling.test_sampler import packed

NOTHING = np.zeros((0, 0), np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def make_draws(slots: Any, first_rows: Any, **parts: Any) -> Draws:
    """Make draws of these slots; by default nothing is opened or freed."""
    usual: dict[str, Any] = {"freed": (), "opened": ()}
    return Draws(**{**usual, "slots": ints(*slots), "first_rows": ints(*first_rows), **parts})


def opened(sampler: StepSampler, **slots: list[int]) -> None:
    """Open greedy slots s0, s1, … with these tokens."""
    pairs = [(int(name[1:]), SlotSampling(ints(*tokens), 1)) for name, tokens in slots.items()]
    sampler.change(make_draws((), (), opened=tuple(pairs)))


def peaks(*tokens: int) -> np.ndarray:
    """Make rows of logits whose most likely tokens are these."""
    return np.eye(50, dtype=np.float32)[list(tokens)]


def test_the_last_sample_is_what_the_slot_drew_or_was_opened_with() -> None:
    sampler = StepSampler()
    opened(sampler, s4=[7, 8], s2=[9])
    starts = ints(0, 3, 4)
    batch = HostBatch(
        ints(5, 6, LAST_SAMPLE, LAST_SAMPLE),
        ints(0, 1, 2, 0),
        starts,
        (),
        NO_ROWS,
        slots=ints(4, 2),
    )
    assert sampler.with_tokens(batch).token_ids.tolist() == [5, 6, 8, 9]
    sampler.finish(make_draws([2], [0]), peaks(33), NOTHING)
    assert sampler.with_tokens(batch).token_ids.tolist() == [5, 6, 8, 33]
    assert batch.token_ids.tolist() == [5, 6, LAST_SAMPLE, LAST_SAMPLE]
    assert sampler.with_tokens(batch._replace(token_ids=ints(1, 2, 3, 4))).token_ids[3] == 4


def test_freeing_comes_before_opening() -> None:
    sampler = StepSampler()
    opened(sampler, s1=[5])
    again = SlotSampling(ints(6), 1)
    sampler.change(make_draws((), (), freed=(1,), opened=((1, again),)))
    assert sampler.slots[1].tokens == [6]
    with pytest.raises(AssertionError, match="slot 1 is opened while in use"):
        sampler.change(make_draws((), (), opened=((1, again),)))


def test_drafts_of_several_samples_are_verified_together() -> None:
    """Rows: slot 0 draws 10, 11, 12; slot 1 draws 20 (no drafts); slot 2 draws 30, 31."""
    sampler = StepSampler()
    opened(sampler, s0=[1], s1=[2], s2=[3])
    draws = make_draws((0, 1, 2), (0, 3, 4), num_drafts=ints(2, 0, 1), drafts=ints(10, 44, 30))
    output = sampler.finish(draws, peaks(10, 11, 12, 20, 30, 31), NOTHING)
    assert output.tokens == ((10, 11), (20,), (30, 31))
    assert [sampler.slots[slot].tokens for slot in range(3)] == [[1, 10, 11], [2, 20], [3, 30, 31]]


def test_masks_have_a_row_for_each_sample_and_each_draft() -> None:
    sampler = StepSampler()
    opened(sampler, s0=[1], s1=[2])
    allowed = np.zeros((4, 50), np.bool_)
    for row, token in enumerate((10, 40, 41, 20)):
        allowed[row, token] = True
    draws = make_draws(
        (0, 1),
        (0, 3),
        num_drafts=ints(2, 0),
        drafts=ints(10, 40),
        masks=Masks(packed(allowed)).set_ready(),
    )
    output = sampler.finish(draws, peaks(10, 11, 12, 20), NOTHING)
    assert output.tokens == ((10, 40, 41), (20,))  # the mask decides over the draft


def test_a_failure_ends_the_drafts_of_its_slot_alone() -> None:
    sampler = StepSampler()
    opened(sampler, s0=[1], s1=[2])
    logits = peaks(10, 11, 20, 21)
    logits[1, 4] = np.nan
    draws = make_draws((0, 1), (0, 2), num_drafts=ints(1, 1), drafts=ints(10, 20))
    output = sampler.finish(draws, logits, NOTHING)
    assert output.failures == ((0, NOT_FINITE),)
    assert output.tokens[1] == (20, 21)
    assert output.tokens[0] == (10, 0), "the draft was accepted, and the failed draw is counted"


def test_prompt_rows_and_pooled_rows() -> None:
    sampler = StepSampler()
    opened(sampler, s0=[1, 2, 3], s1=[4], s2=[5])
    logits = peaks(2, 3, 30, 30)
    logits[3, 0] = np.inf
    hidden = np.array([[1, 2], [3, 4], [5, 7], [np.nan, 0]], np.float32)
    draws = make_draws(
        (),
        (),
        prompts=(PromptRows(0, 0, ints(2, 9), 1), PromptRows(1, 2, ints(3, 3), 0)),
        pools=(PoolRows(0, 0, 2, False), PoolRows(2, 3, 1, True)),
    )
    output = sampler.finish(draws, logits, hidden)
    (rows,) = output.prompts
    assert (rows.slot, rows.ranks.tolist()) == (0, [1, 2])
    assert rows.token_ids.tolist() == [[2, 2], [9, 3]]
    assert output.failures == ((1, NOT_FINITE), (2, NOT_FINITE))
    assert output.pooled == ()
    assert output.tokens == ()
    last = make_draws((), (), pools=(PoolRows(0, 2, 1, True),))
    ((slot, vector),) = sampler.finish(last, NOTHING, hidden).pooled
    assert (slot, vector.tolist()) == (0, [3.0, np.float32(13 / 3)])
