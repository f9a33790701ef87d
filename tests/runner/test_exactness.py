"""A request's tokens and log-probabilities are the same however it is run.

Every way of running the request is compared with running it alone in an engine. That result is
itself compared with a plain loop of forward passes and the slow sampler of reference.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest

from octavo.backends.step import HostBatch
from octavo.core.pace.draft_counts import DraftCounts
from octavo.core.plan import LogprobsPayload, NewSlot
from octavo.core.request import Abort, Request, TokenEvent
from octavo.core.sampling_params import SamplingParams
from octavo.runner.speculate.proposer import Proposal, Turn
from tests.runner import reference
from tests.runner.speculate.drawn_trees import TreesOfText
from tests.runner.tiny import (
    FULL,
    VOCABULARY,
    Engine,
    Windows,
    make_backend,
    make_request,
    tokens_of,
)

WAYS_TO_SAMPLE: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "greedy, penalties": {
        "temperature": 0.0,
        "presence_penalty": 0.7,
        "frequency_penalty": 0.4,
        "repetition_penalty": 1.3,
    },
    "greedy, rules": {
        "temperature": 0.0,
        "logit_bias": {3: 4.0, 9: -50.0},
        "min_tokens": 20,
        "bad_words_token_ids": [[5], [3, 3], [7, 3, 8]],
        "stop_token_ids": tuple(range(0, 61, 3)),
    },
    "greedy, logprobs": {"temperature": 0.0, "logprobs": 5, "prompt_logprobs": 3},
    "greedy, named logprobs": {"temperature": 0.0, "logprob_token_ids": (40, 3)},
    "seeded": {"seed": 11},
    "seeded, cold": {"seed": 12, "temperature": 0.3},
    "seeded, cut": {"seed": 13, "temperature": 1.3, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    "seeded, penalties": {
        "seed": -14,
        "presence_penalty": -0.5,
        "frequency_penalty": 1.0,
        "repetition_penalty": 0.8,
        "top_p": 0.95,
    },
    "seeded, rules": {
        "seed": 15,
        "min_tokens": 12,
        "logit_bias": {1: 2.0},
        "allowed_token_ids": range(1, 50),
        "stop_token_ids": (2, 4, 6, 8, 10),
    },
    "seeded, samplers": {
        "seed": 17,
        "temperature": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "sampler_options": {
            "typical_p": 0.95,
            "top_n_sigma": 2.5,
            "xtc_probability": 0.4,
            "min_keep": 2,
            "dynatemp_range": 0.6,
            "repeat_last_n": 9,
            "xtc_threshold": 0.05,
            "dry_multiplier": 0.8,
            "dry_allowed_length": 1,
            "dry_breaker_ids": (5, 6),
        },
    },
    "seeded, ordered samplers": {
        "seed": 18,
        "temperature": 1.4,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.01,
        "sampler_options": {
            "samplers": ["dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
            "typical_p": 0.9,
            "xtc_probability": 0.5,
            "xtc_threshold": 0.1,
            "dry_multiplier": 2.0,
            "dry_penalty_last_n": 20,
        },
    },
    "seeded, logprobs": {"seed": 16, "logprobs": -1, "prompt_logprobs": 0},
    "seeded, mirostat 1": {
        "seed": 19,
        "temperature": 1.3,
        "frequency_penalty": 0.5,
        "sampler_options": {"mirostat": 1, "mirostat_tau": 2.0, "mirostat_eta": 0.5},
    },
    "seeded, mirostat 2": {
        "seed": 20,
        "top_k": 2,
        "logprobs": 2,
        "sampler_options": {"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.8},
    },
}
SHAPES: dict[str, Windows] = {"full": FULL, "windows": (None, 9), "only windows": (13, 13)}
PROMPT = np.random.default_rng(1).integers(0, VOCABULARY, 43).tolist()
Summary = tuple[list[int], list[Any], list[Any], str | None]


def the_request(way: str, name: str = "it", **fields: Any) -> Request:
    return make_request(name, PROMPT, max_tokens=32, **WAYS_TO_SAMPLE[way], **fields)


def summary(events: list[TokenEvent]) -> Summary:
    """Return tokens, log-probabilities, those of the prompt by position, and the finish reason."""
    sampled: list[Any] = []
    prompt: dict[int, Any] = {}
    for event in events:
        if event.payload is not None:
            assert isinstance(event.payload, LogprobsPayload)
            sampled.extend(event.payload.sampled[: len(event.tokens)])
            for position, entry in enumerate(event.payload.prompt, event.payload.prompt_start):
                assert prompt.setdefault(position, entry) == entry, f"two entries for {position}"
    return tokens_of(events), sampled, sorted(prompt.items()), events[-1].finish_reason


_ALONE: dict[tuple[str, str], Summary] = {}


def alone(shape: str, way: str) -> Summary:
    """Return the summary of the request when it has an engine to itself."""
    if (shape, way) not in _ALONE:
        _ALONE[shape, way] = summary(Engine(SHAPES[shape]).answer(the_request(way))["it"])
    return _ALONE[shape, way]


def others(count: int) -> list[Request]:
    """Make requests of all kinds and lengths to run next to the tested one."""
    generator = np.random.default_rng(2)
    ways = list(WAYS_TO_SAMPLE.values())
    return [
        make_request(
            f"other {number}",
            generator.integers(0, VOCABULARY, int(generator.integers(1, 60))).tolist(),
            max_tokens=int(generator.integers(1, 40)) + 20,
            **ways[number % len(ways)],
        )
        for number in range(count)
    ]


def in_a_batch(shape: str, way: str) -> list[TokenEvent]:
    neighbours = others(31)
    engine = Engine(SHAPES[shape])
    answers = engine.answer(*neighbours[:15], the_request(way), *neighbours[15:])
    assert max(len(plan.slots) for plan in engine.plans) == 32
    return answers["it"]


def chunked(shape: str, way: str) -> list[TokenEvent]:
    engine = Engine(SHAPES[shape], long_prefill_tokens=7)
    events = engine.answer(the_request(way))["it"]
    assert [plan.counts for plan in engine.plans[:7]] == [(7,)] * 6 + [(1,)]
    return events


def prompt_logprobs_in_pieces(shape: str, way: str) -> list[TokenEvent]:
    engine = Engine(SHAPES[shape], prompt_logprob_tokens=9)
    events = engine.answer(*others(3), the_request(way))["it"]
    if "prompt_logprobs" in WAYS_TO_SAMPLE[way]:
        assert sum(event.payload is not None and not event.tokens for event in events) >= 4
    return events


# Numbers of blocks, so low that the last of four sequences is preempted. There is none for "only
# windows": where every layer has a window, the KV of a sequence hardly grows.
TINY_POOLS = {"full": 48, "windows": 60}


def preempted(shape: str, way: str) -> list[TokenEvent]:
    """Run the request last in a pool too small for all: it loses its KV in mid-output."""
    pool = TINY_POOLS[shape]
    engine = Engine(SHAPES[shape], num_blocks=pool, max_num_batched_tokens=24, watermark=0.0)
    events = engine.answer(*others(3), the_request(way))["it"]
    stats = events[-1].stats
    assert stats is not None
    assert stats.num_preemptions > 0
    return events


def displaced(shape: str, way: str, **settings: Any) -> list[TokenEvent]:
    """Let urgent requests take the only slot, in mid-prompt and in mid-output."""
    engine = Engine(
        SHAPES[shape], policy="priority", max_num_seqs=1, long_prefill_tokens=25, **settings
    )
    engine.core.on_event(the_request(way))
    events: list[TokenEvent] = []
    for number, num_steps in enumerate((1, 9, 5)):
        for _ in range(num_steps):
            events += engine.step()
        prompt = [number, *PROMPT[:5]]
        urgent = make_request(f"urgent {number}", prompt, priority=-1, max_tokens=3, seed=1)
        engine.core.on_event(urgent)
    events += engine.finish()
    events = [event for event in events if event.request_id == "it"]
    stats = events[-1].stats
    assert stats is not None
    assert stats.num_preemptions == 3
    return events


def displaced_without_caching(shape: str, way: str) -> list[TokenEvent]:
    return displaced(shape, way, prefix_caching=False)


def from_the_cache(shape: str, way: str) -> list[TokenEvent]:
    engine = Engine(SHAPES[shape])
    engine.answer(make_request("before", PROMPT[:30], temperature=0.0, max_tokens=1))
    events = engine.answer(the_request(way))["it"]
    stats = events[-1].stats
    assert stats is not None
    reads = "prompt_logprobs" not in WAYS_TO_SAMPLE[way]
    assert stats.num_cached_tokens == (28 if reads else 0)
    return events


def overlapped(shape: str, way: str) -> list[TokenEvent]:
    return _at_depth(shape, way, 2)


def overlapped_thrice(shape: str, way: str) -> list[TokenEvent]:
    return _at_depth(shape, way, 3)


def _at_depth(shape: str, way: str, depth: int) -> list[TokenEvent]:
    engine = Engine(SHAPES[shape], pipeline_depth=depth, max_num_batched_tokens=40)
    events = engine.answer(*others(4), the_request(way))["it"]
    assert max(len(plan.slots) for plan in engine.plans) > 3
    return events


def overlapped_and_preempted(shape: str, way: str) -> list[TokenEvent]:
    return displaced(shape, way, pipeline_depth=2)


def overlapped_and_speculated(shape: str, way: str) -> list[TokenEvent]:
    return speculated(shape, way, depth=2)


def resumed(shape: str, way: str) -> list[TokenEvent]:
    """Stop an engine in mid-output and let another continue from the emitted tokens."""
    first = Engine(SHAPES[shape])
    first.core.on_event(the_request(way))
    events: list[TokenEvent] = []
    while len(tokens_of(events)) < 9:
        events.extend(first.step())
    second = Engine(SHAPES[shape], block_size=8)
    known, state = tokens_of(events), events[-1].sampler_state
    again = the_request(way, emitted=known, sampler_state=state)
    return events + second.answer(again)["it"]


def forked(shape: str, way: str) -> list[TokenEvent]:
    """Fork the request from a running one with the same prompt, and abort that one."""
    engine = Engine(SHAPES[shape])
    engine.core.on_event(make_request("parent", PROMPT, seed=99, max_tokens=60))
    engine.step()
    engine.core.on_event(the_request(way, parent_id="parent"))
    events = engine.step()
    if "prompt_logprobs" not in WAYS_TO_SAMPLE[way]:
        assert engine.plans[-1].copies
    engine.core.on_event(Abort("parent"))
    events += engine.finish()
    return [event for event in events if event.request_id == "it"]


class NearlyRight:
    """A proposer that proposes the right text with a mistake now and then."""

    most = 64

    def __init__(self, right: list[int]) -> None:
        self.right = right
        self.num_guessed = 0

    def open(self, new: NewSlot) -> None:
        pass

    def free(self, slot: int) -> None:
        pass

    def forget(self) -> None:
        pass

    def propose(self, turns: Sequence[Turn]) -> list[Proposal]:
        return [Proposal(self._drafts(tokens, most)) for _, tokens, most in turns]

    def _drafts(self, tokens: Any, most: int) -> list[int]:
        behind = len(tokens) - len(PROMPT)
        drafts = self.right[behind : behind + most]
        if behind % 3 == 2 and drafts:
            drafts[-1] = (drafts[-1] + 1) % VOCABULARY
        self.num_guessed += len(drafts)
        return drafts


def speculated(shape: str, way: str, depth: int = 1) -> list[TokenEvent]:
    proposer = NearlyRight(alone(shape, way)[0])
    engine = Engine(SHAPES[shape], max_drafts=4, proposer=proposer, pipeline_depth=depth)
    events = engine.answer(the_request(way))["it"]
    stats = engine.core.scheduler.stats
    assert proposer.num_guessed >= stats.num_drafts > stats.num_accepted_drafts > 0
    return events


def branched(shape: str, way: str, **settings: Any) -> list[TokenEvent]:
    """Run with trees of drafts, whose accepted ones are mostly not in the chunk's own rows."""
    proposer = TreesOfText(alone(shape, way)[0], len(PROMPT), VOCABULARY)
    fields = {"max_drafts": 12, "max_branches": 12, "proposer": proposer, **settings}
    engine = Engine(SHAPES[shape], **fields)
    with mock.patch.object(DraftCounts, "_costs", return_value=None):
        events = engine.answer(*others(3), the_request(way))["it"]
    stats = engine.core.scheduler.stats
    assert stats.num_drafts > stats.num_accepted_drafts > 6
    assert max(len(plan.branches) for plan in engine.plans) >= 3
    return events


