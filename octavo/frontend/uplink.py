"""Frames on their way up from one engine, checked to be whole, in order and of the right socket."""

from __future__ import annotations

from octavo.exec.messages import Failed, Hello, News, Pulse, Ready, WireError, decode_up
from octavo.frontend.launcher import Incoming

Said = Hello | Ready | Failed | News


class Uplink:
    """The way from one engine."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._num_received = 0

    def read(self, incoming: Incoming) -> Said | Pulse:
        """What a frame says; WireError if the engine cannot be trusted any more."""
        frame = decode_up(incoming.data)
        if frame.epoch != self._epoch:
            raise WireError(f"a frame of epoch {frame.epoch} in epoch {self._epoch}")
        is_pulse = isinstance(frame.message, Pulse)
        if is_pulse is not incoming.is_pulse:
            raise WireError("a message came by the wrong socket")
        if not is_pulse:  # of those some may be left out
            if frame.number != self._num_received:
                raise WireError(f"frame {frame.number} came instead of {self._num_received}")
            self._num_received += 1
        return frame.message
