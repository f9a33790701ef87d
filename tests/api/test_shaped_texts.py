"""Texts that must have a shape have it, in any company, and are always the same."""

from __future__ import annotations

import asyncio
import json
import math
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, AsyncLLM, RequestError, SamplingParams, StructuredOutputsParams
from octavo.grammar.checked import CheckedShape, ShapeJob
from octavo.grammar.protocol import FORCINGS
from octavo.workers.shape_checker import ShapeChecker
from tests.api.test_overlap import said, same_at_every_depth
from tests.api.tiny import make_model
from tests.server.make import LIMIT

PROMPTS = ["The quick brown fox", "A day in", "Ein Tag wie", "x", "the dog does not mind"]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "yes"]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
REGEX = "(ab|cd){3,9}!"
SHAPED = SamplingParams(
    max_tokens=60, seed=1, structured_outputs=StructuredOutputsParams(regex=REGEX)
)
AS_JSON = SamplingParams(
    max_tokens=60,
    seed=2,
    structured_outputs=StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True),
)
PARAMS = [
    SHAPED,
    SamplingParams(max_tokens=20, seed=3),
    AS_JSON,
    SamplingParams(max_tokens=9, temperature=0.0),
    SamplingParams(
        max_tokens=60, seed=4, logprobs=2, structured_outputs=StructuredOutputsParams(regex=REGEX)
    ),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_texts_have_their_shape_and_are_the_same_at_every_depth(
    directory: Path, backend: str
) -> None:
    if backend == "torch":
        pytest.importorskip("torch")
    outputs = same_at_every_depth(directory, backend, PROMPTS, PARAMS)
    texts = [output.outputs[0].text for output in outputs]
    for index in (0, 4):
        assert outputs[index].outputs[0].finish_reason == "stop"
        assert re.fullmatch(REGEX, texts[index])
    assert json.loads(texts[2]).keys() == {"a", "b"}


WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"num_gpu_blocks_override": 12},  # so few that sequences are preempted, and begin anew
    {"max_num_seqs": 1},
    {"max_num_batched_tokens": 3},  # forced tokens are computed in several steps
    {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
    {"speculative_config": {"method": "ngram"}, "max_num_batched_tokens": 4, "max_num_seqs": 2},
    {"async_scheduling": True},
)


def texts_of(directory: Path, **options: Any) -> tuple[list[Any], int]:
    """Return what is generated for all prompts at once, and how many tokens were forced."""
    with LLM(str(directory), backend="native", num_threads=1, **options) as llm:
        outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        assert not llm._model.core.has_work
    num_forced = 0
    for output in outputs:
        assert output.metrics is not None
        num_forced += output.metrics.num_forced_tokens
    return said(outputs), num_forced


@pytest.fixture(scope="module")
def alone(directory: Path) -> dict[str, list[Any]]:
    """The texts of each way to force, each generated alone and with every token drawn."""
    pytest.importorskip("octavo.backends.native._native")
    found: dict[str, list[Any]] = {}
    for forcing in FORCINGS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("octavo.runner.shaping.may_be_forced", lambda sampling: False)
            with LLM(str(directory), backend="native", num_threads=1, forced_tokens=forcing) as llm:
                pairs = zip(PROMPTS, PARAMS, strict=True)
                found[forcing] = [said(llm.generate(*pair, use_tqdm=False))[0] for pair in pairs]
    return found


@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize("forcing", FORCINGS)
def test_a_text_is_the_same_in_any_company_and_however_its_tokens_are_forced(
    directory: Path, alone: dict[str, list[Any]], forcing: str, options: dict[str, Any]
) -> None:
    texts, num_forced = texts_of(directory, forced_tokens=forcing, **options)
    assert texts == alone[forcing]
    if forcing == "canonical" and not options:
        assert num_forced > 10
    if forcing == "off":
        assert num_forced == 0


def test_tokens_that_are_the_only_ones_change_no_text(alone: dict[str, list[Any]]) -> None:
    assert alone["single"] == alone["off"]


@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize("forcing", ["single", "off"])
def test_a_text_that_cannot_go_on_to_its_min_tokens_fails(
    directory: Path, backend: str, forcing: str
) -> None:
    """End tokens would be counted, and are no part of its shape: no token is left."""
    pytest.importorskip(f"octavo.backends.{backend}" + "._native" * (backend == "native"))
    params = SamplingParams(
        max_tokens=40,
        min_tokens=20,
        seed=1,
        structured_outputs=StructuredOutputsParams(choice=("abc", "cba")),
    )
    options: dict[str, Any] = {"num_threads": 1} if backend == "native" else {}
    with LLM(str(directory), backend=backend, forced_tokens=forcing, **options) as llm:
        (output,) = llm.generate("x", params, use_tqdm=False)
    (answer,) = output.outputs
    assert answer.text in ("abc", "cba")
    assert answer.finish_reason == "error"
    assert answer.error is not None
    assert "min_tokens" in answer.error


