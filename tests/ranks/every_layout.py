"""Each layout with each kind of model as real processes, bit by bit as one: `make test-ranks`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM
from tests.ranks.layouts import KINDS, LAYOUTS, cases, is_long
from tests.ranks.small import PROMPTS, TIGHT, long_answers, sampling, write


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def answers(directory: Path, kind: str, **options: Any) -> Any:
    """Return tokens and log-probabilities of all prompts, by engines in any processes."""
    settings = [sampling(index) for index in range(len(PROMPTS))]
    with LLM(str(write(directory, kind)), **{**TIGHT, **options}) as llm:
        found = llm.generate(PROMPTS, settings, use_tqdm=False)
    return [(each.outputs[0].token_ids, each.outputs[0].logprobs) for each in found]


@cache
def alone(directory: Path, kind: str, *, in_long: bool) -> Any:
    """Return the answers of one process."""
    return long_answers(directory, kind) if in_long else answers(directory, kind)


@pytest.mark.parametrize(("layout", "kind"), cases())
def test_a_layout_answers_as_one_process(directory: Path, layout: str, kind: str) -> None:
    make = long_answers if is_long(layout) else answers
    found = make(directory, KINDS[kind], **LAYOUTS[layout])
    assert found == alone(directory, KINDS[kind], in_long=is_long(layout))
