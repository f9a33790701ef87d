"""The sampler agrees with a slow one, follows its distributions and treats rows independently."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from octavo.backends.step import NO_TOKEN_LEFT, NOT_FINITE
from octavo.backends.torch.sampling.filters import survivors
from octavo.backends.torch.sampling.sampler import Sampler
from octavo.backends.torch.sampling.slot import Slot
from octavo.core.plan import NewSlot
from octavo.core.sampling_params import SamplingParams
from octavo.runner.slot_sampling import slot_sampling
from tests.runner import reference

VOCABULARY = 90
STOP_IDS = (3, 4, 5, 200)  # one that does not exist
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "greedy": {"temperature": 0},
    "low temperature": {"temperature": 0.4},
    "nearly greedy": {"temperature": 2e-5},
    "top-p": {"top_p": 0.7},
    "tiny top-p": {"top_p": 1e-9},
    "top-k": {"top_k": 5},
    "top-k of one": {"top_k": 1},
    "top-k beyond the vocabulary": {"top_k": 1000},
    "min-p": {"min_p": 0.1},
    "all cuts": {"min_p": 0.02, "top_k": 30, "top_p": 0.9, "temperature": 1.7},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": -1.1, "temperature": 0},
    "repetition": {"repetition_penalty": 1.9, "temperature": 0},
    "penalties": {"repetition_penalty": 0.6, "presence_penalty": -1, "frequency_penalty": 2},
    "bias": {"logit_bias": {7: 100, 8: -100, 9: 2.5}},
    "allowed": {"allowed_token_ids": [1, 2, 80, 81]},
    "bad words": {"bad_words_token_ids": [[10], [1, 2], [2, 1, 3]], "temperature": 0},
    "min tokens": {"min_tokens": 6, "max_tokens": 9, "temperature": 0},
    "typical-p": {"sampler_options": {"typical_p": 0.6}},
    "tiny typical-p": {"sampler_options": {"typical_p": 1e-9}, "temperature": 1.3},
    "top-n-sigma": {"sampler_options": {"top_n_sigma": 1.0}, "temperature": 1.5},
    "xtc": {"sampler_options": {"xtc_probability": 1, "xtc_threshold": 0.05}},
    "xtc at times": {"sampler_options": {"xtc_probability": 0.5, "xtc_threshold": 0.01}},
    "dynamic temperature": {"sampler_options": {"dynatemp_range": 0.7}, "temperature": 0.9},
    "steep temperature": {
        "sampler_options": {"dynatemp_range": 2, "dynatemp_exponent": 3.5, "samplers": ["temp"]},
        "temperature": 1.1,
    },
    "kept tokens": {
        "sampler_options": {"min_keep": 4, "typical_p": 0.01, "xtc_probability": 1},
        "min_p": 0.9,
        "top_p": 0.01,
    },
    "llama.cpp's order": {
        "sampler_options": {
            "samplers": ["top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
            "top_n_sigma": 2.5,
            "typical_p": 0.9,
            "xtc_probability": 0.7,
            "dynatemp_range": 0.5,
        },
        "top_k": 30,
        "top_p": 0.95,
        "min_p": 0.01,
        "temperature": 1.4,
    },
    "xtc before greedy": {
        "sampler_options": {"samplers": ["xtc", "temperature"], "xtc_probability": 1.0},
        "temperature": 0,
    },
    "only some samplers": {
        "sampler_options": {"samplers": ["top_k", "temperature"]},
        "top_k": 4,
        "top_p": 0.1,
        "temperature": 3.0,
        "presence_penalty": 2.0,
    },
    "short window": {
        "sampler_options": {"repeat_last_n": 5},
        "repetition_penalty": 1.9,
        "frequency_penalty": 1.5,
        "presence_penalty": 1.0,
    },
    "no window": {"sampler_options": {"repeat_last_n": 0}, "repetition_penalty": 1.9},
    "dry": {"sampler_options": {"dry_multiplier": 2.0, "dry_allowed_length": 1}},
    "dry with breakers": {
        "sampler_options": {"dry_multiplier": 3.0, "dry_breaker_ids": [2, 5]},
        "temperature": 0,
    },
    "dry in a window": {
        "sampler_options": {"dry_multiplier": 1, "dry_base": 4, "dry_penalty_last_n": 9}
    },
    "mirostat 1": {"sampler_options": {"mirostat": 1, "mirostat_tau": 2.0}, "temperature": 1.2},
    "mirostat 1, narrow": {"sampler_options": {"mirostat": 1, "mirostat_tau": 0.7}},
    "mirostat 2": {
        "sampler_options": {"mirostat": 2, "mirostat_tau": 1.5, "samplers": ["top_k"]},
        "temperature": 1.2,
        "top_k": 1,
    },
    "mirostat 2, narrow": {"sampler_options": {"mirostat": 2, "mirostat_tau": 0.5}},
    "mirostat of few": {
        "sampler_options": {"mirostat": 1, "mirostat_tau": 2.0},
        "allowed_token_ids": [8, 9, 80],
    },
    "everything": {
        "temperature": 0.8,
        "top_p": 0.95,
        "top_k": 40,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "logit_bias": {5: 3},
        "bad_words_token_ids": [[6, 7], [9]],
        "min_tokens": 3,
        "allowed_token_ids": range(60),
    },
}


def make_slots(
    rows: list[tuple[SamplingParams, list[int], list[int]]],
    processors: Any = None,
    vocabulary: int = VOCABULARY,
) -> list[Slot]:
    """Open slots with these parameters, prompts and outputs."""
    slots = []
    for number, (sampling, prompt, output) in enumerate(rows):
        tokens = array("i", [*prompt, *output])
        new = NewSlot(number, "", tokens, len(prompt), ((1,),), sampling, None, STOP_IDS)
        known = np.array(tokens, np.int32)
        slots.append(Slot(slot_sampling(new, known, vocabulary, processors or {})))
    return slots


def random_rows(count: int, seed: int) -> tuple[Any, np.ndarray]:
    """Make rows for `make_slots` that use all features in turn, and logits for them."""
    generator = np.random.default_rng(seed)
    rows = []
    for number, fields in zip(range(count), list(FEATURES.values()) * count, strict=False):
        prompt = generator.integers(0, 20, int(generator.integers(1, 12))).tolist()
        output = generator.integers(0, 12, int(generator.integers(0, 8))).tolist()
        rows.append((SamplingParams(seed=1000 * seed + number, **fields), prompt, output))
    logits = generator.standard_normal((count, VOCABULARY)) * generator.choice([0.5, 2, 8])
    return rows, logits.astype(np.float32)


@pytest.mark.parametrize("seed", range(25))
def test_every_row_equals_the_slow_sampler_s_choice(seed: int) -> None:
    rows, logits = random_rows(2 * len(FEATURES), seed)
    tokens, failures = Sampler().draw(logits, make_slots(rows))
    stops = [token for token in STOP_IDS if token < VOCABULARY]
    for row, (sampling, prompt, output) in enumerate(rows):
        expected = reference.sample(logits[row].tolist(), sampling, prompt, output, stops)
        assert tokens[row] == expected, sampling
    assert not failures


@pytest.mark.parametrize("kind", ["mixed", "greedy", "warm"])
def test_a_row_does_not_depend_on_its_neighbours(kind: str) -> None:
    """A row gives the same token alone and in any order of the batch."""
    rows, logits = random_rows(40, 77)
    if kind != "mixed":
        temperature = 0.0 if kind == "greedy" else 1.0
        rows = [(SamplingParams(seed=s, temperature=temperature), [1], []) for s in range(40)]
    sampler, slots = Sampler(), make_slots(rows)
    together, _ = sampler.draw(logits, slots)
    order = np.random.default_rng(0).permutation(40)
    shuffled, _ = sampler.draw(logits[order], [slots[row] for row in order])
    assert np.array_equal(shuffled, together[order])
    for row in range(40):
        single, _ = sampler.draw(logits[row : row + 1], slots[row : row + 1])
        assert single[0] == together[row]


def test_counts_of_a_growing_sequence_equal_those_of_a_reopened_one() -> None:
    """Penalties do not depend on whether a sequence was preempted and opened again."""
    generator = np.random.default_rng(5)
    sampling = SamplingParams(
        presence_penalty=0.7, frequency_penalty=0.3, repetition_penalty=1.4, seed=3
    )
    grown = make_slots([(sampling, [4, 4, 9], [])])
    output: list[int] = []
    for _ in range(70):
        logits = generator.standard_normal((1, VOCABULARY)).astype(np.float32) * 3
        tokens, _ = Sampler().draw(logits, grown)
        fresh, _ = Sampler().draw(logits, make_slots([(sampling, [4, 4, 9], output)]))
        expected = reference.sample(logits[0].tolist(), sampling, [4, 4, 9], output)
        assert tokens[0] == fresh[0] == expected
        grown[0].append(int(tokens[0]))
        output.append(int(tokens[0]))
    assert len(set(output)) > 40


CUTS: dict[str, dict[str, Any]] = {
    "none": {},
    "hot": {"temperature": 2.0},
    "top-p": {"top_p": 0.6},
    "top-k": {"top_k": 4},
    "min-p": {"min_p": 0.2},
    "all": {"top_p": 0.9, "top_k": 6, "min_p": 0.05, "temperature": 0.7},
}


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("along", ["seeds", "positions"])
def test_draws_follow_the_distribution(name: str, along: str) -> None:
    """Excluded tokens never occur in 8,000 draws; the others occur as often as expected."""
    draws = 8_000
    logits = np.log(np.array([30, 20, 15, 10, 8, 6, 4, 3, 2, 1, 0.5, 0.5], np.float32))
    sampling = SamplingParams(seed=4, **CUTS[name])
    (slot,) = make_slots([(sampling, [1], [])], vocabulary=12)
    sampler = Sampler()
    counts = np.zeros(12)
    batch = logits[None]
    for number in range(draws):
        if along == "seeds":
            slot.sampling = replace(slot.sampling, seed=number)
        else:
            slot.tokens = [0] * (1 + number)
        tokens, _ = sampler.draw(batch, [slot])
        counts[tokens[0]] += 1
    chances = reference.distribution(logits.tolist(), sampling)
    chi = 0.0
    for token in range(12):
        due = draws * chances.get(token, 0.0)
        if due == 0:
            assert counts[token] == 0
        else:
            chi += (counts[token] - due) ** 2 / due
    freedom = len(chances) - 1
    assert chi < freedom + 4 * np.sqrt(2 * freedom) + 4


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 6.0, 60.0])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.99, 0.999999])
def test_the_nucleus_of_a_large_vocabulary(spread: float, top_p: float) -> None:
    """Sorting one bin only gives the same nucleus as sorting all tokens."""
    scores = np.random.default_rng(3).standard_normal(20_000) * spread
    scores[7] = scores[9_000] = scores[19_000]  # ties
    order = np.argsort(-scores, kind="stable")
    shares = np.exp(scores - scores.max())
    before = np.cumsum(shares[order]) - shares[order]
    expected = order[before < top_p * shares.sum()]
    kept = survivors(scores, 0.0, 0, top_p)
    # The sums may differ in the last bit, and so decide differently about one token at the edge.
    assert abs(len(kept) - len(expected)) <= 1
    assert len(np.setxor1d(kept, expected)) <= 1


def test_ties_at_the_edge_of_top_k_all_stay() -> None:
    scores = np.array([1.0, 5.0, 1.0, 1.0, 0.0])
    assert survivors(scores, 0.0, 2, 1.0).tolist() == [0, 1, 2, 3]
    assert survivors(scores, 0.0, 1, 1.0).tolist() == [1]


def test_a_request_with_no_token_left_fails_alone() -> None:
    rows: Any = [
        (SamplingParams(seed=1), [1], []),
        (SamplingParams(allowed_token_ids=(3, 4), min_tokens=2), [1], []),
        (SamplingParams(temperature=0), [1], []),
    ]
    logits = np.random.default_rng(1).standard_normal((3, VOCABULARY)).astype(np.float32)
    tokens, failures = Sampler().draw(logits, make_slots(rows))
    assert failures == {1: NO_TOKEN_LEFT}
    assert tokens[1] == 0
    assert tokens[2] == logits[2].argmax()


def only_even(prompt: np.ndarray, output: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Forbid odd tokens and all tokens that occurred before."""
    logits[1::2] = -np.inf
    logits[[*prompt, *output]] = -np.inf
    prompt[:] = 0  # only copies: the state must not change
    output[:] = 0
    return logits


