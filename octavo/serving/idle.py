"""Sleep without requests: the engine ends, and the next request starts it again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from octavo.api.async_llm import AsyncLLM
from octavo.api.control import SleepError
from octavo.api.outputs import EngineDeadError
from octavo.core.config import ConfigError

log = logging.getLogger(__name__)

_MOST_BETWEEN = 1.0  # seconds from one look to the next


class IdleSleep:
    """The sleep of a server without requests; what an operator does goes before.

    Requests that wake it wait until the engine is ready.
    """

    def __init__(
        self,
        llm: AsyncLLM,
        is_idle: Callable[[], bool],
        clock: Callable[[], float],
        seconds: float,
    ) -> None:
        self._llm = llm
        self._is_idle = is_idle
        self._clock = clock
        self._seconds = seconds
        self._last_used = clock()
        self._is_put = False  # to sleep, by this
        self._task: asyncio.Task[None] | None = None
        self._waking: asyncio.Task[None] | None = None

    @property
    def is_asleep(self) -> bool:
        """True while there is no engine because there was no request for one."""
        return self._is_put and self._llm.is_sleeping

    def start(self) -> None:
        """Begin to look whether requests come."""
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        """End the looks, and a start that has not ended."""
        tasks = [each for each in (self._task, self._waking) if each is not None]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def leave(self) -> None:
        """Leave it to the operator who puts the engine to sleep to wake it."""
        self._is_put = False

    async def use(self) -> None:
        """Note that a request has come; wait until there is an engine for it."""
        self._last_used = self._clock()
        if self._is_put and self._waking is None:
            self._is_put = False
            self._waking = asyncio.get_running_loop().create_task(self._wake())
        if self._waking is not None:
            await asyncio.shield(self._waking)

    async def _wake(self) -> None:
        try:
            await self._llm.wake_up()
        except (SleepError, EngineDeadError) as error:  # the request is refused for that
            log.warning("the engine could not be woken: %s", error)
        finally:
            self._last_used = self._clock()
            self._waking = None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(min(_MOST_BETWEEN, self._seconds / 4))
            if not self._is_idle():
                self._last_used = self._clock()
            elif self._is_due():
                await self._sleep()

    def _is_due(self) -> bool:
        is_late = self._clock() - self._last_used >= self._seconds
        return is_late and self._waking is None and not self._llm.is_sleeping

    async def _sleep(self) -> None:
        log.info("no request for %g s: the engine sleeps until one comes", self._seconds)
        self._is_put = True
        try:
            await self._llm.sleep()
        except (SleepError, TimeoutError, EngineDeadError) as error:
            log.info("the engine did not fall asleep: %s", error)
        except ConfigError as error:
            log.warning("the engine cannot sleep: %s", error)
            self._seconds = float("inf")
        finally:
            self._is_put = self._is_put and self._llm.is_sleeping  # it may be another one's
            self._last_used = self._clock()
