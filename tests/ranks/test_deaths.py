"""The end of a rank, or of the engine, at any time: nothing is lost, and nothing is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from octavo import LLM
from octavo.client import inline
from octavo.core.config import ConfigError
from octavo.engine.ranks import group
from tests.ranks.followers import (
    KIND,
    PROMPTS,
    SAMPLING,
    check_close,
    check_deaths,
    followers_of,
    runs,
    wait_until,
)
from tests.ranks.small import TIGHT, write

pytestmark = pytest.mark.slow
PROGRAM = group.PROGRAM


def ranks_of(pid: int) -> list[int]:
    """Return the ranks that a process has started."""
    return followers_of(pid, PROGRAM)


def test_streams_continue_when_a_rank_is_killed(tmp_path: Path) -> None:
    check_deaths(tmp_path, PROGRAM, tensor_parallel_size=2)


def test_an_engine_in_this_process_says_which_rank_has_ended(tmp_path: Path) -> None:
    with LLM(str(write(tmp_path, KIND)), **TIGHT, tensor_parallel_size=2) as llm:
        ranks = llm._model.engine.ranks
        (rank,) = (each.process.pid for each in ranks._followers)
        os.kill(rank, signal.SIGKILL)
        wait_until(lambda: bool(ranks.reason))
        with pytest.raises(
            RuntimeError, match="rank 1 has ended: its process was ended by SIGKILL"
        ):
            llm.generate(PROMPTS, SAMPLING, use_tqdm=False)


def test_ranks_end_with_an_engine_that_is_closed(tmp_path: Path) -> None:
    llm = LLM(str(write(tmp_path, KIND)), **TIGHT, tensor_parallel_size=3)
    ranks = [each.process.pid for each in llm._model.engine.ranks._followers]
    assert all(runs(each, PROGRAM) for each in ranks)
    assert len(ranks) == 2
    llm.close()
    assert not any(runs(each, PROGRAM) for each in ranks)


@pytest.mark.parametrize("form", ["outputs", "sums"])
def test_an_engine_is_closed_while_a_rank_is_stopped(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline, "CLOSE_SECONDS", 0.1)
    check_close(tmp_path, PROGRAM, tensor_parallel_size=2, tensor_parallel_form=form)


def test_a_rank_that_cannot_start_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = ranks_of(os.getpid())  # of models that other tests share
    monkeypatch.setattr(group, "PROGRAM", "octavo.no_such_program")
    with pytest.raises(ConfigError, match="rank 1 of 2 did not start: its process ended with"):
        LLM(str(write(tmp_path, KIND)), **TIGHT, tensor_parallel_size=2)
    assert set(ranks_of(os.getpid())) <= set(others)
