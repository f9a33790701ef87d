"""Each layout with each kind of model as real processes, as one answers: `make test-ranks`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM
from tests.nodes.running import nodes
from tests.ranks.layouts import KINDS, LAYOUTS, cases, is_long, rounds
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


@contextmanager
def machines(
    directory: Path, own: Path, kind: str, options: Mapping[str, Any]
) -> Iterator[Mapping[str, Any]]:
    """Let the other nodes of a layout run, if it has any; yield the settings of the first."""
    count = options.get("nnodes", 1)
    if count == 1:
        yield options
        return
    ranks = options["tensor_parallel_size"]
    with nodes(write(directory, kind), own, ranks, count, sums=True) as others:
        yield {**options, **others.options}


@cache
def alone(directory: Path, kind: str, *, in_long: bool, dtype: str) -> Any:
    """Return the answers of one process."""
    make = long_answers if in_long else answers
    return make(directory, kind, dtype=dtype)


@pytest.mark.parametrize(("layout", "kind"), cases())
def test_a_layout_answers_as_one_process(
    directory: Path, tmp_path: Path, layout: str, kind: str
) -> None:
    """Every bit is the same, but for ranks that add up: their text is, in fp32."""
    make, dtype = long_answers if is_long(layout) else answers, LAYOUTS[layout].get("dtype", "auto")
    with machines(directory, tmp_path, KINDS[kind], LAYOUTS[layout]) as options:
        found = make(directory, KINDS[kind], **options)
    expected = alone(directory, KINDS[kind], in_long=is_long(layout), dtype=dtype)
    if rounds(layout):
        found, expected = ([tokens for tokens, _ in each] for each in (found, expected))
    assert found == expected
