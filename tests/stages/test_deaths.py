"""The end of a stage, or of the engine, at any time: nothing is lost, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from octavo import LLM
from octavo.client import inline
from octavo.core.config import ConfigError
from octavo.engine.stages import group
from tests.client.clients import LIMIT
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


def stages_of(pid: int) -> list[int]:
    """Return the stages that a process has started."""
    return followers_of(pid, PROGRAM)


def test_streams_continue_when_a_stage_is_killed(tmp_path: Path) -> None:
    check_deaths(tmp_path, PROGRAM, pipeline_parallel_size=3)


def test_an_engine_in_this_process_says_which_stage_has_ended(tmp_path: Path) -> None:
    with LLM(str(write(tmp_path, KIND)), **TIGHT, pipeline_parallel_size=2) as llm:
        stages = llm._model.engine.ranks
        (stage,) = (each.process.pid for each in stages._followers)
        os.kill(stage, signal.SIGKILL)
        wait_until(lambda: bool(stages.reason))
        assert stages.reason == "stage 1 has ended: its process was ended by SIGKILL"
        with pytest.raises(RuntimeError, match="stage 1: its connection has ended"):
            llm.generate(PROMPTS, SAMPLING, use_tqdm=False)


_FORKS = """
import os
import sys
from octavo import LLM, SamplingParams
from tests.ranks.small import TIGHT
llm = LLM(sys.argv[1], **{**TIGHT, "num_threads": 1}, pipeline_parallel_size=3)

def generated():
    sampling = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    return llm.generate([[4, 5, 6]], sampling, use_tqdm=False)[0].outputs[0].token_ids

expected = generated()
child = os.fork()
if child == 0:
    try:
        generated()
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(generated() == expected)
llm.close()
"""


def test_a_forked_process_does_not_disturb_the_steps_of_its_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _FORKS, str(write(tmp_path, KIND))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    failure, parents = done.stdout.splitlines()
    assert failure.startswith("stage 1: its connection has ended"), done.stderr
    assert parents == "True", done.stderr


def test_stages_end_with_an_engine_that_is_closed(tmp_path: Path) -> None:
    llm = LLM(str(write(tmp_path, KIND)), **TIGHT, pipeline_parallel_size=3)
    stages = [each.process.pid for each in llm._model.engine.ranks._followers]
    assert len(stages) == 2
    assert all(runs(each, PROGRAM) for each in stages)
    llm.close()
    assert not any(runs(each, PROGRAM) for each in stages)


def test_an_engine_is_closed_while_a_stage_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline, "CLOSE_SECONDS", 0.1)
    check_close(tmp_path, PROGRAM, pipeline_parallel_size=3)


def test_a_stage_that_cannot_start_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = stages_of(os.getpid())  # of models that other tests share
    monkeypatch.setattr(group, "PROGRAM", "octavo.no_such_program")
    with pytest.raises(ConfigError, match="stage 1 of 2 did not start: its process ended with"):
        LLM(str(write(tmp_path, KIND)), **TIGHT, pipeline_parallel_size=2)
    assert set(stages_of(os.getpid())) <= set(others)
