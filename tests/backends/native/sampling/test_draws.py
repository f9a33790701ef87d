"""Native draws are the reference's, for each kind of logits, filter and temperature."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.backends.base import Floats, Ints, Longs
from octavo.backends.native import _native
from octavo.backends.step import NO_TOKEN_LEFT, NOT_FINITE, Draws, Stage
from octavo.backends.torch.sampling import noise
from octavo.backends.torch.sampling.filters import survivors
from tests.backends.native.sampling import given_logits
from tests.backends.native.sampling.given_logits import sampling_of


@pytest.fixture(params=_native.tiers())
def tier(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def draw(
    tier: str,
    logits: Floats,
    temperature: float,
    seeds: Longs,
    filters: tuple[float, float, int] = (0.0, 1.0, 0),
    threads: int = 1,
    rows: Longs | None = None,
) -> Ints:
    """Draw for a slot of each seed; the token of a slot that fails is -1."""
    min_p, top_p, top_k = filters
    samplings = [
        sampling_of(
            output=[0] * (seed % 50),
            temperature=temperature,
            min_p=min_p,
            top_p=top_p,
            top_k=top_k,
            seed=seed,
        )
        for seed in seeds.tolist()
    ]
    output = given_logits.draw(logits, samplings, tier, threads, rows)
    tokens = np.array(output.tokens)[:, 0]
    for slot, message in output.failures:
        assert (tokens[slot], message) == (0, NOT_FINITE)
        tokens[slot] = -1
    return tokens


def expected(
    logits: Floats, temperature: float, seeds: Longs, filters: tuple[float, float, int]
) -> Longs:
    """Draw as the reference does."""
    spread = noise.spread(np.arange(logits.shape[1]))
    tokens = []
    for row, seed in zip(logits, seeds.tolist(), strict=True):
        scores = row.astype(np.float64) / temperature
        keys = [noise.keys(seed, seed % 50)]
        min_p, top_p, top_k = filters
        ids = (
            survivors(scores, min_p, top_k, top_p) if filters != NO_FILTERS else np.arange(len(row))
        )
        tokens.append(int(ids[(scores[ids] + noise.gumbel(keys, spread[ids])[0]).argmax()]))
    return np.array(tokens)


NO_FILTERS = (0.0, 1.0, 0)


def make_logits(kind: str, rows: int, vocabulary: int, seed: int) -> Floats:
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 3, (rows, vocabulary))
    if kind == "flat":
        logits *= 0
    elif kind == "peaked":
        logits[np.arange(rows), generator.integers(0, vocabulary, rows)] += 14
    elif kind == "tied":
        logits = np.round(logits)
    elif kind == "wide":
        logits *= 20
    return logits.astype(np.float32)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["plain", "flat", "peaked", "tied", "wide"])
@pytest.mark.parametrize("vocabulary", [1, 2, 90, 128, 129, 1000])
def test_warm_draws_are_numpys(tier: str, kind: str, vocabulary: int) -> None:
    """Some 24,000 draws are made at each of three temperatures, over the tiers."""
    rows = 200
    logits = make_logits(kind, rows, vocabulary, vocabulary)
    seeds = np.random.default_rng(1).integers(0, 2**63 - 1, rows)
    for temperature in (0.01, 0.8, 2.5):
        tokens = draw(tier, logits, temperature, seeds)
        assert np.array_equal(tokens, expected(logits, temperature, seeds, NO_FILTERS))


def test_warm_draws_of_a_large_vocabulary_are_numpys(tier: str) -> None:
    logits = make_logits("plain", 40, 49_157, 2)
    seeds = np.arange(40) * 12_345
    tokens = draw(tier, logits, 1.0, seeds)
    assert np.array_equal(tokens, expected(logits, 1.0, seeds, NO_FILTERS))


FILTERS = [
    (0.1, 1.0, 0),
    (0.0, 0.7, 0),
    (0.0, 1e-9, 0),
    (0.0, 0.9999, 0),
    (0.0, 1.0, 1),
    (0.0, 1.0, 5),
    (0.0, 1.0, 400),
    (0.0, 1.0, 5000),
    (0.02, 0.9, 30),
    (1.0, 0.5, 3),
]


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["plain", "flat", "peaked", "tied", "wide"])
@pytest.mark.parametrize("filters", FILTERS)
def test_filtered_draws_are_numpys(tier: str, kind: str, filters: tuple[float, float, int]) -> None:
    for vocabulary in (1, 90, 1000):
        logits = make_logits(kind, 40, vocabulary, vocabulary)
        seeds = np.random.default_rng(3).integers(0, 2**63 - 1, 40)
        for temperature in (0.3, 1.7):
            tokens = draw(tier, logits, temperature, seeds, filters)
            assert np.array_equal(tokens, expected(logits, temperature, seeds, filters))


@pytest.mark.parametrize("vocabulary", [1, 7, 64, 2048, 2049, 49_157])
def test_greedy_takes_the_first_of_the_largest(tier: str, vocabulary: int) -> None:
    logits = make_logits("tied", 30, vocabulary, 4)
    tokens = draw(tier, logits, 0.0, np.zeros(30, np.int64))
    assert np.array_equal(tokens, logits.argmax(axis=1))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("filters", [NO_FILTERS, (0.0, 0.9, 0)])
def test_what_is_not_finite_fails_wherever_it_stands(
    tier: str, bad: float, filters: tuple[float, float, int]
) -> None:
    places = [0, 1, 15, 16, 31, 63, 127, 128, 2047, 2048, 2060]
    logits = make_logits("plain", len(places) + 1, 2061, 5)
    logits[np.arange(len(places)), places] = bad
    for temperature in (0.0, 1.0):
        tokens = draw(tier, logits, temperature, np.arange(len(logits)), filters)
        assert (tokens[:-1] == -1).all()
        assert tokens[-1] >= 0


def test_rows_are_drawn_alike_by_any_number_of_threads_and_in_any_order(tier: str) -> None:
    logits = make_logits("plain", 50, 300, 6)
    seeds = np.arange(50)
    alone = draw(tier, logits, 1.0, seeds)
    order = np.random.default_rng(7).permutation(50)
    for threads in (1, 2, 5):
        for filters in (NO_FILTERS, (0.0, 1.0, 300)):
            tokens = draw(tier, logits, 1.0, seeds[order], filters, threads, order)
            assert np.array_equal(tokens, alone[order])


ALLOWED: dict[str, Any] = {
    "few": range(100, 300, 7),
    "one": [299],
    "many": range(3, 299),
    "unsorted": [250, 9, 17, 40],
}


@pytest.mark.parametrize("allowed", ALLOWED)
@pytest.mark.parametrize("filters", [NO_FILTERS, (0.01, 0.9, 20)])
@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_allowed_tokens_are_drawn_as_if_there_were_no_others(
    tier: str, allowed: str, filters: tuple[float, float, int], temperature: float
) -> None:
    """Few of them are gathered, and for many the row is copied."""
    logits = make_logits("tied", 30, 300, 11)
    ids = list(ALLOWED[allowed])
    min_p, top_p, top_k = filters
    fields: dict[str, Any] = {
        "temperature": temperature,
        "min_p": min_p,
        "top_p": top_p,
        "top_k": top_k,
    }
    samplings = [sampling_of(allowed=ids, seed=seed, **fields) for seed in range(30)]
    tokens = np.array(given_logits.draw(logits, samplings, tier).tokens)[:, 0]
    spread = noise.spread(np.arange(300))
    for row, seed in enumerate(range(30)):
        scores = np.full(300, -np.inf)
        scores[ids] = logits[row, ids].astype(np.float64) / (temperature or 1.0)
        if temperature:
            kept = survivors(scores, min_p, top_k, top_p)
            keys = [noise.keys(seed, 0)]
            best = int(kept[(scores[kept] + noise.gumbel(keys, spread[kept])[0]).argmax()])
        else:
            best = int(scores.argmax())
        assert tokens[row] == best


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "fields",
    [
        {"allowed": [1, 2]},
        {"allowed": range(3, 300)},
        {"bad_words": ((0,),)},
        {"min_tokens": 1, "stop_ids": [0]},
        {"bias_ids": [0], "bias": [1.0]},
        {"repetition": 2.0},
        {"logprobs": 3},
    ],
)
def test_a_rule_never_hides_a_logit_that_is_not_finite(
    tier: str, bad: float, fields: dict[str, Any]
) -> None:
    """The rules replace the logit of token 0, or look at others only."""
    logits = make_logits("plain", 2, 300, 5)
    logits[0, 0] = bad
    output = given_logits.draw(logits, [sampling_of(**fields)] * 2, tier)
    assert output.failures == ((0, NOT_FINITE),)
    assert [rows.slot for rows in output.logprobs] == ([1] if "logprobs" in fields else [])


@pytest.mark.parametrize(
    "fields",
    [
        {"allowed": [3, 4], "min_tokens": 1, "stop_ids": [3, 4]},
        {"allowed": [3], "bad_words": ((3,),), "temperature": 1.0, "top_k": 3},
        {"bad_words": tuple((token,) for token in range(300)), "temperature": 0.7},
        {"bad_words": tuple((token,) for token in range(300)), "bias_ids": [2], "bias": [100.0]},
    ],
)
def test_a_slot_with_no_token_left_fails_alone(tier: str, fields: dict[str, Any]) -> None:
    logits = make_logits("plain", 2, 300, 6)
    output = given_logits.draw(logits, [sampling_of(**fields), sampling_of()], tier)
    assert output.failures == ((0, NO_TOKEN_LEFT),)
    assert output.tokens == ((0,), (logits[1].argmax(),))


def test_rules_leave_the_logits_as_they_were(tier: str) -> None:
    """A row that rules change in place is restored before it is described and returned."""
    logits = make_logits("plain", 3, 300, 7)
    fields: dict[str, Any] = {"repetition": 1.5, "bias_ids": [1, 9], "bias": [4, -3]}
    samplings = [
        sampling_of([1, 2, 1], [9, 9, 1], logprobs=300, bad_words=((1, 1), (1,)), **fields),
        sampling_of([1, 2, 1], logprobs=5, allowed=range(2, 300), **fields),
        sampling_of([1, 2, 1], logprobs=5, allowed=[2, 3, 9], **fields),
    ]
    backend = given_logits.make_backend(logits, tier)
    each = np.arange(3, dtype=np.int32)
    draws = Draws((), tuple(enumerate(samplings)), each, each)
    backend.step(given_logits.make_batch(each), draws).collect()
    assert backend._runner is not None
    assert np.array_equal(backend._runner.results()[0], logits)


def test_of_equal_tokens_no_more_are_left_than_asked_for(tier: str) -> None:
    logits = np.zeros((1, 50), np.float32)
    logits[0, 0] = 20.0
    chain = (Stage("min_p", 0.5, min_keep=3), Stage("temperature", 1000.0))
    samplings = [sampling_of(temperature=1.0, chain=chain, seed=seed) for seed in range(64)]
    output = given_logits.draw(logits, samplings, tier, rows=np.zeros(64, np.int32))
    assert {token for tokens in output.tokens for token in tokens} == {0, 1, 2}
