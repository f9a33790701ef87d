"""Steps run in order, in the background where several are in flight, and end well."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.backends.native.backend import NativeBackend
from octavo.backends.step import (
    LAST_SAMPLE,
    NO_ROWS,
    Draws,
    HostBatch,
    Masks,
    Pending,
    StepOutput,
)
from tests.backends.native.sampling.given_logits import make_backend, make_batch, sampling_of
from tests.backends.native.test_team import run_alone

VOCABULARY = 50
FIRST = np.array([3, 30, 44], np.int32)  # last prompt tokens of slots 0, 1 and 2


def chain(threads: int = 1) -> tuple[NativeBackend, np.ndarray]:
    """Return a backend that follows a permutation: token t's likeliest successor is next[t]."""
    following = np.random.default_rng(1).permutation(VOCABULARY)
    logits = np.zeros((VOCABULARY, VOCABULARY), np.float32)
    logits[np.arange(VOCABULARY), following] = 5
    backend = make_backend(logits, threads=threads)
    opened = tuple((slot, sampling_of([token])) for slot, token in enumerate(FIRST.tolist()))
    backend.step(make_batch([]), Draws((), opened, NO_ROWS, NO_ROWS)).collect()
    return backend, following


def advance(backend: NativeBackend) -> Pending:
    """Submit a step that advances each slot by one token, which only the backend may know."""
    each = np.arange(3, dtype=np.int32)
    batch = make_batch(np.full(3, LAST_SAMPLE, np.int32))._replace(slots=each)
    return backend.step(batch, Draws((), (), each, each))


def drawn(output: StepOutput) -> list[int]:
    """Return the one token of each sample."""
    return [token for (token,) in output.tokens]


@pytest.mark.parametrize("depth", [1, 2, 3, 20])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_steps_in_flight_continue_from_each_others_tokens(depth: int, threads: int) -> None:
    backend, following = chain(threads)
    expected, in_flight = FIRST, deque[Pending]()
    for step in range(60):
        in_flight.append(advance(backend))
        if step + 1 < depth:
            continue
        expected = following[expected]
        assert drawn(in_flight.popleft().collect()) == expected.tolist()
    while in_flight:
        expected = following[expected]
        assert drawn(in_flight.popleft().collect()) == expected.tolist()


def go_on(backend: NativeBackend, *grown: tuple[int, int, tuple[tuple[int, ...], ...]]) -> Pending:
    """Submit a step that continues the last one, with new blocks."""
    batch = HostBatch(NO_ROWS, NO_ROWS, NO_ROWS, (), NO_ROWS, continues=grown)
    return backend.step(batch, Draws((), (), NO_ROWS, NO_ROWS))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_step_needs_no_arrays_where_it_continues_the_last_one(depth: int) -> None:
    backend, following = chain()
    expected, in_flight = FIRST, deque([advance(backend)])
    for step in range(40):
        # The table of the second sequence becomes wider.
        grown = ((1, 1, ((0, 0),)),) if step == 9 else ()
        in_flight.append(go_on(backend, *grown))
        if len(in_flight) > depth:
            expected = following[expected]
            assert drawn(in_flight.popleft().collect()) == expected.tolist()


@pytest.mark.parametrize("grown", [(3, 0, ((1,),)), (0, 2, ((1,),)), (0, 0, ((1,), (1,)))])
def test_blocks_for_a_table_that_is_not_there_are_refused(grown: Any) -> None:
    backend, _ = chain()
    advance(backend).collect()
    with pytest.raises(ValueError, match="table"):
        go_on(backend, grown)


def test_a_step_continues_only_one_that_has_advanced_each_sequence() -> None:
    backend, _ = chain()  # its last step has no rows
    with pytest.raises(ValueError, match="continues"):
        go_on(backend)
    advance(backend).collect()
    go_on(backend).collect()


def test_a_step_without_a_successor_needs_no_thread() -> None:
    """A step is computed by the thread that collects it, until two are in flight."""
    backend, _ = chain()
    before = {*Path("/proc/self/task").iterdir()}  # others may end meanwhile
    for _ in range(5):
        advance(backend).collect()
    assert {*Path("/proc/self/task").iterdir()} <= before
    pending = [advance(backend), advance(backend)]
    assert len({*Path("/proc/self/task").iterdir()} - before) == 1
    for each in pending:
        each.collect()


def wait_until_done(pending: Pending) -> None:
    deadline = time.monotonic() + 300
    while not pending.done():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_steps_run_while_nobody_waits() -> None:
    """Two in flight end without anybody collecting them; one alone begins when it is collected."""
    backend, following = chain()
    alone = advance(backend)
    assert not alone.done()
    assert drawn(alone.collect()) == following[FIRST].tolist()
    first, second = advance(backend), advance(backend)
    assert alone.done()
    wait_until_done(second)
    assert first.done()


def test_a_step_that_nobody_collects_runs_in_its_turn() -> None:
    """Later steps continue from its tokens, and are collected without a thread again."""
    backend, following = chain()
    advance(backend)
    expected = following[following[FIRST]]
    for _ in range(3):
        assert drawn(advance(backend).collect()) == expected.tolist()
        expected = following[expected]


