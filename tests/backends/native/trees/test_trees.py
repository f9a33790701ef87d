"""Trees of drafts over the native engine change no bit of any answer."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pytest

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
        with mock.patch.object(DraftCounts, "_costs", return_value=(1.0, 0.0)):
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
