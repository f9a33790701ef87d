"""An engine whose process does not end when it is killed is left behind, and replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from octavo.client import supervisor
from octavo.client.launcher import EngineProcess, Incoming
from octavo.client.process import make_client
from octavo.client.restart_policy import Timing
from octavo.options.engine import EngineArguments
from tests.client.clients import eventually


class StuckProcess:
    """A process that waits in the kernel: SIGKILL does not end it."""

    def __init__(self) -> None:
        self.was_killed_by_us = self.is_closed = False

    def send(self, data: bytes) -> bool:
        return True

    def watch(self, on_exit: Callable[[], None]) -> None:
        pass

    def dump_stacks(self) -> None:
        pass

    def kill(self) -> None:
        self.was_killed_by_us = True

    def exit_reason(self) -> str | None:
        return None

    def was_killed(self) -> bool:
        return False

    def last_step(self) -> tuple[int, ...]:
        return ()

    def close(self) -> None:
        self.is_closed = True


class StuckLauncher:
    """A launcher of stuck processes, from which no frame comes."""

    def __init__(self) -> None:
        self.processes: list[StuckProcess] = []

    def launch(self, epoch: int) -> EngineProcess:
        self.processes.append(StuckProcess())
        return self.processes[-1]

    def receive(self) -> Incoming | None:
        return None

    def wait(self, seconds: float) -> None:
        pass

    def attach(self, on_frame: Callable[[], None]) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_process_that_does_not_end_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "ABANDON_SECONDS", 0.0)
    launcher = StuckLauncher()
    timing = Timing(start_seconds=0.0, max_failed_engines=100)
    client = make_client(EngineArguments(), [launcher], timing)
    client.launch()

    async def world() -> None:
        client.attach(lambda events: None, lambda error: None)
        await eventually(lambda: len(launcher.processes) > 1)
        first = launcher.processes[0]
        assert first.was_killed_by_us
        assert first.is_closed
        client.close()

    asyncio.run(world())
