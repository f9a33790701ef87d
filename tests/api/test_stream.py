"""`LLM.stream` gives the outputs of one prompt as they come, and ends as its caller does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, RequestError, RequestOutput, RequestOutputKind, SamplingParams
from tests.api.tiny import make_model

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
DELTA = replace(GREEDY, output_kind=RequestOutputKind.DELTA)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    directory: Path = make_model(tmp_path_factory.mktemp("tiny"))
    return LLM(directory, num_gpu_blocks_override=20)


def test_the_parts_add_up_to_the_whole(llm: LLM) -> None:
    expected = llm.generate("The quick", GREEDY, use_tqdm=False)[0].outputs[0]
    parts: list[RequestOutput] = []
    llm.stream("The quick", parts.append, DELTA)
    assert len(parts) == 6
    assert "".join(part.outputs[0].text for part in parts) == expected.text
    assert [id for part in parts for id in part.outputs[0].token_ids] == expected.token_ids
    assert [part.finished for part in parts] == [False] * 5 + [True]


def test_each_output_has_all_so_far_unless_the_kind_says_otherwise(llm: LLM) -> None:
    lengths: list[int] = []
    llm.stream([2, 3], lambda output: lengths.append(len(output.outputs[0].token_ids)), GREEDY)
    assert lengths == [1, 2, 3, 4, 5, 6]


def test_a_caller_that_raises_ends_the_request(llm: LLM) -> None:
    class GoneError(Exception):
        pass

    def leave(output: RequestOutput) -> None:
        raise GoneError

    with pytest.raises(GoneError):
        llm.stream([2, 3], leave, DELTA)
    assert not llm._model.core.has_work
    assert len(llm.generate([2, 3], GREEDY, use_tqdm=False)[0].outputs[0].token_ids) == 6


def test_what_is_refused_and_what_fails_raise_errors(llm: LLM) -> None:
    def fail(prompt: Any, output: Any, logits: Any) -> Any:
        raise LookupError("nothing here")

    taken: list[RequestOutput] = []
    with pytest.raises(RequestError, match="the prompt has no tokens"):
        llm.stream([], taken.append, DELTA)
    assert taken == []
    failing = replace(DELTA, logits_processors=(fail,))
    with pytest.raises(RequestError, match="failed: LookupError: nothing here"):
        llm.stream([2, 3], taken.append, failing)
    assert not llm._model.core.has_work