def test_processors_by_name_and_as_functions() -> None:
    logits = np.random.default_rng(1).standard_normal((2, VOCABULARY)).astype(np.float32)
    rows = [
        (SamplingParams(temperature=0, logits_processors=("even",)), [0, 2], [4, 6]),
        (SamplingParams(temperature=0, logits_processors=(only_even,)), [0, 2], [4, 6]),
    ]
    slots = make_slots(rows, {"even": only_even})
    tokens, failures = Sampler().draw(np.repeat(logits[:1], 2, 0), slots)
    allowed = list(range(8, VOCABULARY, 2))
    assert tokens.tolist() == [allowed[logits[0, allowed].argmax()]] * 2
    assert not failures
    assert slots[0].tokens == slots[0].sampling.tokens.tolist() == [0, 2, 4, 6]


def raises(prompt: Any, output: Any, logits: Any) -> Any:
    raise KeyError("oops")


def shortens(prompt: Any, output: Any, logits: Any) -> Any:
    return logits[:3]


def gives_nan(prompt: Any, output: Any, logits: Any) -> Any:
    return logits * np.nan


def gives_infinity(prompt: Any, output: Any, logits: Any) -> Any:
    return logits + np.inf


def gives_nothing(prompt: Any, output: Any, logits: Any) -> Any:
    return None


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (raises, "logits processor raises failed: KeyError: 'oops'"),
        (shortens, r"logits processor shortens returned shape \(3,\); it must return \(90,\)"),
        (gives_nan, "gives_nan returned NaN or infinity"),
        (gives_infinity, "gives_infinity returned NaN or infinity"),
        (gives_nothing, "gives_nothing returned shape"),
    ],
)
def test_a_bad_processor_fails_its_own_request(processor: Any, message: str) -> None:
    rows: Any = [
        (SamplingParams(logits_processors=(processor,)), [1], []),
        (SamplingParams(temperature=0), [1], []),
    ]
    logits = np.random.default_rng(1).standard_normal((2, VOCABULARY)).astype(np.float32)
    tokens, failures = Sampler().draw(logits, make_slots(rows))
    with pytest.raises(ValueError, match=message):
        raise ValueError(failures[0])
    assert tokens[1] == logits[1].argmax()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("features", ["plain", "greedy", "everything"])
