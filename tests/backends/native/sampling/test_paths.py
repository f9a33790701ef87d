"""The path of every sampling parameter on the native engine, pinned.

A parameter that suddenly goes through Python would be correct, and slow. Here it fails.
"""

from __future__ import annotations

import dataclasses
import logging
from array import array
from typing import Any

import numpy as np
import pytest

from octavo.backends.native import pending as pending_module
from octavo.backends.native.pending import NativePending, ProcessedPending
from octavo.backends.step import NO_ROWS, Draws, Masks, Pending, PoolRows, PromptRows
from octavo.core.plan import NewSlot
from octavo.core.sampling_params import SamplingParams
from octavo.runner.slot_sampling import slot_sampling
from tests.backends.native.sampling.given_logits import make_backend, make_batch
from tests.backends.native.test_team import run_alone

VOCABULARY = 40
NATIVE: dict[str, Any] = {
    "temperature": 0.7,
    "seed": 3,
    "top_p": 0.5,
    "top_k": 3,
    "min_p": 0.1,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.1,
    "logit_bias": {3: 2.0},
    "allowed_token_ids": [3, 4, 5],
    "bad_words_token_ids": [[3], [4, 5]],
    "min_tokens": 2,
    "sampler_options": {
        "typical_p": 0.9,
        "xtc_probability": 0.5,
        "dry_multiplier": 0.5,
        "repeat_last_n": 2,
        "dry_allowed_length": 1,
    },
    "logprobs": 5,
    "logprob_token_ids": (4, 2, 0, 1, 3),
    "prompt_logprobs": 5,
    "pooling": "mean",
}
PYTHON: dict[str, Any] = {"logits_processors": (lambda prompt, output, row: row,)}
# These concern the end of a sequence and its text, or become other parameters before a slot opens:
# extra arguments become processors, a grammar and a budget of reasoning the masks of each step.
NOT_SAMPLING = {
    "bad_words",
    "detokenize",
    "extra_args",
    "grammar",
    "ignore_eos",
    "include_stop_str_in_output",
    "max_tokens",
    "n",
    "output_kind",
    "prediction",
    "repetition_detection",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "speculation",
    "stop",
    "stop_token_ids",
    "structured_outputs",
    "thinking_marks",
    "thinking_token_budget",
}


def test_every_parameter_has_a_path() -> None:
    names = {field.name for field in dataclasses.fields(SamplingParams)}
    assert names == NATIVE.keys() | PYTHON.keys() | NOT_SAMPLING


def step_with(monkeypatch: pytest.MonkeyPatch, **parameters: Any) -> tuple[Pending, list[int]]:
    """Run a step with a draft, and return it and how many calls of Python's functions it took."""
    calls = [0]

    def call(processor: Any, prompt: Any, output: Any, row: Any) -> Any:
        calls[0] += 1
        return processor(prompt, output, row)

    monkeypatch.setattr(pending_module, "call_processor", call)
    sampling = SamplingParams(**parameters)
    tokens = np.array([1, 2, 3], np.int32)
    new = NewSlot(0, "r", array("i", tokens), 3, ((1,),), sampling, None, (3, 4))
    opened = ((0, slot_sampling(new, tokens, VOCABULARY, {})),)
    logits = np.random.default_rng(1).normal(0, 3, (4, VOCABULARY)).astype(np.float32)
    backend = make_backend(logits)
    one = np.zeros(1, np.int32)
    draws = Draws((), opened, one, one, np.ones(1, np.int32), one)
    if sampling.prompt_logprobs is not None:
        draws = draws._replace(prompts=(PromptRows(0, 2, one, sampling.prompt_logprobs),))
    if sampling.pooling is not None:
        draws = draws._replace(pools=(PoolRows(0, 0, 1, True),))
    masks = Masks(np.full((2, 2), 0xFFFF, np.uint32)).set_ready()
    pending = backend.step(make_batch([0, 1, 2], [0]), draws._replace(masks=masks))
    output = pending.collect()
    assert not output.failures
    assert bool(output.logprobs) == (sampling.logprobs is not None)
    assert bool(output.prompts) == (sampling.prompt_logprobs is not None)
    assert bool(output.pooled) == (sampling.pooling is not None)
    return pending, calls


@pytest.mark.parametrize("name", NATIVE)
def test_the_engine_itself_draws_by_a_rule(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Masks and drafts are beside it in the same step."""
    pending, calls = step_with(monkeypatch, **{name: NATIVE[name]})
    assert type(pending) is NativePending
    assert calls == [0]


def test_the_engine_itself_draws_by_all_rules_together(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = {name: value for name, value in NATIVE.items() if name != "pooling"}
    pending, calls = step_with(monkeypatch, **parameters)
    assert type(pending) is NativePending
    assert calls == [0]


def test_a_users_processor_takes_the_slow_path_and_the_log_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        pending, calls = step_with(monkeypatch, **PYTHON)
    assert type(pending) is ProcessedPending
    assert calls[0] >= 1
    (record,) = caplog.records
    assert "wait for Python" in record.getMessage()


def test_the_next_step_finishes_one_with_processors_first() -> None:
    """The next row continues from a token that a processor chose in a step not yet collected."""

    def only_seven(prompt: Any, output: Any, row: Any) -> Any:
        row[:] = -np.inf
        row[7 + len(output)] = 0
        return row

    logits = np.random.default_rng(1).normal(0, 3, (4, VOCABULARY)).astype(np.float32)
    backend = make_backend(logits)
    tokens, one = np.array([1], np.int32), np.zeros(1, np.int32)
    sampling = SamplingParams(logits_processors=(only_seven,))
    new = NewSlot(0, "r", array("i", tokens), 1, ((1,),), sampling, None, ())
    opened = ((0, slot_sampling(new, tokens, VOCABULARY, {})),)
    first = backend.step(make_batch([0]), Draws((), opened, one, one))
    second = backend.step(make_batch([1]), Draws((), (), one, one))
    closed = backend.step(make_batch([]), Draws((0,), (), NO_ROWS, NO_ROWS))
    assert type(closed) is NativePending
    found = [step.collect().tokens for step in (first, second, closed)]
    assert found == [((7,),), ((8,),), ()]


def test_the_reference_is_never_loaded() -> None:
    script = """
import sys
from octavo.backends.native import backend
print([name for name in sys.modules if name.startswith("octavo.backends.torch")])
"""
    assert run_alone(script) == "[]\n"