@pytest.mark.parametrize("depth", [1, 3])
def test_an_error_is_raised_where_its_step_is_collected(depth: int) -> None:
    backend, following = chain()
    each = np.array([7], np.int32)
    steps = [advance(backend) for _ in range(depth - 1)]
    wrong = backend.step(make_batch([1]), Draws((), (), each, np.zeros(1, np.int32)))
    after = advance(backend)
    for step in steps:
        step.collect()
    for _ in range(2):
        with pytest.raises(ValueError, match="slot 7 is not open"):
            wrong.collect()
    expected = FIRST
    for _ in range(depth):
        expected = following[expected]
    assert drawn(after.collect()) == expected.tolist()


def wrong_draws(**fields: object) -> Draws:
    each = np.arange(2, dtype=np.int32)
    return Draws((), (), each, each)._replace(**fields)  # type: ignore[arg-type]


WRONG = {
    "row 2 of 2 rows": wrong_draws(first_rows=np.array([0, 2], np.int32)),
    "row -1 of 2": wrong_draws(first_rows=np.array([0, -1], np.int32)),
    "every sample needs a slot": wrong_draws(first_rows=np.zeros(1, np.int32)),
    "row 2 of 2": wrong_draws(num_drafts=np.array([0, 1], np.int32), drafts=np.zeros(1, np.int32)),
    "0 drafts, and samples of 1": wrong_draws(num_drafts=np.array([1, 0], np.int32)),
    "a bit for every token": wrong_draws(masks=Masks(np.zeros((2, 1), np.uint32)).set_ready()),
    "row 0 of 0 rows": wrong_draws(pools=((0, 0, 1, True, False),)),
    "slot 9 is not open": wrong_draws(pools=((9, 0, 1, True, False),)),
    "no token 50": wrong_draws(prompts=((0, 0, np.array([50], np.int32), 1),)),
    "id 50 is not in": wrong_draws(opened=((3, sampling_of(allowed=[50])),)),
    "id -1 is not in": wrong_draws(opened=((3, sampling_of([-1])),)),
    "no slot -1": wrong_draws(freed=(-1,)),
    "slot 8 is not open": wrong_draws(appended=((8, (1,)),)),
    "id 51 is not in": wrong_draws(appended=((0, (51,)),)),
}


@pytest.mark.parametrize("message", WRONG)
def test_draws_that_do_not_fit_are_refused(message: str) -> None:
    backend, _ = chain()
    with pytest.raises(ValueError, match=message):
        backend.step(make_batch([1, 2]), WRONG[message]).collect()


def test_a_slots_own_token_needs_its_slot() -> None:
    backend, _ = chain()
    batch = make_batch([LAST_SAMPLE])
    with pytest.raises(ValueError, match="the slot is not given"):
        backend.step(batch, Draws((), (), NO_ROWS, NO_ROWS)).collect()
    starts = np.array([0, 1 << 30], np.int32)
    broken: HostBatch = make_batch([1])._replace(row_starts=starts)
    with pytest.raises(ValueError, match="up to the number of rows"):
        backend.step(broken, Draws((), (), NO_ROWS, NO_ROWS)).collect()


def test_threads_may_submit_and_collect_at_once() -> None:
    backend, following = chain(2)

    def work(_: int) -> list[list[int]]:
        found = []
        for _ in range(20):
            one, other = advance(backend), advance(backend)
            found += [drawn(one.collect()), drawn(other.collect())]
        return found

    with ThreadPoolExecutor(4) as pool:
        found = [tokens for part in pool.map(work, range(4)) for tokens in part]
    expected = [following[FIRST]]
    while len(expected) < len(found):
        expected.append(following[expected[-1]])
    assert sorted(found) == sorted(tokens.tolist() for tokens in expected)


PRELUDE = """
import os
import signal
import numpy as np
from octavo.backends.step import LAST_SAMPLE, NO_ROWS, Draws
from tests.backends.native.test_steps import advance, chain
from tests.backends.native.tiny import make_batch, make_native
from tests.runner.tiny import FULL
"""


def test_a_process_may_end_with_steps_in_flight() -> None:
    """Neither its exit nor the end of the backend waits for more than the running step."""
    script = """
backend = make_native(FULL, 1600, 16)
nothing = Draws((), (), NO_ROWS, NO_ROWS)
pending = [backend.step(make_batch((0, 0, 600)), nothing) for _ in range(200)]
print("end", flush=True)
"""
    assert run_alone(PRELUDE + script) == "end\n"
    assert run_alone(PRELUDE + script + "del backend, pending\n") == "end\n"


def test_a_collection_can_be_interrupted_and_goes_on() -> None:
    """Ctrl-C interrupts the wait for the background thread; the step itself ends as usual."""
    script = """
backend, following = chain()
large = make_native(FULL, 1600, 16)
nothing = Draws((), (), NO_ROWS, NO_ROWS)
def end(number, frame):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, end)
pending = [large.step(make_batch((0, 0, 600)), nothing) for _ in range(30)]
try:
    signal.setitimer(signal.ITIMER_REAL, 0.0001)
    pending[-1].collect()
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted")
pending[-1].collect()
print(len(advance(backend).collect().tokens))
"""
    assert run_alone(PRELUDE + script) == "interrupted\n3\n"


def test_a_forked_process_cannot_use_the_background_thread() -> None:
    """The child gets an error, and its end waits for no thread that it does not have."""
    script = """
backend, _ = chain()
pending = [advance(backend), advance(backend)]
child = os.fork()
try:
    pending += [advance(backend)]
    for each in pending:
        each.collect()
    print("stepped" if child else "no error", flush=True)
except RuntimeError as error:
    print(error, flush=True)
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    output = run_alone(PRELUDE + script)
    assert "forked from the one that loaded it" in output
    assert "stepped" in output
    assert "no error" not in output