def test_a_row_that_is_not_finite_fails_alone(bad: float, features: str) -> None:
    rows: Any = [(SamplingParams(seed=1, **FEATURES[features]), [1], []) for _ in range(3)]
    logits = np.random.default_rng(1).standard_normal((3, VOCABULARY)).astype(np.float32)
    expected, _ = Sampler().draw(logits, make_slots(rows))
    logits[1, 70] = bad
    tokens, failures = Sampler().draw(logits, make_slots(rows))
    assert failures == {1: NOT_FINITE}
    assert tokens.tolist() == [expected[0], 0, expected[2]]


def packed(allowed: np.ndarray) -> np.ndarray:
    """Return masks of tokens as bits, 32 to a word."""
    words = -(-allowed.shape[1] // 32)
    bits = np.zeros((len(allowed), 32 * words), np.bool_)
    bits[:, : allowed.shape[1]] = allowed
    return np.packbits(bits, axis=1, bitorder="little").view(np.uint32)


@pytest.mark.parametrize("seed", range(5))
def test_a_mask_is_a_list_of_allowed_tokens_after_the_other_rules(seed: int) -> None:
    """Masks of single rows forbid what the slow sampler is forbidden by an infinite bias."""
    rows, logits = random_rows(2 * len(FEATURES), seed)
    allowed = np.random.default_rng(seed).random(logits.shape) < 0.6
    allowed[:, [1, 2, 80]] = True  # some of each request's own allowed tokens
    tokens, failures = Sampler().draw(logits, make_slots(rows), packed(allowed))
    assert not failures
    stops = [token for token in STOP_IDS if token < VOCABULARY]
    for row, (sampling, prompt, output) in enumerate(rows):
        kept = np.where(allowed[row], logits[row], -np.inf).tolist()
        assert tokens[row] == reference.sample(kept, sampling, prompt, output, stops), sampling


def test_a_mask_that_leaves_nothing_fails_its_row() -> None:
    rows: Any = [(SamplingParams(temperature=0), [1], []), (SamplingParams(seed=3), [1], [])]
    logits = np.random.default_rng(1).standard_normal((2, VOCABULARY)).astype(np.float32)
    allowed = np.zeros(logits.shape, np.bool_)
    allowed[1, 89] = True
    tokens, failures = Sampler().draw(logits, make_slots(rows), packed(allowed))
    assert failures == {0: NO_TOKEN_LEFT}
    assert tokens.tolist() == [0, 89]
