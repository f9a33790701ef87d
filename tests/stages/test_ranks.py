"""Stages of several ranks each: bit by bit the answers of one process, and their deaths."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM
from octavo.engine.stages.group import PROGRAM
from tests.ranks.followers import KIND, check_deaths, followers_of, runs, wait_until
from tests.ranks.small import FORMATS, TIGHT, answers, write
from tests.stages.small_steps import small_steps

pytestmark = pytest.mark.slow


# tests/stages/every_kind.py has the others.
def test_stages_of_two_ranks_answer_as_one_process(tmp_path: Path) -> None:
    """Prompts are cut, sequences preempted, and prefixes found in the cache."""
    model, options = write(tmp_path, "LlamaForCausalLM"), FORMATS["int4"]
    expected, _ = answers(model, **options)
    layout = {"pipeline_parallel_size": 2, "tensor_parallel_size": 2}
    with small_steps():
        found, snapshot = answers(model, **layout, **options)
    assert found == expected
    assert snapshot.num_preemptions > 0
    assert snapshot.num_cached_tokens > 0


def test_streams_continue_when_a_rank_of_a_stage_is_killed(tmp_path: Path) -> None:
    check_deaths(tmp_path, PROGRAM, pipeline_parallel_size=2, tensor_parallel_size=2)


def test_ranks_end_with_the_first_one_of_their_stage(tmp_path: Path) -> None:
    layout: dict[str, Any] = {"pipeline_parallel_size": 2, "tensor_parallel_size": 2}
    llm = LLM(str(write(tmp_path, KIND)), **TIGHT, **layout)
    own = followers_of(os.getpid(), PROGRAM)
    others = [rank for each in own for rank in followers_of(each, PROGRAM)]
    assert (len(own), len(others)) == (2, 1)
    llm.close()
    wait_until(lambda: not any(runs(each, PROGRAM) for each in (*own, *others)))
