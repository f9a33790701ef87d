"""Models that are loaded at once, or when a test lets them, without a model."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from octavo.options.server import ServerSettings
from octavo.server.models.front import Front, ManyModels
from octavo.server.models.memory import Need, Room
from octavo.server.models.model import Model
from octavo.server.models.models import Models
from octavo.serving.server import Server, Shared
from tests.server.engine import FakeEngine
from tests.server.make import patient


class FakeContext:
    """A model with an engine in this process, which only notes that it sleeps."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.is_dead = False
        self.is_asleep = False
        self.is_closed = False
        self.fails_to_sleep = False

    @property
    def is_idle(self) -> bool:
        return not self.server.admission.num_open

    async def sleep(self) -> None:
        if self.fails_to_sleep:
            raise TimeoutError("it does not end")
        await asyncio.sleep(0)
        self.is_asleep = True

    async def wake(self) -> None:
        await asyncio.sleep(0)
        self.is_asleep = False

    async def close(self) -> None:
        self.is_closed = True
        await self.server.prompt_pool.close()
        self.server.llm.close()


class FakeOpener:
    """An opener of such models, whose needs are given."""

    def __init__(self, directory: Path, config: ServerSettings, shared: Shared) -> None:
        self._directory = directory
        self._config = config
        self._shared = shared
        self.needs: dict[str, int] = {}
        self.failures: dict[str, Exception] = {}
        self.opened: list[str] = []
        self.is_closed = False
        self.gate = asyncio.Event()  # closed, no model is opened
        self.gate.set()

    async def need(self, model: str) -> Need:
        return Need(self.needs.get(model, 10), 1, 256)

    async def open(self, name: str, model: str, need: Need) -> FakeContext:
        self.opened.append(name)
        await self.gate.wait()
        if name in self.failures:
            raise self.failures[name]
        engine = FakeEngine(self._directory)
        config = replace(self._config, served_model_name=(name,))
        server = Server(engine, config, shared=self._shared)
        engine.attach()
        return FakeContext(server)

    def close(self) -> None:
        self.is_closed = True


class Clock:
    """A clock that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Site:
    """A front with models a, b and c, of which two have room at once."""

    def __init__(self, directory: Path, *, wait_seconds: float = 300.0, **options: object) -> None:
        config = patient(**options)
        self.clock = Clock()
        shared = Shared(config, self.clock)
        self.opener = FakeOpener(directory, config, shared)
        self.list = [Model(name, name) for name in "abc"]
        self.models = Models(self.list, self.opener, Room(20, 4), wait_seconds, self.clock)
        self.front = Front(config, self.models, shared, self.clock)
        self.site = ManyModels(self.front)
        self.application = self.site.application()

    def __getitem__(self, name: str) -> Model:
        found = self.models.get(name)
        assert found is not None
        return found

    def states(self) -> str:
        """Return the state of each model, in one text."""
        return " ".join(str(each.state) for each in self.list)

    def context(self, name: str) -> FakeContext:
        """Return what has been opened."""
        found = self[name].context
        assert isinstance(found, FakeContext)
        return found
