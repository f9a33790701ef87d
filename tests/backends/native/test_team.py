"""The team: barriers, failures, and wrong use from two threads, after a fork, or too large."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from octavo.backends.native import _native
from octavo.backends.native.backend import default_threads
from octavo.backends.step import (
    NO_ROWS,
    Draws,
    PromptRows,
    RowLogprobs,
    SlotSampling,
    batch_of_copies,
)
from octavo.env import child_environment
from tests.backends.native import _native_test
from tests.backends.native.tiny import make_batch, make_native
from tests.runner.tiny import FULL


def run_alone(script: str) -> str:
    """Return the output of a script in its own interpreter, which must end well and soon."""
    command = [sys.executable, "-W", "ignore", "-c", script]
    environment = child_environment(
        {"LD_PRELOAD": ""}
    )  # no sanitizer: the script needs the usual build
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=True, env=environment
    )
    return done.stdout


def test_threads_take_turns() -> None:
    """Threads that share a backend run their steps one after the other."""
    backend = make_native(FULL, 160, 16)
    opened = tuple((slot, SlotSampling(np.zeros(1, np.int32), 1)) for slot in range(3))
    backend.step(batch_of_copies(()), Draws((), opened, NO_ROWS, NO_ROWS)).collect()

    def described(name: int) -> RowLogprobs:
        batch = make_batch((name, 0, 20 + 15 * name))
        part = PromptRows(name, 0, np.zeros(len(batch.token_ids), np.int32), 5)
        draws = Draws((), (), NO_ROWS, NO_ROWS, prompts=(part,))
        (rows,) = backend.step(batch, draws).collect().prompts
        return rows

    expected = [described(name) for name in range(3)]

    def work(turn: int) -> bool:
        found, whole = described(turn % 3), expected[turn % 3]
        return np.array_equal(found.token_ids, whole.token_ids) and np.array_equal(
            found.logprobs, whole.logprobs
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(60)))


def test_a_forked_process_gets_an_error_and_ends() -> None:
    """The child has no threads: neither its work nor its end waits for them."""
    script = """
import os
from tests.backends.native.tiny import make_batch, make_native
from tests.runner.tiny import FULL
backend = make_native(FULL, 64, 16)
child = os.fork()
try:
    backend.forward(make_batch((0, 0, 20)))
    print("stepped" if child else "no error", flush=True)
except RuntimeError as error:
    print(error, flush=True)
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    output = run_alone(script)
    assert "forked from the one that loaded it" in output
    assert "stepped" in output
    assert "no error" not in output


def test_a_process_forked_while_another_thread_runs_gets_an_error_too() -> None:
    """The child has a copy of the mutex that the other thread holds, and must not wait for it."""
    script = """
import os
import signal
import threading
import time
from tests.backends.native import _native_test
team = _native_test.TestTeam(2)
running = threading.Thread(target=team.pass_barriers, args=(2_000_000_000,), daemon=True)
running.start()
time.sleep(0.02)
child = os.fork()
if not child:
    signal.alarm(300)
    try:
        team.pass_barriers(1)
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
assert running.is_alive()
assert os.waitpid(child, 0)[1] == 0
os._exit(0)
"""
    assert "forked from the one that loaded it" in run_alone(script)


def test_threads_that_the_system_does_not_give_are_an_error() -> None:
    """The process gets an error and goes on."""
    script = """
import resource
from octavo.backends.native import _native
with open("/proc/self/statm") as file:
    taken = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (64 << 20),) * 2)
try:
    _native.Team(1000, False)
except RuntimeError as error:
    print(error)
"""
    assert "of 1000 threads" in run_alone(script)


