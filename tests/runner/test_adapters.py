"""A batch names the adapter of each of its rows, by the slot that the core has given it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.backends.adapter_weights import AdapterWeights
from octavo.backends.step import (
    NO_ADAPTER,
    NO_ROWS,
    Draws,
    NoAdaptersError,
    batch_of_copies,
)
from octavo.core.engine import EngineCore
from octavo.exec.inline import InlineExecutor
from octavo.runner.adapter_slots import Changes
from octavo.runner.model_runner import ModelRunner
from tests.runner.plans import make_plan, make_runner, new_slot, run, successor
from tests.runner.test_transfers import make
from tests.runner.tiny import FULL, VOCABULARY, StubBackend, make_config, make_request


class Supply:
    """The adapters in memory: all but some."""

    def __init__(self) -> None:
        self.lost = {"lost"}

    def find(self, adapter: str) -> tuple[Any, float] | None:
        if adapter in self.lost:
            return None
        return f"value of {adapter}", 0.5 if adapter == "y" else 1.0


def test_each_row_has_the_adapter_of_its_sequence() -> None:
    runner, stub = make_runner(adapters=Supply(), max_loras=2)
    opened = (
        new_slot(2, [3, 4, 5], ((1,), (2,)), lora="x", adapter=1),
        new_slot(0, [6, 7], ((3,), (4,))),
        new_slot(1, [8], ((5,), (6,)), lora="y", adapter=0),
    )
    chunks = ((2, 0, 3, True), (0, 0, 2, True), (1, 0, 1, True))
    run(runner, make_plan(opened=opened, chunks=chunks))
    assert stub.batches[-1].adapters.tolist() == [1, 1, 1, NO_ADAPTER, NO_ADAPTER, 0]
    assert stub.batches[-1].adapter_slots == ((1, "value of x", 1.0), (0, "value of y", 0.5))
    for step in (1, 2, 3):  # the batch is made from the one before
        chunks = ((2, 2 + step, 1, True), (0, 1 + step, 1, True), (1, step, 1, True))
        run(runner, make_plan(step=step, chunks=chunks))
        assert stub.batches[-1].adapters.tolist() == [1, NO_ADAPTER, 0]
        assert not stub.batches[-1].adapter_slots, "they are in place"
    run(runner, make_plan(step=4, freed=(2, 1), chunks=((0, 5, 1, True),)))
    assert not len(stub.batches[-1].adapters)


def test_a_slot_changes_with_the_first_sequence_of_another_adapter() -> None:
    runner, stub = make_runner(adapters=Supply(), max_loras=2)
    one = new_slot(0, [3], ((1,), (2,)), lora="x", adapter=0)
    run(runner, make_plan(opened=(one,), chunks=((0, 0, 1, True),)))
    again = new_slot(1, [3], ((3,), (4,)), lora="x", adapter=0)
    run(runner, make_plan(step=1, freed=(0,), opened=(again,), chunks=((1, 0, 1, True),)))
    assert not stub.batches[-1].adapter_slots, "it has stayed there"
    other = new_slot(0, [3], ((1,), (2,)), lora="z", adapter=0)
    run(runner, make_plan(step=2, freed=(1,), opened=(other,), chunks=((0, 0, 1, True),)))
    assert stub.batches[-1].adapter_slots == ((0, "value of z", 1.0),)


def test_a_slot_is_emptied_when_its_adapter_has_left_memory() -> None:
    supply = Supply()
    runner, stub = make_runner(adapters=supply, max_loras=2)
    one = new_slot(0, [3], ((1,), (2,)), lora="x", adapter=0)
    run(runner, make_plan(opened=(one,), chunks=((0, 0, 1, True),)))
    supply.lost.add("x")
    other = new_slot(1, [3], ((3,), (4,)), lora="z", adapter=1)
    run(runner, make_plan(step=1, freed=(0,), opened=(other,), chunks=((1, 0, 1, True),)))
    changed: Changes = stub.batches[-1].adapter_slots
    assert changed == ((1, "value of z", 1.0), (0, None, 1.0))
    supply.lost.clear()
    again = new_slot(0, [3], ((1,), (2,)), lora="x", adapter=0)
    run(runner, make_plan(step=2, opened=(again,), chunks=((0, 0, 1, True), (1, 1, 1, True))))
    changed = stub.batches[-1].adapter_slots
    assert changed == ((0, "value of x", 1.0),)


def test_a_sequence_whose_adapter_is_not_in_memory_fails_alone() -> None:
    runner, stub = make_runner(adapters=Supply(), max_loras=2)
    opened = (
        new_slot(0, [3], ((1,), (2,)), lora="lost", adapter=0),
        new_slot(1, [4], ((3,), (4,)), lora="x", adapter=1),
    )
    result = run(runner, make_plan(opened=opened, chunks=((0, 0, 1, True), (1, 0, 1, True))))
    assert [slot for slot, _ in result.errors] == [0]
    assert result.tokens[1] == 5
    assert stub.batches[-1].adapters.tolist() == [NO_ADAPTER, 1]


def test_no_two_adapters_share_a_slot_at_the_same_time() -> None:
    """Sequences with four adapters run on an engine with two slots, one after the other."""
    stub = StubBackend(successor)
    backend: Any = stub
    config = make_config((None, 5), max_loras=2, max_num_batched_tokens=16)
    runner = ModelRunner(backend, VOCABULARY, config, adapters=Supply())
    core = EngineCore(config, InlineExecutor(runner), lambda: 0.0, b"key", check_interval=1)
    names = [None, "w", "x", "y", "z", "x", "w"]
    for number, lora in enumerate(names):
        core.on_event(
            make_request(f"{number}", [9] * (number + 2), lora=lora, max_tokens=4 + number)
        )
    seen: dict[str | None, set[int]] = {name: set() for name in names}
    while core.has_work:
        core.step()
        running = core.scheduler.running
        pairs = {(each.request.lora, each.adapter) for each in running}
        assert len({lora for lora, _ in pairs}) == len({slot for _, slot in pairs})
        for lora, slot in pairs:
            seen[lora].add(slot)
        if running:
            batch = stub.batches[-1]
            slots = {each.slot: each.adapter for each in running}
            rows = np.repeat(batch.slots, np.diff(batch.row_starts)).tolist()
            named = batch.adapters.tolist() or [NO_ADAPTER] * len(rows)
            assert all(
                slots.get(slot, adapter) == adapter
                for slot, adapter in zip(rows, named, strict=True)
            )
    assert seen[None] == {NO_ADAPTER}
    assert all(seen[name] and seen[name] <= {0, 1} for name in "wxyz")


@pytest.mark.parametrize("name", ["torch", "native"])
def test_a_backend_without_adapters_refuses_a_batch_with_one(name: str) -> None:
    backend = make(name, FULL, 4, 16)
    rows = np.zeros(3, np.int32)
    batch = batch_of_copies(())._replace(
        token_ids=rows,
        positions=np.arange(3, dtype=np.int32),
        row_starts=np.array([0, 3], np.int32),
        tables=(np.ones((1, 1), np.int32),),
        adapters=np.array([NO_ADAPTER, 1, 1], np.int32),
    )
    draws = Draws((), (), NO_ROWS, NO_ROWS)
    with pytest.raises(NoAdaptersError, match=r"slots \[1\]"):
        backend.step(batch, draws)
    with pytest.raises(NoAdaptersError):
        backend.step(batch_of_copies(())._replace(adapter_slots=((0, None, 0.0),)), draws)
    with pytest.raises(NoAdaptersError):
        backend.adapter(AdapterWeights({}, 1))
    backend.step(batch._replace(adapters=np.full(3, NO_ADAPTER, np.int32)), draws).collect()


def test_a_sequence_with_an_adapter_fails_alone_where_there_are_none() -> None:
    runner, stub = make_runner(max_loras=1)
    opened = (
        new_slot(0, [3], ((1,), (2,)), lora="x", adapter=0),
        new_slot(1, [4], ((3,), (4,))),
    )
    result = run(runner, make_plan(opened=opened, chunks=((0, 0, 1, True), (1, 0, 1, True))))
    assert [slot for slot, _ in result.errors] == [0]
    assert result.tokens[1] == 5
    assert not len(stub.batches[-1].adapters)
