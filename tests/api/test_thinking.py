"""Budgets of reasoning tokens hold in real texts, which are the same in any company."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams, StructuredOutputsParams
from octavo.api.outputs import RequestError
from octavo.formats.description import Formats
from octavo.formats.registry import reasoning_format
from tests.api.test_overlap import said, same_at_every_depth
from tests.api.tiny import TEMPLATE, make_model

OPEN, CLOSE = 2, 3
PROMPTS = ["The quick<think>", "A day in<think>\n", "Ein Tag", "x<think>", "y<think>z</think>"]
REGEX = "(ab|cd){3,9}!"
AFTER = StructuredOutputsParams(
    grammar=f"start: THOUGHT <[{CLOSE}]> ANSWER\nTHOUGHT: /(?s:.*)/\nANSWER: /{REGEX}/"
)
PARAMS = [
    SamplingParams(max_tokens=30, seed=1, thinking_token_budget=9),
    SamplingParams(max_tokens=30, temperature=0.0, thinking_token_budget=0, ignore_eos=True),
    SamplingParams(
        max_tokens=30, seed=2, thinking_token_budget=3, logit_bias=((OPEN, 100.0),), logprobs=1
    ),
    SamplingParams(max_tokens=60, seed=3, thinking_token_budget=12, structured_outputs=AFTER),
    SamplingParams(max_tokens=30, seed=4, thinking_token_budget=5),
]
FORKS = SamplingParams(max_tokens=30, seed=1, n=3, thinking_token_budget=9, ignore_eos=True)
WAYS: tuple[dict[str, Any], ...] = (
    {"num_gpu_blocks_override": 12},  # so few that sequences are preempted, and begin anew
    {"max_num_batched_tokens": 3, "max_num_seqs": 1},
    {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
    {"async_scheduling": True, "speculative_config": {"method": "ngram"}},
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    special = ("<s>", "</s>", "<think>", "</think>")
    return make_model(tmp_path_factory.mktemp("tiny"), f"{TEMPLATE}{{# <think> #}}", special)


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_reasoning_ends_within_its_budget(directory: Path, backend: str) -> None:
    if backend == "torch":
        pytest.importorskip("torch")
    outputs = same_at_every_depth(directory, backend, PROMPTS, PARAMS)
    answers = [output.outputs[0] for output in outputs]
    tokens = [list(answer.token_ids) for answer in answers]
    assert all(answer.error is None for answer in answers)
    assert tokens[0].index(CLOSE) <= 9
    assert tokens[1][0] == CLOSE
    assert tokens[2][:5] == [OPEN] * 4 + [CLOSE]
    assert tokens[2][5:] == [OPEN] * 25, "a later mark opens nothing"
    assert tokens[3].index(CLOSE) <= 12 + 3, "a character is completed before"
    assert re.fullmatch(f"(?s:.*?){REGEX}", answers[3].text)
    assert CLOSE not in tokens[4], "the prompt has closed it"
    if backend == "native":
        forked = set()
        for options in WAYS:
            with LLM(str(directory), backend="native", num_threads=1, **options) as llm:
                assert said(llm.generate(PROMPTS, PARAMS, use_tqdm=False)) == said(outputs)
                (whole,) = llm.generate(PROMPTS[0], FORKS, use_tqdm=False)
                forked.add(tuple(tuple(each.token_ids) for each in whole.outputs))
        (forks,) = forked
        assert len(set(forks)) == 3
        assert all(fork.index(CLOSE) <= 9 for fork in forks), "each fork has a budget of its own"


def test_a_budget_that_cannot_be_kept_is_refused(directory: Path) -> None:
    pytest.importorskip("octavo.backends.native._native")
    with LLM(str(directory), backend="native", num_threads=1) as llm:
        params = SamplingParams(thinking_token_budget=4, bad_words=("</think>",))
        with pytest.raises(RequestError, match="forbids token 3"):
            llm.generate(PROMPTS[0], params)
        for formats, why in (
            (Formats(), "format in which this model writes reasoning is unknown"),
            (Formats(None, reasoning_format("granite")), "'Here is my response:', which ends"),
        ):
            llm._model.set_formats(formats)
            with pytest.raises(RequestError, match=why) as caught:
                llm.generate(PROMPTS[0], SamplingParams(thinking_token_budget=4))
            assert caught.value.param == "thinking_token_budget"
