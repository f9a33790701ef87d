"""Steps of the torch backend run in a thread of their own, in order; errors come when collected."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from octavo.backends.base import StepSize
from octavo.backends.step import LAST_SAMPLE, NO_ROWS, Draws, HostBatch, SlotSampling
from octavo.backends.torch.backend import TorchBackend
from octavo.backends.torch.footprint import TorchFootprint
from octavo.backends.torch.largest_step import largest_batch, peak_growth
from tests.runner.tiny import FULL, Engine, make_backend, make_request, tokens_of

LIMIT = 300.0  # seconds; only guards against hanging
PROMPT = [3, 1, 4, 1, 5]


class Gate:
    """A gate in front of every forward pass of a backend."""

    def __init__(self, backend: TorchBackend) -> None:
        self.is_open = threading.Event()
        self.num_passes = 0
        self._forward = backend.forward
        backend.forward = self._pass  # type: ignore[method-assign]

    def _pass(self, batch: HostBatch) -> Any:
        assert self.is_open.wait(LIMIT)
        self.num_passes += 1
        return self._forward(batch)


@pytest.fixture
def backend() -> Iterator[TorchBackend]:
    backend = make_backend(FULL, 20, 16)
    yield backend
    backend._thread.shutdown()


def prompt_step() -> tuple[HostBatch, Draws]:
    rows = np.arange(len(PROMPT), dtype=np.int32)
    tokens = np.array(PROMPT, np.int32)
    starts = np.array([0, len(PROMPT)], np.int32)
    slots = np.zeros(1, np.int32)
    tables = (np.array([[1]], np.int32),)
    batch = HostBatch(tokens, rows, starts, tables, rows[-1:], slots=slots)
    opened = ((0, SlotSampling(tokens, len(PROMPT))),)
    return batch, Draws((), opened, slots, slots)


def next_step(position: int) -> tuple[HostBatch, Draws]:
    batch, draws = prompt_step()
    row = np.zeros(1, np.int32)
    batch = batch._replace(
        token_ids=row + LAST_SAMPLE,
        positions=row + position,
        row_starts=np.array([0, 1], np.int32),
        logits_rows=row,
    )
    return batch, draws._replace(opened=())


def test_steps_are_submitted_while_the_first_still_runs(backend: TorchBackend) -> None:
    """Each step reads the token that the one before it draws."""
    gate = Gate(backend)
    started = [
        backend.step(*step) for step in (prompt_step(), next_step(5), next_step(6), next_step(7))
    ]
    assert not any(step.done() for step in started)
    assert gate.num_passes == 0
    gate.is_open.set()
    tokens = [step.collect().tokens[0][0] for step in started]
    assert all(step.done() for step in started)
    engine = Engine()
    expected = engine.answer(make_request("it", PROMPT, temperature=0.0, max_tokens=4))["it"]
    assert tokens == tokens_of(expected)


def test_an_error_is_raised_when_its_step_is_collected(backend: TorchBackend) -> None:
    first = backend.step(*prompt_step())
    batch, draws = next_step(5)
    second = backend.step(batch._replace(tables=(np.array([[99]], np.int32),)), draws)
    assert len(first.collect().tokens) == 1
    with pytest.raises(IndexError):
        second.collect()


def test_a_batch_without_rows_frees_and_copies(backend: TorchBackend) -> None:
    first = backend.step(*prompt_step()).collect().tokens[0][0]
    none = HostBatch(NO_ROWS, NO_ROWS, np.zeros(1, np.int32), (), NO_ROWS, copies=((1, 7, 0),))
    assert not len(backend.step(none, Draws((), (), NO_ROWS, NO_ROWS)).collect().tokens)
    batch, draws = next_step(5)
    expected = backend.step(batch, draws).collect().tokens
    freeing = Draws((0,), (), NO_ROWS, NO_ROWS)
    backend.step(none._replace(copies=()), freeing)
    again = SlotSampling(np.array([*PROMPT, first], np.int32), len(PROMPT))
    moved = batch._replace(tables=(np.array([[7]], np.int32),))
    reopened = backend.step(moved, draws._replace(opened=((0, again),)))
    assert reopened.collect().tokens == expected


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_engine_plans_while_steps_run(depth: int) -> None:
    """The depth is the number of steps in flight, and the tokens are those of depth 1."""
    request = make_request("it", PROMPT, seed=3, max_tokens=9)
    expected = tokens_of(Engine().answer(request)["it"])
    engine = Engine(pipeline_depth=depth)
    backend: Any = engine.runner._backend
    gate = Gate(backend)
    engine.core.on_event(request)
    for _ in range(depth + 2):
        assert engine.core.step(wait=False) == []
    assert len(engine.core.scheduler.in_flight) == len(engine.plans) == depth
    gate.is_open.set()
    assert tokens_of(engine.finish()) == expected


def test_the_thread_ends_with_its_backend() -> None:
    backend = make_backend(FULL, 20, 16)
    backend.step(*prompt_step()).collect()
    (thread,) = backend._thread._threads
    gone = weakref.ref(backend)
    del backend
    gc.collect()
    assert gone() is None
    thread.join(LIMIT)
    assert not thread.is_alive()


@pytest.mark.parametrize("number", [1, 2])
def test_the_thread_computes_with_the_number_of_threads_that_torch_was_given(number: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        assert make_backend(FULL, 20, 16)._thread.submit(torch.get_num_threads).result() == number
    finally:
        torch.set_num_threads(before)


SIZE = StepSize(
    rows=40, wanted_rows=7, sequences=3, positions=128, hidden=16, ffn=24, heads=2, kv_heads=1,
    head_dim=8, vocabulary=61,
)  # fmt: skip


def test_a_step_that_decides_nothing_is_estimated(backend: TorchBackend) -> None:
    gate = Gate(backend)  # closed: a measurement would hang
    estimate = TorchFootprint("float32").step_bytes(SIZE)
    assert backend.reserve(SIZE, 2 * estimate) == estimate
    assert gate.num_passes == 0


def test_a_step_that_decides_is_measured(backend: TorchBackend) -> None:
    gate = Gate(backend)
    gate.is_open.set()
    assert backend.reserve(SIZE, 0) > 0
    assert gate.num_passes == 1
    backend.make_cache(20)
    assert len(backend.step(*prompt_step()).collect().tokens) == 1


def test_the_largest_batch_has_every_row() -> None:
    batch = largest_batch(SIZE, 16, 2)
    assert batch.row_starts.tolist() == [0, 14, 27, 40]
    assert batch.positions.tolist() == [*range(14), *range(13), *range(13)]
    assert (len(batch.logits_rows), len(batch.hidden_rows)) == (7, 40)
    assert [table.shape for table in batch.tables] == [(3, 1), (3, 1)]


def test_the_growth_at_its_peak_is_measured() -> None:
    """Memory that is freed again counts."""
    size = 64 << 20

    def run() -> None:
        np.ones(size, np.uint8)

    grown = peak_growth(run)
    assert size * 0.9 < grown < size * 1.5
