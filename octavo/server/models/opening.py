"""The opening of one model beside others: its engines, its prompt workers, its server; their end.

What takes long is done in threads, so that the streams of other models go on meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from octavo.api.async_llm import AsyncLLM
from octavo.client.process import launch_engines
from octavo.client.restart_policy import Timing
from octavo.loader.source import resolve
from octavo.options.engine import EngineArguments
from octavo.options.server import ServerSettings
from octavo.server.models.memory import Need, Room
from octavo.server.models.need import answer_of, launch
from octavo.serving.server import Server, Shared
from octavo.workers.process import Worker

log = logging.getLogger(__name__)
T = TypeVar("T")

_NUM_THREADS = 3  # one model is opened at a time: its engine, its tokenizer, and one to spare


class Context(Protocol):
    """A model that has been opened: its server, and its engines, which may sleep."""

    @property
    def server(self) -> Server:
        """The server of this model alone."""

    @property
    def is_idle(self) -> bool:
        """True if nothing is being answered, in the background either."""

    @property
    def is_dead(self) -> bool:
        """True if its engines are not started any more."""

    async def sleep(self) -> None:
        """End the engines, whose memory becomes free."""

    async def wake(self) -> None:
        """Start the engines again, and wait until they are ready."""

    async def close(self) -> None:
        """End all that belongs to the model."""


class Opener(Protocol):
    """A way to open models."""

    async def need(self, model: str) -> Need:
        """Return the memory that a model takes; raise an error for one that cannot be loaded."""

    async def open(self, name: str, model: str, need: Need) -> Context:
        """Load a model, which is served under a name; raise an error if that fails."""

    def close(self) -> None:
        """End the threads that open models."""


class EngineContext:
    """A model whose engines are processes of this server."""

    def __init__(self, server: Server) -> None:
        self.server = server

    @property
    def is_idle(self) -> bool:
        server = self.server
        return not (server.active or server.admission.num_open or len(server.releases))

    @property
    def is_dead(self) -> bool:
        return self.server.llm.death is not None

    async def sleep(self) -> None:
        await self.server.llm.sleep()

    async def wake(self) -> None:
        await self.server.llm.wake_up()

    async def close(self) -> None:
        server = self.server
        async with contextlib.AsyncExitStack() as stack:  # the last one first, whatever fails
            stack.callback(server.llm.close)
            stack.callback(server.adapters.close)
            stack.push_async_callback(server.prompt_pool.close)
            await server.releases.finish()


class ProcessOpener:
    """An opener of models whose engines are processes, all with the same settings."""

    def __init__(
        self,
        arguments: Callable[[str], EngineArguments],  # of an engine, by its model
        timing: Timing,
        config: ServerSettings,
        shared: Shared,
        room: Room,
    ) -> None:
        self._arguments = arguments
        self._timing = timing
        self._config = config
        self._shared = shared
        self._room = room
        self._threads = ThreadPoolExecutor(_NUM_THREADS, "octavo-models")

    async def need(self, model: str) -> Need:
        process = launch(self._room)
        return await self._whole(partial(answer_of, process, self._arguments(model)), process.kill)

    async def open(self, name: str, model: str, need: Need) -> Context:
        arguments = sized(self._arguments(model), need)
        config = replace(self._config, served_model_name=(name,))
        loop = asyncio.get_running_loop()
        source = await self._whole(partial(resolve, model))
        async with contextlib.AsyncExitStack() as stack:
            client = launch_engines(arguments, self._timing, name)
            stack.callback(client.close)
            workers: list[Worker] = []
            for _ in range(config.prompt_workers):
                workers.append(Worker.launch(config, str(source.tokenizer_path)))
                stack.callback(workers[-1].end)
            reading = loop.run_in_executor(self._threads, workers[0].read_table)
            try:
                await self._whole(client.start, client.interrupt)
            except BaseException:
                await _settled(reading)  # the worker is in use until then
                raise
            table = await _finished(reading)

            def made() -> Server:
                llm = AsyncLLM.over(client, arguments, table, source)
                return Server(llm, config, workers=workers, shared=self._shared)

            server = await self._whole(made)
            stack.push_async_callback(server.prompt_pool.close)
            server.llm.attach()
            await server.prompt_pool.start()
            stack.pop_all()
        return EngineContext(server)

    async def _whole(self, work: Callable[[], T], interrupt: Callable[[], object] = int) -> T:
        """Return what a thread makes; if this is cancelled, interrupt it and wait for it."""
        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        return await _finished(future, interrupt)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


async def _finished(future: asyncio.Future[T], interrupt: Callable[[], object] = int) -> T:
    """Return the result of a thread; if this is cancelled, interrupt it and wait for it."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        interrupt()
        await _settled(future)
        raise


async def _settled(future: asyncio.Future[T]) -> None:
    """Wait until a thread has ended, however it has."""
    await asyncio.wait([future])
    if not future.cancelled():
        future.exception()  # which is not looked at elsewhere


def sized(arguments: EngineArguments, need: Need) -> EngineArguments:
    """Return the arguments of an engine that takes as much memory as was computed."""
    return replace(
        arguments,
        num_gpu_blocks_override=need.num_blocks,
        max_model_len=need.max_model_len,
        kv_cache_memory_bytes=None,
        gpu_memory_utilization=None,
    )
