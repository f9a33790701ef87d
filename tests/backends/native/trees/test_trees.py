"""Trees of drafts over the native engine change no bit of any answer."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pytest

from octavo.backends.step import NO_ROWS, Draws, batch_of_copies
from octavo.core.pace.draft_counts import DraftCounts
from octavo.core.plan import LogprobsPayload
from octavo.core.request import Request, TokenEvent
from octavo.core.trees.form import ROOT, DraftTree
from octavo.models.llama import Llama
from octavo.runner.speculate.proposer import NOTHING, Proposal
from tests.backends.native.tiny import make_native
from tests.runner.speculate.drawn_trees import TreesOfText
from tests.runner.tiny import (
    FULL,
    VOCABULARY,
    Engine,
    Family,
    Mixed,
    latent,
    make_groups,
    make_request,
    tokens_of,
)

NUM_PROMPT = 43
NUM_KNOWN = 4  # tokens of the answer before the tree of `OneTree`
WAYS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0, "logprobs": -1},
    {"seed": 5, "temperature": 1.3, "top_p": 0.95, "repetition_penalty": 1.2, "logprobs": -1},
)
FAMILIES: dict[str, tuple[Family, Any]] = {
    "full": (Llama, FULL),
    "windows": (Llama, (None, 9)),
    "only windows": (Llama, (13, 13)),
    "two shapes": (Mixed, FULL),
    "latent": (latent, FULL),
}
CASES = [
    (family, kv_dtype, threads)
    for family in FAMILIES
    for kv_dtype in ("float32", "bfloat16", "int8", "int4")
    for threads in (1, 3)
    if (family, kv_dtype) != ("latent", "int4")
]


def requests(way: dict[str, Any]) -> list[Request]:
    """Make requests with several prompts; the last is the one whose text is drafted."""
    generator = np.random.default_rng(3)
    made = []
    for number in range(4):
        length = NUM_PROMPT if number == 3 else 20 + 11 * number
        prompt = generator.integers(0, VOCABULARY, length).tolist()
        made.append(make_request(str(number), prompt, max_tokens=60, ignore_eos=True, **way))
    return made


def bits(events: list[TokenEvent]) -> tuple[list[int], list[Any]]:
    """Return the tokens of an answer, and its log-probabilities."""
    found: list[Any] = []
    for event in events:
        payload = event.payload
        if isinstance(payload, LogprobsPayload):
            found.extend(each.logprobs.tobytes() for each in payload.sampled[: len(event.tokens)])
    return tokens_of(events), found


@pytest.mark.slow
@pytest.mark.sample(6)
@pytest.mark.parametrize(("family", "kv_dtype", "threads"), CASES)
def test_answers_are_those_without_drafts(family: str, kv_dtype: str, threads: int) -> None:
    made, windows = FAMILIES[family]
    make = partial(make_native, family=made, kv_dtype=kv_dtype, num_threads=threads)
    groups = make_groups(windows, 16, made, kv_dtype)
    settings: dict[str, Any] = {"block_size": 16, "groups": groups, "make": make}
    for way in WAYS:
        plain = Engine(windows, **settings)
        right = {name: bits(each) for name, each in plain.answer(*requests(way)).items()}
        proposer = TreesOfText(right["3"][0], NUM_PROMPT, VOCABULARY)
        fields = {**settings, "max_drafts": 12, "max_branches": 24, "proposer": proposer}
        engine = Engine(windows, **fields)
        with mock.patch.object(DraftCounts, "_costs", return_value=None):
            found = engine.answer(*requests(way))
        assert {name: bits(each) for name, each in found.items()} == right
        stats = engine.core.scheduler.stats
        assert stats.num_drafts > stats.num_accepted_drafts > 20
        assert sum(len(plan.branches) for plan in engine.plans) > 40


class OneTree(TreesOfText):
    """A proposer of one tree, in which a right branch is beside a longer wrong chain."""

    def _tree(self, num_output: int) -> Proposal:
        if num_output != NUM_KNOWN:
            return NOTHING
        right = self._right[num_output : num_output + 3]
        wrong = [(token + 1) % VOCABULARY for token in (*right, 0)]
        return Proposal([*wrong, *right], (), DraftTree((ROOT, 0, 1, 2, ROOT, 4, 5)))


def fail_behind(num_tokens: int, prompt: Any, output: Any, row: Any) -> Any:
    """Fail where so many tokens are drawn."""
    if len(output) >= num_tokens:
        raise ValueError("there are enough")
    return row


def forbid_behind(num_tokens: int, prompt: Any, output: Any, row: Any) -> Any:
    """Leave no token where so many are drawn."""
    return np.full_like(row, -np.inf) if len(output) >= num_tokens else row


@pytest.mark.slow
def test_rows_of_a_branch_whose_draw_failed_are_not_shared() -> None:
    """The branch ends the text. A function of its request fails behind that end."""
    settings: dict[str, Any] = {"block_size": 16, "groups": make_groups(FULL, 16)}
    settings["make"] = make_native
    prompt = np.random.default_rng(0).integers(0, VOCABULARY, NUM_PROMPT).tolist()
    way: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
    asked = make_request("a", prompt, max_tokens=NUM_KNOWN + 3, **way)
    right = tokens_of(Engine(FULL, **settings).answer(asked)["a"])
    end = right[-1]
    assert end not in right[:-1]
    following = {"max_tokens": 4, "logprobs": -1, **way}
    prompt_behind = [*prompt, *right[:-1]]
    expected = Engine(FULL, **settings).answer(make_request("b", prompt_behind, **following))["b"]
    proposer = OneTree(right, NUM_PROMPT, VOCABULARY)
    engine = Engine(FULL, **settings, max_drafts=12, max_branches=24, proposer=proposer)
    failing = partial(fail_behind, len(right))
    one = make_request(
        "a", prompt, max_tokens=30, stop_token_ids=(end,), logits_processors=(failing,), **way
    )
    found = engine.answer(one)["a"]
    assert (tokens_of(found), found[-1].finish_reason) == (right, "stop")
    assert engine.core.scheduler.stats.num_accepted_drafts == 3
    found = engine.answer(make_request("b", prompt_behind, **following))["b"]
    assert bits(found) == bits(expected)


def content_of(engine: Engine, index: int, num_tokens: int) -> np.ndarray:
    """Return what a block of the sequence `a` holds once it has, or had, so many tokens."""
    block = 0
    while (sequence := engine.core.scheduler.sequences.get("a")) is not None:
        if sequence.num_planned:
            block = sequence.tables[0][index]
        if len(sequence.tokens) >= num_tokens:
            break
        engine.step()
    batch = batch_of_copies(())._replace(saves=((block, 0),))
    (saved,) = engine.runner._backend.step(batch, Draws((), (), NO_ROWS, NO_ROWS)).collect().saved
    return saved


@pytest.mark.slow
@pytest.mark.parametrize("is_raised", [True, False])
def test_a_branch_is_kept_up_to_a_draw_that_fails(*, is_raised: bool) -> None:
    """Two of its drafts are accepted; behind them a function fails, or forbids all tokens."""
    settings: dict[str, Any] = {"block_size": 16, "groups": make_groups(FULL, 16)}
    settings["make"] = make_native
    prompt = np.random.default_rng(0).integers(0, VOCABULARY, NUM_PROMPT).tolist()
    way: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
    asked = make_request("a", prompt, max_tokens=NUM_KNOWN + 4, **way)
    right = tokens_of(Engine(FULL, **settings).answer(asked)["a"])
    block, num_tokens = (NUM_PROMPT + NUM_KNOWN) // 16, NUM_PROMPT + NUM_KNOWN + 2
    plain = Engine(FULL, **settings)
    plain.core.on_event(asked)
    expected = content_of(plain, block, num_tokens)
    engine = Engine(
        FULL,
        **settings,
        max_drafts=12,
        max_branches=24,
        proposer=OneTree(right, NUM_PROMPT, VOCABULARY),
    )
    failing = partial(fail_behind if is_raised else forbid_behind, NUM_KNOWN + 2)
    engine.core.on_event(
        make_request("a", prompt, max_tokens=30, logits_processors=(failing,), **way)
    )
    found = content_of(engine, block, num_tokens)
    assert engine.core.scheduler.stats.num_accepted_drafts == 2
    np.testing.assert_array_equal(found, expected)