@pytest.mark.parametrize(("share", "threads"), [("50000", 1), ("150000", 1), ("max", None)])
def test_a_containers_share_bounds_the_threads(
    tmp_path: Path, share: str, threads: int | None
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text(f"{share} 100000\n")
    assert default_threads(tmp_path) == (threads or len(_native.physical_cores()))


def test_a_team_of_one_needs_no_threads() -> None:
    assert _native.Team(0, False).size == 1


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_thread_without_memory_is_an_error_of_the_call(threads: int) -> None:
    """Any thread may fail before any barrier: none is left waiting, and the team still works."""
    team = _native_test.TestTeam(threads)
    for failing in range(threads):
        for before in range(3):
            with pytest.raises(MemoryError, match="no more memory: free some, or ask for less"):
                team.pass_barriers(3, failing, before)
    assert team.pass_barriers(5) == 5 * threads


@pytest.mark.parametrize("threads", [2, 3, 16, 17, 24, 33, 50])
def test_no_thread_passes_a_barrier_before_all_have_arrived(threads: int) -> None:
    """Teams have one level up to 16 threads, and two above; most have more threads than cores."""
    team = _native_test.TestTeam(threads)
    assert team.count_stale_reads(100) == 0
    assert team.pass_barriers(20) == 20 * threads


@pytest.mark.parametrize("threads", [17, 40])
def test_a_failure_reaches_every_group_of_a_large_team(threads: int) -> None:
    """The failing thread may be the first of its group, the last, or one in between."""
    team = _native_test.TestTeam(threads)
    for failing in (0, 1, 8, 9, threads - 1):
        for before in range(3):
            with pytest.raises(MemoryError):
                team.pass_barriers(3, failing, before)
    assert team.count_stale_reads(20) == 0


def test_a_large_team_computes_the_same_bits() -> None:
    batch = make_batch((0, 0, 30), (1, 0, 1), (2, 0, 9))
    expected = make_native(FULL, 160, 16, num_threads=1).forward(batch).logits
    assert np.array_equal(
        make_native(FULL, 160, 16, num_threads=20).forward(batch).logits, expected
    )


def test_several_threads_may_fail_at_once() -> None:
    """A sampler's scratch memory does not fit, in any of the threads."""
    script = """
import resource
import numpy as np
from octavo.backends.step import NO_ROWS, Draws
from tests.backends.native.sampling.given_logits import make_backend, make_batch, sampling_of
vocabulary, rows = 1 << 20, np.arange(4, dtype=np.int32)
backend = make_backend(np.zeros((4, vocabulary), np.float32), threads=2)
greedy, warm = sampling_of(), sampling_of(temperature=1.0, top_k=vocabulary // 2)
batch = make_batch(rows)
backend.step(batch, Draws((), tuple((slot, greedy) for slot in range(4)), rows, rows)).collect()
with open("/proc/self/statm") as file:
    taken = int(file.read().split()[0]) * resource.getpagesize()
limits = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (taken + (1 << 20), limits[1]))
opened = tuple((slot, warm) for slot in range(4))
try:
    backend.step(batch, Draws((0, 1, 2, 3), opened, rows, rows)).collect()
except MemoryError as error:
    print("error:", error)
resource.setrlimit(resource.RLIMIT_AS, limits)
print(len(backend.step(batch, Draws((), (), rows, rows)).collect().tokens), "tokens")
"""
    output = run_alone(script)
    assert "error: the system gives the native engine no more memory" in output
    assert "4 tokens" in output


def test_a_load_can_be_interrupted() -> None:
    """Ctrl-C interrupts it in the middle of packing."""
    script = """
import signal
import numpy as np
from octavo.backends.native import _native
store = _native.Store(_native.Team(1, False))
rows = np.zeros((1, 4096), np.float32)
addresses = np.full(40_000, rows.ctypes.data, np.uint64)
store.pack(_native.Stored.F32, _native.Format.U4, 4096, addresses, rows, [])
def end(number, frame):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, end)
try:
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    store.finish()
except KeyboardInterrupt:
    print("interrupted")
"""
    assert "interrupted" in run_alone(script)
