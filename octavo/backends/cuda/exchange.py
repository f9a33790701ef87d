"""The exchange of ranks on devices of their own: by NCCL between cards, by gloo in the tests."""

from __future__ import annotations

import os
from concurrent.futures import Future
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from octavo.backends.base import BackendEndedError
from octavo.distributed.context import ParallelContext

if TYPE_CHECKING:
    from octavo.backends.cuda.accelerator import Accelerator


_REASON_SECONDS = 1.0


class Exchange(Protocol):
    """The connection of one device to those of the other ranks."""

    def gather(self, values: Tensor) -> Tensor:
        """Submit the exchange; return the tensors of all ranks, which have one shape, in a row.

        All ranks make the same calls in the same order. Raise RuntimeError if a rank has ended.
        """

    def end(self) -> None:
        """End what waits for another rank, in any thread."""


class Meeting:
    """The file through which devices find each other, by a name that this process alone uses.

    Libraries open it by that name whenever they like, and write to it a last time when their group
    ends. Until then, its number must be that of no other file.
    """

    def __init__(self, descriptor: int) -> None:
        self._own = os.dup(descriptor)
        self.path = f"/proc/self/fd/{self._own}"

    def close(self) -> None:
        """Give the number back, once the group has ended."""
        os.close(self._own)


class LibraryExchange:
    """An exchange by a group of a library of torch's, which uses its meeting until it ends."""

    _group: Any
    _meeting: Meeting

    def __del__(self) -> None:
        if hasattr(self, "_meeting"):
            del self._group  # which writes to the file once more
            self._meeting.close()


class DeviceCommunicator:
    """The connection of a rank to the others; implements `octavo.distributed.Communicator`.

    A sum is gathered, and added up here in the order of the ranks, in float32: its bits depend on
    neither the number of rows nor on how a library would add them up.
    """

    def __init__(self, context: ParallelContext) -> None:
        self.context = context
        self._exchange: Exchange | None = None
        self._reason = ""
        self._has_ended = Event()
        self._has_news = Event()  # the device is connected, or will never be

    def join(self, home: Accelerator, meeting: int) -> None:
        """Wait for the other ranks, and connect to them, unless that has been done.

        Raise BackendEndedError if one has ended. A library that waits for it cannot be interrupted,
        so that its thread is left behind then.
        """
        if self._exchange is not None:
            return
        made: Future[Exchange] = Future()
        made.add_done_callback(lambda _: self._has_news.set())

        def connect() -> None:
            try:
                made.set_result(home.join(meeting, self.context))
            except BaseException as error:
                made.set_exception(error)

        Thread(target=connect, name="octavo meeting", daemon=True).start()
        self._has_news.wait()
        self.check()
        try:
            self._exchange = made.result()
        except RuntimeError as error:
            raise BackendEndedError(self.why(error)) from error

    def end(self, reason: str) -> None:
        """End the exchange because a rank has ended; the reason is raised where one waits."""
        self._reason = self._reason or reason
        self._has_ended.set()
        self._has_news.set()
        if self._exchange is not None:
            self._exchange.end()

    def check(self) -> None:
        """Raise BackendEndedError if a rank has ended: an exchange that was aborted brings nothing.

        A card goes on behind it, with whatever its memory holds.
        """
        if self._has_ended.is_set():
            raise BackendEndedError(self._reason)

    def all_reduce(self, values: Tensor) -> Tensor:
        first, *others = self._gathered(values).unbind(0)
        total = first.float()
        for part in others:
            total = total + part.float()
        return total.to(values.dtype)

    def all_gather(self, values: Tensor) -> Tensor:
        return torch.cat(self._gathered(values).unbind(0), -1)

    def of_first(self, values: Tensor) -> Tensor:
        """Return the first rank's tensor."""
        return self._gathered(values)[0]

    def _gathered(self, values: Tensor) -> Tensor:
        assert self._exchange is not None, "join must be called first"
        try:
            return self._exchange.gather(values)
        except RuntimeError as error:
            raise BackendEndedError(self.why(error)) from error

    def why(self, error: Exception) -> str:
        """Return why another rank does not answer, which its watcher may know a moment later."""
        self._has_ended.wait(_REASON_SECONDS)
        return self._reason or f"a rank has ended: {error}"