def branched_in_small_blocks(shape: str, way: str) -> list[TokenEvent]:
    return branched(shape, way, block_size=2)


WAYS_TO_RUN: dict[str, Callable[[str, str], list[TokenEvent]]] = {
    "in a batch": in_a_batch,
    "chunked": chunked,
    "prompt logprobs in pieces": prompt_logprobs_in_pieces,
    "preempted": preempted,
    "displaced": displaced,
    "displaced without caching": displaced_without_caching,
    "from the cache": from_the_cache,
    "overlapped": overlapped,
    "overlapped thrice": overlapped_thrice,
    "overlapped and preempted": overlapped_and_preempted,
    "overlapped and speculated": overlapped_and_speculated,
    "resumed": resumed,
    "forked": forked,
    "speculated": speculated,
    "branched": branched,
    "branched in small blocks": branched_in_small_blocks,
}


DRAFTING = (*("speculated", "overlapped and speculated"), *("branched", "branched in small blocks"))
CASES = [
    (shape, run, way)
    for shape in SHAPES
    for run in WAYS_TO_RUN
    for way in WAYS_TO_SAMPLE
    if shape in TINY_POOLS or (run != "preempted" and way in ("greedy, logprobs", "seeded, cut"))
    if not ("mirostat" in way and run in DRAFTING)
]


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize(("shape", "run", "way"), CASES)
def test_it_is_the_same_as_alone(shape: str, run: str, way: str) -> None:
    """Tokens, every bit of the log-probabilities and the finish reason are equal."""
    assert summary(WAYS_TO_RUN[run](shape, way)) == alone(shape, way)