def test_min_tokens_keeps_a_text_open_where_its_shape_allows_more(directory: Path) -> None:
    pytest.importorskip("octavo.backends.native._native")
    shape = StructuredOutputsParams(regex="(a|b)+")
    params = SamplingParams(max_tokens=40, min_tokens=12, temperature=0.0, structured_outputs=shape)
    with LLM(str(directory), backend="native", num_threads=1) as llm:
        (output,) = llm.generate("x", params, use_tqdm=False)
    (answer,) = output.outputs
    assert re.fullmatch("[ab]+", answer.text)
    assert 1 not in list(answer.token_ids)[:11], "no end token comes before the twelfth"


@pytest.mark.parametrize(
    "rule",
    [
        {"repetition_penalty": 1.3, "presence_penalty": 0.5},
        {"frequency_penalty": 1.0, "logit_bias": {5: 5.0}},
        {"stop": ["cd"], "include_stop_str_in_output": True},
        {"n": 3},
        {"top_k": 2, "min_p": 0.1},
        {"ignore_eos": True},
        {"prompt_logprobs": 1},
        {"bad_words": ["zz"]},
        {"logprobs": 3},
    ],
    ids=str,
)
def test_a_shape_holds_beside_every_rule(directory: Path, rule: dict[str, Any]) -> None:
    pytest.importorskip("octavo.backends.native._native")
    params = SamplingParams(
        max_tokens=60, seed=5, structured_outputs=StructuredOutputsParams(regex=REGEX), **rule
    )
    found = []
    for forcing in ("single", "off"):
        with LLM(str(directory), backend="native", num_threads=1, forced_tokens=forcing) as llm:
            found.append(said(llm.generate(PROMPTS, params, use_tqdm=False)))
    assert found[0] == found[1]
    whole = r"(ab|cd)*?cd" if "stop" in rule else REGEX
    for output in found[0]:
        for _, text, *_ in output[-1]:
            assert re.fullmatch(whole, text), text


def test_log_probabilities_are_those_among_the_allowed_tokens(directory: Path) -> None:
    pytest.importorskip("octavo.backends.native._native")
    params = SamplingParams(
        max_tokens=60, seed=5, logprobs=5, structured_outputs=StructuredOutputsParams(regex="[xy]!")
    )
    with LLM(str(directory), backend="native", num_threads=1) as llm:
        (output,) = llm.generate("x", params, use_tqdm=False)
    (answer,) = output.outputs
    assert answer.logprobs is not None
    first = sorted((entry.logprob for entry in answer.logprobs[0].values()), reverse=True)
    assert math.exp(first[0]) + math.exp(first[1]) == pytest.approx(1.0)
    last = answer.logprobs[1][answer.token_ids[1]]
    assert (last.logprob, last.rank) == (0.0, 1), "the mark is the only token possible"
    assert len(answer.logprobs[1]) == 5


def test_a_stream_waits_for_a_new_shape_without_holding_its_event_loop(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shape is checked only when the event loop has gone on, and once for several requests."""
    has_gone_on, check = threading.Event(), ShapeChecker.check
    jobs: list[ShapeJob] = []

    def held(self: ShapeChecker, job: ShapeJob) -> CheckedShape:
        assert has_gone_on.wait(LIMIT), "the event loop is held"
        jobs.append(job)
        return check(self, job)

    async def main() -> None:
        llm = AsyncLLM(directory)
        try:
            asyncio.get_running_loop().call_later(0.01, has_gone_on.set)
            shaped = SamplingParams(
                max_tokens=60, seed=1, structured_outputs=StructuredOutputsParams(regex="(qu|x){5}")
            )
            streams = [_last(llm, shaped) for _ in range(3)]
            for text in await asyncio.gather(*streams):
                assert re.fullmatch("(qu|x){5}", text)
            assert len(jobs) == 1
            wrong = SamplingParams(structured_outputs=StructuredOutputsParams(regex="(?=a)"))
            with pytest.raises(RequestError):
                await _last(llm, wrong)
        finally:
            llm.close()

    monkeypatch.setattr(ShapeChecker, "check", held)
    asyncio.run(main())


async def _last(llm: AsyncLLM, sampling: SamplingParams) -> str:
    """Return the whole text of a stream."""
    outputs = [output async for output in llm.generate("x", sampling)]
    return outputs[-1].outputs[0].text
