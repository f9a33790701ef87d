"""Native log-probabilities match the reference's, with equal bits in any order of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.backends.base import Floats
from octavo.backends.native import _native
from octavo.backends.step import NO_ROWS, NOT_FINITE, Draws, PromptRows, RowLogprobs, StepOutput
from octavo.backends.torch.sampling.logprobs import describe
from tests.backends.native.sampling.given_logits import make_backend, make_batch, sampling_of
from tests.backends.native.sampling.test_draws import make_logits

TIERS = _native.tiers()


def run(
    tier: str, logits: Floats, parts: list[PromptRows], rows: NDArray[Any], threads: int = 2
) -> StepOutput:
    """Run a step that wants the log-probabilities of given tokens, each part for its own slot."""
    opened = tuple((part.slot, sampling_of()) for part in parts)
    draws = Draws((), opened, NO_ROWS, NO_ROWS, prompts=tuple(parts))
    return make_backend(logits, tier, threads).step(make_batch(rows), draws).collect()


def told(tier: str, logits: Floats, count: int, threads: int = 2, seed: int = 0) -> RowLogprobs:
    tokens = np.random.default_rng(seed).integers(0, logits.shape[1], len(logits))
    part = PromptRows(3, 0, tokens.astype(np.int32), count)
    (answer,) = run(tier, logits, [part], np.arange(len(logits)), threads).prompts
    assert answer.slot == 3
    return answer


@pytest.mark.matrix
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("kind", ["plain", "flat", "peaked", "tied", "wide"])
@pytest.mark.parametrize("vocabulary", [1, 2, 15, 90, 128, 129, 1000])
def test_it_tells_what_numpy_tells(tier: str, kind: str, vocabulary: int) -> None:
    """Tokens, order and ranks are equal, and floats differ in the last bit at most."""
    logits = make_logits(kind, 20, vocabulary, vocabulary)
    for count in sorted({0, 1, 5, 8, 20, vocabulary // 2, vocabulary} & {*range(vocabulary + 1)}):
        answer = told(tier, logits, count)
        for row, ids, logprobs, rank in zip(logits, *answer[1:], strict=True):
            expected = describe(row, int(ids[0]), count)
            assert np.array_equal(ids, expected[0])
            assert rank == expected[2]
            np.testing.assert_allclose(logprobs, expected[1], rtol=2.4e-7, atol=1e-13)


@pytest.mark.parametrize("tier", TIERS)
def test_it_tells_of_large_vocabularies(tier: str) -> None:
    logits = make_logits("plain", 6, 49_157, 1)
    for row, ids, logprobs, rank in zip(logits, *told(tier, logits, 20)[1:], strict=True):
        expected = describe(row, int(ids[0]), 20)
        assert (ids.tolist(), rank) == (expected[0].tolist(), expected[2])
        np.testing.assert_allclose(logprobs, expected[1], rtol=2.4e-7)


@pytest.mark.parametrize("tier", TIERS)
def test_sums_have_one_order(tier: str) -> None:
    """Every tier has sixteen partial sums, computed here with the kernel's own exponentials."""
    logits = make_logits("plain", 1, 1003, 2)
    most = logits.max().astype(np.float64)
    behind = np.full(-(-1003 // 16) * 16, -np.inf)
    behind[:1003] = logits[0].astype(np.float64) - most
    total = np.exp(behind).reshape(-1, 16).cumsum(0)[-1].cumsum()[-1]
    answer = told(tier, logits, 1003)
    exact = (logits[0][answer.token_ids[0]].astype(np.float64) - most) - np.log(total)
    assert np.array_equal(answer.logprobs[0], exact.astype(np.float32))


@pytest.mark.parametrize("tier", TIERS)
def test_a_rows_bits_depend_on_nothing_else(tier: str) -> None:
    """Neighbours and the number of threads change no bit."""
    logits = make_logits("plain", 50, 301, 3)
    tokens = np.arange(50, dtype=np.int32)
    everything = np.arange(50)
    (alone,) = run(tier, logits, [PromptRows(0, 0, tokens, 7)], everything, 1).prompts
    order = np.random.default_rng(4).permutation(50)
    for threads in (1, 2, 5):
        part = PromptRows(0, 0, tokens[order], 7)
        (answer,) = run(tier, logits, [part], order, threads).prompts
        for ours, expected in zip(answer[1:], alone[1:], strict=True):
            assert np.array_equal(ours, expected[order])


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_fails_its_slot(tier: str, bad: float) -> None:
    places = [0, 15, 16, 127, 128, 2047, 2060]
    logits = make_logits("plain", len(places) + 1, 2061, 5)
    logits[np.arange(len(places)), places] = bad
    token = np.zeros(1, np.int32)
    parts = [PromptRows(slot, slot, token, 3) for slot in range(len(logits))]
    output = run(tier, logits, parts, np.arange(len(logits)))
    assert output.failures == tuple((slot, NOT_FINITE) for slot in range(len(places)))
    assert [rows.slot for rows in output.prompts] == [len(places)]


def test_huge_logits_do_not_overflow() -> None:
    logits = np.array([[3e38, -3e38, 0]], np.float32)
    for tier in TIERS:
        logprobs = told(tier, logits, 3).logprobs[0, 1:]
        assert logprobs.tolist() == [0.0, float(np.float32(-3e38)), np.finfo(np.float32).min]


def test_each_slot_has_the_count_it_asked_for() -> None:
    """A request may want all, more than there are, some or none."""
    logits = make_logits("plain", 4, 40, 6)
    counts = [-1, 99, 5, 0]
    parts = [PromptRows(s, s, np.array([s], np.int32), count) for s, count in enumerate(counts)]
    answers = run(TIERS[-1], logits, parts, np.arange(4)).prompts
    assert [answer.token_ids.shape for answer in answers] == [(1, 41), (1, 41), (1, 6), (1, 1)]