@pytest.mark.parametrize("way", [way for way in WAYS_TO_SAMPLE if "mirostat" in way])
def test_a_sampler_with_a_state_gets_no_drafts(way: str) -> None:
    """Each token changes what the next one is drawn by."""
    proposer = NearlyRight(alone("full", way)[0])
    engine = Engine(FULL, max_drafts=4, proposer=proposer)
    assert summary(engine.answer(the_request(way))["it"]) == alone("full", way)
    assert engine.core.scheduler.stats.num_drafts == proposer.num_guessed == 0


@pytest.mark.parametrize("way", [way for way in WAYS_TO_SAMPLE if "mirostat" in way])
def test_a_text_that_is_continued_without_its_state_is_another_one(way: str) -> None:
    """The state matters: tests that continue texts with it would notice its loss."""
    events = Engine(FULL).answer(the_request(way))["it"]
    known = tokens_of(events)[:9]
    lost = Engine(FULL).answer(the_request(way, emitted=known))["it"]
    assert known + tokens_of(lost) != tokens_of(events)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", WAYS_TO_SAMPLE)
def test_alone_is_what_a_plain_loop_gives(shape: str, way: str) -> None:
    """One forward pass over all tokens per step and the slow sampler give the same result."""
    sampling = SamplingParams(max_tokens=32, **WAYS_TO_SAMPLE[way])
    tokens = list(PROMPT)
    while True:
        rows = forward(SHAPES[shape], tokens)
        output = tokens[len(PROMPT) :]
        before, stops = rows[len(PROMPT) - 1 : -1].tolist(), sampling.stop_token_ids
        mu = reference.state_behind(before, sampling, PROMPT, output, stops)
        token = reference.sample(rows[-1], sampling, PROMPT, output, stops, mu)
        tokens.append(token)
        done = token in sampling.stop_token_ids and len(output) + 1 >= sampling.min_tokens
        if done or len(output) + 1 == sampling.max_tokens:
            break
    text, sampled, prompt, reason = alone(shape, way)
    assert text == tokens[len(PROMPT) :]
    assert reason == ("stop" if done else "length")
    # Each entry must belong to the token at its position and be right to single precision.
    exact = rows.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    if sampling.prompt_logprobs is not None:
        assert [position for position, _ in prompt] == list(range(1, len(PROMPT)))
        entries = [*prompt, *enumerate(sampled, len(PROMPT))]
        for position, entry in entries:
            assert entry.token_ids[0] == tokens[position]
            row = exact[position - 1]
            np.testing.assert_allclose(entry.logprobs, row[list(entry.token_ids)], atol=1e-5)
            assert (
                entry.rank == 1 + (rows[position - 1] > rows[position - 1][tokens[position]]).sum()
            )
            count = sampling.prompt_logprobs if position < len(PROMPT) else sampling.logprobs
            assert count is not None
            likeliest = np.argsort(-rows[position - 1], kind="stable")[: count % (VOCABULARY + 1)]
            assert list(entry.token_ids[1:]) == likeliest.tolist()


def forward(windows: Windows, tokens: list[int]) -> np.ndarray:
    """Return the logits after each token, from one pass on a separate backend."""
    block_size, count = 16, len(tokens)
    backend = make_backend(windows, 33, block_size)
    groups = len(set(windows))
    tables = np.arange(1, 1 + groups * 8, dtype=np.int32).reshape(groups, 1, 8)
    rows = np.arange(count, dtype=np.int32)
    starts = np.array([0, count], np.int32)
    batch = HostBatch(np.array(tokens, np.int32), rows, starts, tuple(tables), rows)
    return backend.forward(batch).logits
