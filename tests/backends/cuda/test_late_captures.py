"""A card that refuses a graph while an engine serves: steps go on without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from octavo.backends.cuda.fake.accelerator import FakeAccelerator
from octavo.backends.step import Draws
from octavo.distributed.context import DevicePlace
from tests.backends.cuda.on_fake import SIZE, accelerator_of, make_capturing
from tests.backends.cuda.steps import rows_of
from tests.backends.cuda.test_graphs import BLOCKS, in_flight, reference
from tests.backends.cuda.test_ranks import one_device
from tests.backends.cuda.test_steps import WARM, assert_equal
from tests.backends.cuda.two_devices import FurtherCaptures, two_capturing
from tests.runner.tiny import FULL


def refuse_late_captures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let captures beside other graphs fail at their end; return a list that counts them."""
    capture, refused = FakeAccelerator.capture, []

    def fail_late(device: FakeAccelerator, run: Callable[[], Any], beside: Any = None) -> Any:
        made = capture(device, run, beside)
        if beside is not None:
            refused.append(1)
            raise RuntimeError("out of memory")
        return made

    monkeypatch.setattr(FakeAccelerator, "capture", fail_late)
    return refused


@pytest.mark.parametrize("depth", [1, 3])
def test_steps_go_on_where_a_card_refuses_a_capture_while_serving(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = refuse_late_captures(monkeypatch)
    backend = make_capturing(FULL, BLOCKS, 4)
    counts = [4] * 6 + [2, 2, 3]
    found = in_flight(backend, depth, counts)
    for mine, other in zip(found, in_flight(reference(), 1, counts), strict=True):
        assert_equal(mine, other)
    assert len(refused) == 1
    assert "replay" not in {note.what for note in accelerator_of(backend).log}


def test_a_refused_capture_is_the_last_and_graphs_that_there_are_stay(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused = refuse_late_captures(monkeypatch)
    usual, backend, opened = reference(), make_capturing(FULL, BLOCKS, 4), 0
    for count in (4, 12, 4, 20):  # graphs of 8, 16 and 24 rows, of which the last is there
        slots = np.arange(count, dtype=np.int32)
        of_slots = [(n, WARM(np.array([3 + n], np.int32), 1, seed=n)) for n in range(opened, count)]
        draws, opened = Draws((), tuple(of_slots), slots, slots), max(opened, count)
        outputs = [
            each.step(rows_of(each, *([3 + n] for n in range(count))), draws).collect()
            for each in (backend, usual)
        ]
        assert_equal(*outputs)
    assert len(refused) == 1
    assert [note.what for note in accelerator_of(backend).log].count("replay") == 1
    assert [record.levelname for record in caplog.records].count("WARNING") == 1
    assert "of 8 rows cannot be captured" in caplog.text
    assert "out of memory" in caplog.text


class RefusesLate(FurtherCaptures):
    """A further rank whose card refuses all captures once the engine serves."""

    def __init__(self, accelerator: FakeAccelerator, dtype: str, place: DevicePlace) -> None:
        super().__init__(accelerator, dtype, place)
        capture = accelerator.capture

        def refuse(run: Callable[[], Any], beside: Any = None) -> Any:
            made = capture(run, beside)
            if accelerator._is_in_step:
                raise RuntimeError("out of memory")
            return made

        accelerator.capture = refuse  # type: ignore[method-assign]


def test_ranks_make_all_graphs_before_they_serve() -> None:
    """One that made fewer than the others later would exchange less often, and wait for ever."""
    backend, usual = two_capturing(FULL, BLOCKS, 4, RefusesLate), one_device()
    assert backend._graphs is not None
    assert sorted(backend._graphs.captured) == [8, 16, 24]
    opened = 0
    for count in (4, 12, 4, SIZE.sequences):
        slots = np.arange(count, dtype=np.int32)
        of_slots = [(n, WARM(np.array([3 + n], np.int32), 1, seed=n)) for n in range(opened, count)]
        draws, opened = Draws((), tuple(of_slots), slots, slots), max(opened, count)
        found, expected = (
            each.step(rows_of(each, *([3 + n] for n in range(count))), draws).collect()
            for each in (backend, usual)
        )
        assert found.tokens == expected.tokens
    notes = accelerator_of(backend).log
    assert [note.what for note in notes if note.is_in_step].count("capture") == 0
