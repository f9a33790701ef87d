"""The end of a rank, which the engine's main thread may hear of while its step fails already."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.engine import process
from octavo.wire.message_types import EngineFailed

REASON = "rank 1 has ended: its process was ended by SIGKILL"


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    """Restore the handler of the signal, and keep this process as it is."""
    before = signal.getsignal(process._RANK_SIGNAL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "_confine", lambda may_read: None)
        patch.setattr(process, "_tune_garbage_collection", lambda: None)
        yield
    signal.signal(process._RANK_SIGNAL, before)


class FailingLoop:
    """A loop whose step fails, as one does that a rank has left."""

    def __init__(self, *given: object) -> None:
        pass

    def serve(self) -> None:
        raise RuntimeError("rank 1: its connection has ended: broken pipe")


class InterruptedEvent(threading.Event):
    """An event that the signal meets in the midst of `set`, before it is seen, with its lock."""

    def set(self) -> None:
        with self._cond:  # type: ignore[attr-defined]
            signal.raise_signal(process._RANK_SIGNAL)
        super().set()


@pytest.mark.parametrize("event", [threading.Event, InterruptedEvent])
def test_the_failure_of_a_step_that_meets_the_signal_is_one_failure(
    event: Callable[[], threading.Event],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(process, "EngineLoop", FailingLoop)
    threads = SimpleNamespace(Event=event, main_thread=threading.main_thread)
    monkeypatch.setattr(process, "threading", threads)
    ranks: Any = SimpleNamespace(
        reason=REASON, call_at_end=lambda end: None, reason_soon=lambda: REASON
    )
    engine: Any = process.CoreAndFacts(core=None, facts=None, ranks=ranks)  # type: ignore[arg-type]
    sent: list[object] = []
    channel: Any = SimpleNamespace(send=sent.append)
    beside: Any = None
    process._run(engine, None, channel, beside, beside)
    assert sent[1:] == [EngineFailed(REASON)]
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]
