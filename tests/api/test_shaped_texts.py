"""Texts that must have a shape have it, in any company, and are always the same."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams, StructuredOutputsParams
from tests.api.test_overlap import said, same_at_every_depth
from tests.api.tiny import make_model

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


@pytest.mark.parametrize("options", [{"num_gpu_blocks_override": 12}, {"max_num_seqs": 1}, {}])
def test_a_text_is_the_same_in_any_company(directory: Path, options: dict[str, Any]) -> None:
    """Twelve blocks are so few that sequences are preempted, and their grammars begin anew."""
    pytest.importorskip("octavo.backends.native._native")
    with LLM(str(directory), backend="native", num_threads=1) as llm:
        alone = [said(llm.generate(*each))[0] for each in zip(PROMPTS, PARAMS, strict=True)]
    with LLM(str(directory), backend="native", num_threads=1, **options) as llm:
        together = said(llm.generate(PROMPTS, PARAMS))
    assert together == alone
