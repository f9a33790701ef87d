"""The engines as a whole, as their users see them: facts and state, and the commands to them."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from octavo.api.outputs import EngineDeadError
from octavo.client.client import EngineClient, EngineState
from octavo.client.commands import COMMAND_SECONDS, LOAD_SECONDS
from octavo.core.snapshot import EngineSnapshot
from octavo.loader.file_cache import drop_from_cache
from octavo.wire.commands import (
    NO_ENGINE,
    Command,
    LoadFile,
    Pause,
    ResetPrefixCache,
    Resume,
    SetLogLevel,
    UnloadFile,
)
from octavo.wire.facts import EngineFacts

SLEEP_SECONDS = 60.0  # for the engine's process to end
_POLL_SECONDS = 0.02
ADAPTER_KIND = "lora"  # of the files that an engine loads
SleepLevel = Literal[1, 2]


class SleepError(RuntimeError):
    """`sleep` and `wake_up` were called at the same time: the later call has won."""


class RestartError(RuntimeError):
    """The engines were not all restarted, as the message says why."""


class CommandFailedError(RuntimeError):
    """The engine did not carry out a command; `code` says why, as `octavo.wire.commands` lists."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class EngineControl(ABC):
    """The part of `AsyncLLM` that concerns no single request."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._is_restarting = False
        self._num_sleeps = self._num_wakes = 0  # calls of `sleep` and `wake_up`
        self._is_closed = False
        self._death: EngineDeadError | None = None

    @abstractmethod
    def attach(self) -> None:
        """Bind the engine to the running event loop; raise an error if there is none any more."""

    @property
    def facts(self) -> EngineFacts:
        """The facts that the engine has reported of itself and its model."""
        return self._client.facts

    def snapshot(self) -> EngineSnapshot:
        """Return the newest statistics of all engines together."""
        return self._client.snapshot()

    @property
    def engines(self) -> Sequence[EngineState]:
        """The engines, each under its number."""
        return self._client.members

    def num_ready(self) -> int:
        """Return how many engines are ready."""
        return sum(engine.is_ready for engine in self.engines)

    def watch_engines(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever an engine has become ready or has ended."""
        self._client.watch(changed)

    @property
    def death(self) -> EngineDeadError | None:
        """The reason why there will be no more engine; None while there is, or will be, one."""
        return self._death

    def is_well(self) -> bool:
        """Return whether there is an engine that shows signs of life."""
        return self._death is None and not self._is_closed and self._client.is_well()

    async def reset_prefix_cache(self) -> bool:
        """Share no KV computed before now; return True, or raise CommandFailedError."""
        await self._command(ResetPrefixCache())
        return True

    async def pause(self) -> None:
        """Stop scheduling steps; new requests are accepted, and wait.

        Wait until the engine has taken the command, or raise CommandFailedError.
        """
        await self._command(Pause())

    async def resume(self) -> None:
        """Schedule steps again after `pause`."""
        await self._command(Resume())

    async def set_log_level(self, level: int) -> int | None:
        """Set from which level up the engine logs; return the level before.

        It is None while there is no engine; the next one logs like this process.
        """
        before: int | None = await self._command(SetLogLevel(level))
        return before

    async def load_adapter(self, digest: str, place: Path) -> bool:
        """Let the engine read and check an adapter; return whether there is one that could.

        Raise CommandFailedError for what it cannot use.
        """
        command = LoadFile(ADAPTER_KIND, digest, str(place))
        return await self._command(command, LOAD_SECONDS) is not None

    async def unload_adapter(self, digest: str) -> None:
        """Let the engine give up an adapter when no request uses it."""
        with contextlib.suppress(CommandFailedError):  # it is not in memory
            await self._command(UnloadFile(ADAPTER_KIND, digest))

    async def _command(self, command: Command, seconds: float = COMMAND_SECONDS) -> Any:
        """Return what a command results in, which every engine that starts later is subject to.

        Without an engine that is nothing: the next one starts as if it had received the command.
        """
        self.attach()
        reply = await self._client.command(command, seconds)
        error = reply.error
        if error is None:
            return reply.value
        if error.code != NO_ENGINE:
            raise CommandFailedError(error.code, error.message)
        if self._death is not None or self._is_closed:
            raise self._dead_error()
        return None

    @property
    def is_sleeping(self) -> bool:
        """True from the end of `sleep` to `wake_up`."""
        return self._client.is_sleeping

    async def sleep(self, level: SleepLevel = 1) -> None:
        """End the engines' processes, which frees their memory; requests are kept until `wake_up`.

        Level 2 also drops the weights from the system's file cache. Raise ConfigError if the engine
        has no process of its own, and SleepError if it is woken before it sleeps.
        """
        self.attach()
        self._client.sleep()
        self._num_sleeps += 1
        num_wakes = self._num_wakes
        async with asyncio.timeout(SLEEP_SECONDS):
            while not self._client.is_sleeping:
                if self._num_wakes != num_wakes:
                    raise SleepError("the engine was woken before it slept; it is awake")
                await asyncio.sleep(_POLL_SECONDS)
        if level == 2:
            await asyncio.to_thread(drop_from_cache, self.facts.weights)

    async def wake_up(self) -> None:
        """Start the engines again after `sleep`, and wait until all are ready.

        Raise SleepError if it is put to sleep again before.
        """
        self.attach()
        self._client.wake_up()
        self._num_wakes += 1
        num_sleeps = self._num_sleeps
        while not (self.is_well() and self._all_run()):
            if self._num_sleeps != num_sleeps:
                raise SleepError("the engine was put to sleep before it was ready; it sleeps")
            if self._death is not None or self._is_closed:
                raise self._dead_error()
            await asyncio.sleep(_POLL_SECONDS)

    async def restart(self) -> int:
        """End each engine in turn, and start another in its place; return how many that were.

        Its requests continue, on the others where there are some. None ends while another is not
        ready, unless that will not run again. Raise ConfigError if the engine has no process of its
        own, and RestartError if another call does the same already.
        """
        self.attach()
        if self._is_restarting:
            raise RestartError("the engines are being restarted already")
        self._is_restarting = True
        try:
            for index, engine in enumerate(self.engines):
                await self._until_all_run()
                if not engine.is_closed:
                    self._client.restart(index)
            await self._until_all_run()
        finally:
            self._is_restarting = False
        return sum(not engine.is_closed for engine in self.engines)

    def _all_run(self) -> bool:
        """Return whether each engine shows signs of life that is not closed for good."""
        return all(engine.is_well() or engine.is_closed for engine in self.engines)

    async def _until_all_run(self) -> None:
        """Wait until each engine is ready that will run again."""
        while not self._all_run():
            if self._death is not None or self._is_closed:
                raise self._dead_error()
            if self._client.is_sleeping:
                raise RestartError("the engines were put to sleep before all were restarted")
            await asyncio.sleep(_POLL_SECONDS)

    def _dead_error(self) -> EngineDeadError:
        """Make a new exception for each waiter: raising one mutates its traceback."""
        if self._death is None:
            return EngineDeadError("the engine is closed")
        error = EngineDeadError(str(self._death))
        error.__cause__ = self._death.__cause__
        return error
