"""Native sampling draws the same tokens as the numpy sampler, which is the reference."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.backends.torch.sampling import noise
from octavo.backends.torch.sampling.filters import survivors

native = pytest.importorskip("octavo.backends.native._native")
sampling = pytest.importorskip("octavo.backends.native.sampling")

TEAMS = {threads: native.Team(threads, False) for threads in (1, 2, 5)}

Floats = NDArray[np.float32]
Longs = NDArray[np.int64]
Ints = NDArray[np.int32]


@pytest.fixture(params=native.tiers())
def tier(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def draw(
    tier: str,
    logits: Floats,
    temperature: float,
    seeds: Longs,
    cuts: tuple[float, float, int] = (0.0, 1.0, 0),
    threads: int = 1,
    rows: Longs | None = None,
) -> Ints:
    rows = np.arange(len(logits)) if rows is None else rows
    count = len(rows)
    tokens = np.full(count, -7, np.int32)
    min_p, top_p, top_k = cuts
    prompts = np.arange(count) % 3
    native.draw_tokens(
        tier, TEAMS[threads], logits, rows, np.arange(count), np.full(count, temperature),
        np.full(count, min_p), np.full(count, top_p), np.full(count, top_k), seeds, prompts,
        prompts + seeds % 50, tokens,
    )  # fmt: skip
    return tokens


def expected(
    logits: Floats, temperature: float, seeds: Longs, cuts: tuple[float, float, int]
) -> Longs:
    """Draw as octavo/backends/torch/sampling/sampler.py does."""
    spread = noise.spread(np.arange(logits.shape[1]))
    tokens = []
    for row, seed in zip(logits, seeds.tolist(), strict=True):
        scores = row.astype(np.float64) / temperature
        keys = [noise.keys(seed, seed % 50)]
        min_p, top_p, top_k = cuts
        ids = survivors(scores, min_p, top_k, top_p) if cuts != NO_CUTS else np.arange(len(row))
        tokens.append(int(ids[(scores[ids] + noise.gumbel(keys, spread[ids])[0]).argmax()]))
    return np.array(tokens)


NO_CUTS = (0.0, 1.0, 0)


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


@pytest.mark.parametrize("kind", ["plain", "flat", "peaked", "tied", "wide"])
@pytest.mark.parametrize("vocabulary", [1, 2, 90, 128, 129, 1000])
def test_warm_draws_are_numpys(tier: str, kind: str, vocabulary: int) -> None:
    """Some 24,000 draws are made at each of three temperatures, over the tiers."""
    rows = 200
    logits = make_logits(kind, rows, vocabulary, vocabulary)
    seeds = np.random.default_rng(1).integers(0, 2**63 - 1, rows)
    for temperature in (0.01, 0.8, 2.5):
        tokens = draw(tier, logits, temperature, seeds)
        assert np.array_equal(tokens, expected(logits, temperature, seeds, NO_CUTS))


def test_warm_draws_of_a_large_vocabulary_are_numpys(tier: str) -> None:
    logits = make_logits("plain", 40, 49_157, 2)
    seeds = np.arange(40) * 12_345
    tokens = draw(tier, logits, 1.0, seeds)
    assert np.array_equal(tokens, expected(logits, 1.0, seeds, NO_CUTS))


CUTS = [
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


@pytest.mark.parametrize("kind", ["plain", "flat", "peaked", "tied", "wide"])
@pytest.mark.parametrize("cuts", CUTS)
def test_cut_draws_are_numpys(tier: str, kind: str, cuts: tuple[float, float, int]) -> None:
    for vocabulary in (1, 90, 1000):
        logits = make_logits(kind, 40, vocabulary, vocabulary)
        seeds = np.random.default_rng(3).integers(0, 2**63 - 1, 40)
        for temperature in (0.3, 1.7):
            tokens = draw(tier, logits, temperature, seeds, cuts)
            assert np.array_equal(tokens, expected(logits, temperature, seeds, cuts))


@pytest.mark.parametrize("vocabulary", [1, 7, 64, 2048, 2049, 49_157])
def test_greedy_takes_the_first_of_the_largest(tier: str, vocabulary: int) -> None:
    logits = make_logits("tied", 30, vocabulary, 4)
    tokens = draw(tier, logits, 0.0, np.zeros(30, np.int64))
    assert np.array_equal(tokens, logits.argmax(axis=1))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("cuts", [NO_CUTS, (0.0, 0.9, 0)])
def test_what_is_not_finite_is_told_wherever_it_stands(
    tier: str, bad: float, cuts: tuple[float, float, int]
) -> None:
    places = [0, 1, 15, 16, 31, 63, 127, 128, 2047, 2048, 2060]
    logits = make_logits("plain", len(places) + 1, 2061, 5)
    logits[np.arange(len(places)), places] = bad
    for temperature in (0.0, 1.0):
        tokens = draw(tier, logits, temperature, np.arange(len(logits)), cuts)
        assert (tokens[:-1] == -1).all()
        assert tokens[-1] >= 0


def test_rows_are_drawn_alike_by_any_number_of_threads_and_in_any_order(tier: str) -> None:
    logits = make_logits("plain", 50, 300, 6)
    seeds = np.arange(50)
    alone = draw(tier, logits, 1.0, seeds)
    order = np.random.default_rng(7).permutation(50)
    for threads in (1, 2, 5):
        for cuts in (NO_CUTS, (0.0, 1.0, 300)):
            tokens = draw(tier, logits, 1.0, seeds[order], cuts, threads, order)
            assert np.array_equal(tokens, alone[order])


def test_rows_that_lie_apart_are_drawn_where_they_are(tier: str) -> None:
    """Rows lie apart if the vocabulary is no multiple of 16; nothing between them is read."""
    logits = make_logits("plain", 20, 300, 6)
    padded = np.full((20, 304), np.nan, np.float32)
    padded[:, :300] = logits
    for temperature in (0.0, 1.0):
        for cuts in (NO_CUTS, (0.0, 0.8, 50)):
            tokens = draw(tier, padded[:, :300], temperature, np.arange(20), cuts)
            assert np.array_equal(tokens, draw(tier, logits, temperature, np.arange(20), cuts))
    with pytest.raises(ValueError, match="must be contiguous"):
        draw(tier, np.asfortranarray(logits), 1.0, np.arange(20))


def test_rows_that_do_not_exist_are_refused(tier: str) -> None:
    logits = make_logits("plain", 2, 10, 8)
    with pytest.raises(ValueError, match="no logits of row 2"):
        draw(tier, logits, 1.0, np.zeros(1, np.int64), rows=np.array([2]))


def test_tokens_are_written_behind_those_that_are_known() -> None:
    known = np.arange(20, dtype=np.int32).reshape(4, 5)
    num_known = np.array([1, 4, 0, 5])
    native.append_tokens(np.array([2, 1]), np.array([70, 71], np.int32), known, num_known)
    assert known[2].tolist() == [70, 11, 12, 13, 14]
    assert known[1].tolist() == [5, 6, 7, 8, 71]
    assert num_known.tolist() == [1, 5, 1, 5]


@pytest.mark.parametrize(
    ("slots", "tokens", "message"),
    [([4], [1], "no slot 4"), ([-1], [1], "no slot -1"), ([0, 3], [1, 1], "slot 3 has no room")],
)
def test_a_token_for_which_there_is_no_place_changes_nothing(
    slots: list[int], tokens: list[int], message: str
) -> None:
    known, num_known = np.zeros((4, 5), np.int32), np.array([1, 4, 0, 5])
    with pytest.raises(ValueError, match=message):
        native.append_tokens(np.array(slots), np.array(tokens, np.int32), known, num_known)
    assert not known.any()
    assert num_known.tolist() == [1, 4, 0, 5]


def test_what_is_written_to_is_never_a_copy() -> None:
    """An array of another type would be copied, and the tokens would be lost."""
    with pytest.raises(TypeError):
        native.append_tokens(
            np.array([0]), np.array([1], np.int32), np.zeros((1, 5)), np.array([0])
        )
