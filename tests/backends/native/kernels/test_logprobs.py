"""Native log-probabilities match the numpy reference, with equal bits in any order of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.backends.base import Floats
from octavo.backends.native.sampling import RowLogprobs
from octavo.backends.torch.sampling.logprobs import describe
from tests.backends.native.kernels.test_sample import TEAMS, make_logits, native, sampling

TIERS = native.tiers()


def told(tier: str, logits: Floats, count: int, threads: int = 2, seed: int = 0) -> RowLogprobs:
    tokens = np.random.default_rng(seed).integers(0, logits.shape[1], len(logits))
    kernel = sampling.NativeSampling(tier, TEAMS[threads])
    answer: RowLogprobs = kernel.row_logprobs(logits, np.arange(len(logits)), tokens, count)
    return answer


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("kind", ["plain", "flat", "peaked", "tied", "wide"])
@pytest.mark.parametrize("vocabulary", [1, 2, 15, 90, 128, 129, 1000])
def test_it_tells_what_numpy_tells(tier: str, kind: str, vocabulary: int) -> None:
    """Tokens, order and ranks are equal, and floats differ in the last bit at most."""
    logits = make_logits(kind, 20, vocabulary, vocabulary)
    for count in sorted({0, 1, 5, 8, 20, vocabulary // 2, vocabulary} & {*range(vocabulary + 1)}):
        answer = told(tier, logits, count)
        for row, ids, logprobs, rank in zip(logits, *answer, strict=True):
            expected = describe(row, int(ids[0]), count)
            assert ids.tolist() == expected[0].tolist()
            assert rank == expected[2]
            np.testing.assert_allclose(logprobs, expected[1], rtol=2.4e-7, atol=1e-13)


@pytest.mark.parametrize("tier", TIERS)
def test_it_tells_of_large_vocabularies(tier: str) -> None:
    logits = make_logits("plain", 6, 49_157, 1)
    for row, ids, logprobs, rank in zip(logits, *told(tier, logits, 20), strict=True):
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
def test_a_row_is_told_of_alike_wherever_it_is(tier: str) -> None:
    """A row's result does not depend on its neighbours, the threads, or the distance of rows."""
    logits = make_logits("plain", 50, 301, 3)
    tokens = np.arange(50)
    alone = sampling.NativeSampling(tier, TEAMS[1]).row_logprobs(logits, np.arange(50), tokens, 7)
    apart = np.zeros((50, 304), np.float32)[:, :301]
    apart[:] = logits
    order = np.random.default_rng(4).permutation(50)
    for threads in (1, 2, 5):
        kernel = sampling.NativeSampling(tier, TEAMS[threads])
        for each in (logits, apart):
            answer = kernel.row_logprobs(each, order, tokens[order], 7)
            for ours, expected in zip(answer, alone, strict=True):
                assert np.array_equal(ours, expected[order])


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_told_by_their_rank(tier: str, bad: float) -> None:
    places = [0, 15, 16, 127, 128, 2047, 2060]
    logits = make_logits("plain", len(places) + 1, 2061, 5)
    logits[np.arange(len(places)), places] = bad
    ranks = told(tier, logits, 3).ranks
    assert (ranks[:-1] == 0).all()
    assert ranks[-1] > 0


def test_huge_logits_do_not_overflow() -> None:
    logits = np.array([[3e38, -3e38, 0]], np.float32)
    for tier in TIERS:
        logprobs = told(tier, logits, 3).logprobs[0, 1:]
        assert logprobs.tolist() == [0.0, float(np.float32(-3e38)), np.finfo(np.float32).min]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "row": ({"rows": np.array([2])}, "no logits of row 2"),
    "token": ({"tokens": np.array([10])}, "no token 10"),
    "negative token": ({"tokens": np.array([-1])}, "no token -1"),
    "count": ({"count": 11}, "another number of tokens"),
    "columns": ({"logits": np.zeros((10, 2), np.float32).T}, "must be contiguous"),
    "vocabulary": ({"logits": np.zeros((1, 0), np.float32)}, "the vocabulary is empty"),
    "sizes": ({"tokens": np.array([1, 2])}, "one entry in every array"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_does_not_fit_is_refused(wrong: str) -> None:
    fields, message = WRONG[wrong]
    arguments: dict[str, Any] = {"logits": np.zeros((2, 10), np.float32), "rows": np.array([1])}
    arguments |= {"tokens": np.array([3]), "count": 2, **fields}
    with pytest.raises(ValueError, match=message):
        sampling.NativeSampling(TIERS[0], TEAMS[1]).row_logprobs(**arguments)
