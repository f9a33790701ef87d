"""What a server serves, as its lifecycle sees it: one model, or several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from octavo.dialects.responses.background import recover
from octavo.observe.metrics import Metrics
from octavo.options.server import ServerSettings
from octavo.server.application import application
from octavo.server.routes import DEFAULT_DIALECT, served
from octavo.serving.adapters.service import AdapterService
from octavo.serving.batches.calls import Calls
from octavo.serving.batches.service import Batches
from octavo.serving.batches.store import Store
from octavo.serving.durable.service import Durability
from octavo.serving.idle import IdleSleep
from octavo.serving.server import Server
from octavo.transport.app import Application
from octavo.transport.lifecycle import Service, Stoppable


class Site(Service, Protocol):
    """The models behind one address, from the start of the server to its end."""

    @property
    def config(self) -> ServerSettings:
        """The settings of the server."""

    @property
    def metrics(self) -> Metrics:
        """The metrics that connections count on."""

    def application(self) -> Application:
        """Return what answers requests."""

    def open(self) -> None:
        """Open the files that the settings name; raise an error before anything listens."""

    def attach(self) -> None:
        """Bind the engines to the running event loop."""

    async def start(self) -> None:
        """Make everything ready that requests need."""

    async def begin(self) -> None:
        """Continue what an earlier server has left, now that requests are accepted."""

    async def close(self) -> None:
        """Keep what must be kept, and end what `open` and `start` have begun."""


class OneModel:
    """The site of a single model."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.config, self.metrics = server.config, server.metrics
        self._adapters = AdapterService(server)

    @property
    def num_open(self) -> int:
        return self.server.admission.num_open

    @property
    def has_failed(self) -> bool:
        return self.server.llm.death is not None

    def application(self) -> Application:
        return application(self.server)

    def open(self) -> None:
        server, config = self.server, self.config
        if config.journal is not None:
            server.durability = Durability.open(server)
        if config.batch_dir is not None:
            calls = Calls(server, served(config), DEFAULT_DIALECT)
            server.batches = Batches(server, Store(config.batch_dir), calls)

    def attach(self) -> None:
        self.server.llm.attach()

    async def start(self) -> None:
        await self._adapters.start()
        await self.server.prompt_pool.start()

    async def begin(self) -> None:
        if self.server.durability is not None:
            self.server.durability.start()
        await recover(self.server)
        if self.server.batches is not None:
            self.server.batches.start()
        if self.config.sleep_idle_seconds is not None:
            self.server.idle = self._idle(self.config.sleep_idle_seconds)
            self.server.idle.start()

    def _idle(self, seconds: float) -> IdleSleep:
        server = self.server

        def is_idle() -> bool:
            is_stopped = server.is_paused or server.is_draining
            return not (is_stopped or server.admission.num_open or server.active)

        return IdleSleep(server.llm, is_idle, server.clock, seconds)

    def drain(self) -> None:
        self.server.is_draining = True

    def leave(self) -> None:
        self.server.live.end()

    def active(self) -> Sequence[Stoppable]:
        return [*self.server.active.values(), *self.server.live.listeners]

    async def close(self) -> None:
        server = self.server
        if server.idle is not None:
            await server.idle.close()
        if server.batches is not None:
            await server.batches.close()
        await server.releases.finish()
        await server.common.close()
        if server.durability is not None:
            await server.durability.close()
        self._adapters.close()
        await server.prompt_pool.close()
