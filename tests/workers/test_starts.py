"""Prompt workers that do not start: the event loop goes on while their end is waited for."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from octavo.workers.process import Worker, WorkerDiedError
from tests.server.make import LIMIT


class Lingering:
    """A process that has closed its socket, and ends only when the event loop has gone on."""

    stderr = None

    def __init__(self) -> None:
        self.may_end = threading.Event()

    def wait(self, seconds: float | None = None) -> int:
        assert self.may_end.wait(LIMIT), "the event loop is held"
        return 3

    def kill(self) -> None:
        """Leave it: it ends by itself."""


def test_the_end_of_a_worker_that_did_not_start_is_waited_for_beside_the_event_loop() -> None:
    async def main() -> None:
        process: Any = Lingering()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.close()
        worker = Worker(process, ours)
        asyncio.get_running_loop().call_later(0.01, process.may_end.set)
        with pytest.raises(WorkerDiedError, match="exit status 3"):
            await worker.become_ready(lambda worker: None)

    asyncio.run(main())
