"""One engine from its launch to its end: its process, its frames, its signs of life, its states."""

from __future__ import annotations

from enum import Enum, auto

from octavo.client.frames import FrameReader, FrameWriter
from octavo.client.launcher import EngineProcess, Incoming
from octavo.client.liveness import Liveness
from octavo.wire.message_types import EngineMessage, Heartbeat


class State(Enum):
    """The states of a supervised engine."""

    WAITING = auto()  # there is no process; the next one is started now or after a delay
    STARTING = auto()  # the process runs, and loads the model
    READY = auto()
    SLEEPING = auto()  # there is no process, and none is started until `wake_up`
    STOPPING = auto()  # the engine misbehaved and is being killed; its frames are ignored
    CLOSED = auto()  # closed or given up


NEXT_STATES = {
    State.WAITING: {State.STARTING, State.SLEEPING, State.CLOSED},
    State.SLEEPING: {State.WAITING, State.CLOSED},
    State.STARTING: {State.READY, State.STOPPING, State.WAITING, State.CLOSED},
    State.READY: {State.STOPPING, State.WAITING, State.CLOSED},
    State.STOPPING: {State.WAITING, State.CLOSED},
    State.CLOSED: set[State](),
}


class EngineRun:
    """An engine's process, with what it has been sent and what it has sent."""

    def __init__(self, name: str, epoch: int, process: EngineProcess, liveness: Liveness) -> None:
        self.name = name  # for the log
        self.epoch = epoch
        self.process = process
        self.liveness = liveness
        self.writer = FrameWriter(process, epoch)
        self.reader = FrameReader(epoch)
        self.failure: str | None = None  # why it ends, if that is known before its process ends
        self.is_of_model = False  # it ends because of the model's files
        self.is_of_settings = False  # or because of its arguments

    def read(self, incoming: Incoming, now: float) -> EngineMessage | None:
        """Return a frame's message, or None for a heartbeat; raise WireError if it is wrong."""
        message = self.reader.read(incoming)
        if isinstance(message, Heartbeat):
            self.liveness.note_frame(now, message)
            return None
        self.liveness.note_frame(now, None)
        return message

    def exit_reason(self) -> str | None:
        """Return why its process has ended, or None if it runs."""
        reason = self.process.exit_reason()
        return None if reason is None else self.failure or reason
