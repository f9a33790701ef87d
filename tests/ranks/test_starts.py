"""Starts of ranks: what is known before, those that fail, and processes that are forked after."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from octavo import LLM, env
from octavo.backends.base import StepSize
from octavo.backends.native import _native
from octavo.backends.native.backend import NativeBackend, NativeOptions
from octavo.backends.native.kernel_choice import Choice
from octavo.backends.native.measured_file import MeasuredFile, machine_key
from octavo.backends.native.ranks.messages import LeadingBackend, follow
from octavo.core.config import ConfigError
from octavo.distributed.context import RankPlace
from octavo.engine.ranks import group
from octavo.engine.ranks.followers import LocalFollower
from tests.client.clients import LIMIT
from tests.quantize.made import write_model
from tests.ranks.followers import runs, wait_until
from tests.ranks.small import TIGHT, answers, write
from tests.ranks.test_deaths import PROGRAM, ranks_of

KIND = "LlamaForCausalLM"
SIZE = StepSize(*[1] * len(StepSize.__struct_fields__))
BYTES = 16 << 20


@pytest.fixture
def _known_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep measurements of kernels, as earlier starts do."""
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OCTAVO_CPU_CALIBRATION", "on")
    file = MeasuredFile(env.measured_kernels_file(), machine_key())
    for tier in _native.tiers():
        file.note_products(tier, "BF16", [Choice(0, tier, 4096, 2e-6, 1e-6)])
    file.close()


@pytest.mark.slow
@pytest.mark.usefixtures("_known_kernels")
def test_kernels_that_are_known_reach_ranks_with_all_programs(tmp_path: Path) -> None:
    """The first rank knows them before the others, and itself, have recorded the draft model."""
    model, drafter = write(tmp_path, KIND), write_model(tmp_path / "drafter", num_hidden_layers=1)
    speculation = {"method": "draft_model", "model": str(drafter), "num_speculative_tokens": 3}
    options: dict[str, Any] = {"speculative_config": speculation, "num_gpu_blocks_override": 24}
    found, _ = answers(model, tensor_parallel_size=2, **options)
    assert found == answers(model, **options)[0]


@pytest.mark.slow
@pytest.mark.usefixtures("_known_kernels")
def test_a_rank_that_dies_while_it_loads_ends_the_start_and_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = ranks_of(os.getpid())  # of models that other tests share
    load: Callable[..., None] = group.RankGroup.load

    def kill_and_load(self: group.RankGroup, *arguments: object) -> None:
        (first, *_) = self._followers
        assert isinstance(first, LocalFollower)
        first.process.kill()
        load(self, *arguments)

    monkeypatch.setattr(group.RankGroup, "load", kill_and_load)
    with pytest.raises(ConfigError, match=r"rank 1 of 3 did not start: .*SIGKILL") as kept:
        LLM(str(write(tmp_path, KIND)), **TIGHT, tensor_parallel_size=3)
    assert kept.tb is not None  # which refers to the group
    assert set(ranks_of(os.getpid())) <= set(others)


_FORKS = """
import os
import sys
from octavo import LLM
from tests.ranks.small import TIGHT
llm = LLM(sys.argv[1], **TIGHT, tensor_parallel_size=2)
child = os.fork()
if child == 0:
    sys.exit()  # which ends what this process has
assert os.waitpid(child, 0)[1] == 0
llm.generate([[4, 5, 6]], use_tqdm=False)
print("generated", llm._model.engine.ranks.reason)
llm.close()
"""


@pytest.mark.slow
def test_a_forked_process_does_not_end_the_ranks(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _FORKS, str(write(tmp_path, KIND))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.stdout == "generated \n", done.stderr


_LEAVES_A_CHILD = """
import os
import signal
import sys
from octavo import LLM
from tests.ranks.small import TIGHT
llm = LLM(sys.argv[1], **TIGHT, tensor_parallel_size=2)
child = os.fork()
if child == 0:
    os.close(1)  # its parent alone is read
    sys.stdin.read()  # lives on until the test has seen the end of the ranks
    os._exit(0)
(rank,) = (each.process.pid for each in llm._model.engine.ranks._followers)
print(rank, child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_ranks_end_with_a_program_whose_forked_child_lives_on(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _LEAVES_A_CHILD, str(write(tmp_path, KIND))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        rank, child = map(int, program.stdout.readline().split())
        wait_until(lambda: not runs(rank, PROGRAM))
        os.kill(child, 0)  # it lives, or this raises


def test_a_limit_of_files_is_named() -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(ConfigError, match=r"tensor_parallel_size=2 .*ulimit -f"):
            group.RankGroup(2, sums=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


class _Short:
    """A backend that has no memory for what the first rank asks for."""

    native_programs: tuple[()] = ()

    def __init__(self, ranks: _native.Ranks) -> None:
        self.ranks = ranks

    def reserve(self, size: StepSize, spare_bytes: int) -> int:
        raise MemoryError("no memory")


def test_a_rank_that_cannot_do_what_it_should_says_why() -> None:
    descriptor = os.memfd_create("ranks")
    os.ftruncate(descriptor, BYTES)
    place = RankPlace(0, 2, descriptor, BYTES)
    first = LeadingBackend(NativeOptions(num_threads=1, place=place))
    second = _Short(_native.Ranks(descriptor, BYTES, 1, 2, 1))
    os.close(descriptor)
    assert first.ranks is not None
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow, cast("NativeBackend", second), "rank 1")
        # Its message is sent before it does the same, and the end may be seen in either.
        with pytest.raises((RuntimeError, AssertionError)):
            first.reserve(SIZE, 0)
        with pytest.raises(MemoryError, match="no memory"):
            following.result()
    assert first.ranks.reason == "rank 1 has ended: no memory"
