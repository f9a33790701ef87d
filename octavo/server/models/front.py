"""What all models of a server share in front of them, and their site for the lifecycle."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from octavo.observe.exposition import Labels
from octavo.observe.metrics import Metrics
from octavo.options.server import ServerSettings
from octavo.server.known_routes import missing_feature
from octavo.server.models.model import State
from octavo.server.models.models import Models
from octavo.server.models.routes import routes_of
from octavo.server.routes import DEFAULT_DIALECT
from octavo.serving.admission import Admission
from octavo.serving.exchange import Exchange
from octavo.serving.live.feed import LiveFeed
from octavo.serving.server import VERSION, Server, Shared, add_shared_metrics, wall_time
from octavo.transport.app import Application
from octavo.transport.auth import AccessControl
from octavo.transport.errors import ApiError, unavailable
from octavo.transport.lifecycle import Stoppable
from octavo.transport.route import RouteTable


class Front:
    """The part of a server before its models: access, metrics, requests without a model yet."""

    digests_bodies = False  # there is no journal

    def __init__(
        self,
        config: ServerSettings,
        models: Models,
        shared: Shared,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.models = models
        self.shared = shared
        self.clock = clock
        self.access: AccessControl = shared.access
        # Requests whose model is not known, or is being loaded, wait here; none is admitted.
        self.admission = Admission(config, 1, clock, lambda reason: self.metrics.reject(reason))
        self.metrics = Metrics(self.admission, list, self._readiness)
        add_shared_metrics(self.metrics, shared.responses, shared.traces)
        self.metrics.add_gauge("models", "Models, by state.", self._by_state)
        self.metrics.add_gauge("model_loads", "Times that each was loaded.", self._loads)
        self.live = LiveFeed(self.servers, shared.recent, config, VERSION, clock)
        self.is_draining = False
        self._any_server: Server | None = None
        self.openapi = b""  # the document of the routes, once it was asked for

    @property
    def wall_time(self) -> Callable[[], int]:
        """The seconds since 1970."""
        return wall_time

    def servers(self) -> list[Server]:
        """Return the servers of the models that have been used, loaded or asleep."""
        return [each.server for each in self.models.contexts()]

    def any_server(self) -> Server | None:
        """Return the server of a model for what all share, one that is closed if there is no other.

        None if no model was loaded yet.
        """
        servers = self.servers()
        if servers:
            self._any_server = servers[0]
        return self._any_server

    def refusal(self) -> ApiError | None:
        """Return the reason why requests are not served now; None if they are."""
        if self.is_draining:
            return unavailable("the server is shutting down", "server_shutdown")
        return None

    def _readiness(self) -> float:
        return 0.0 if self.is_draining else 1.0

    def _by_state(self) -> list[tuple[Labels, float]]:
        counts = Counter(each.state for each in self.models)
        return [((("state", str(state)),), float(counts[state])) for state in State]

    def _loads(self) -> Iterator[tuple[Labels, float]]:
        for each in self.models:
            if each.num_loads:
                yield (("model", each.name),), float(each.num_loads)


class ManyModels:
    """The site of several models."""

    def __init__(self, front: Front) -> None:
        self.front = front
        self.config, self.metrics = front.config, front.metrics

    @property
    def num_open(self) -> int:
        servers = self.front.servers()
        return self.front.admission.num_open + sum(each.admission.num_open for each in servers)

    @property
    def has_failed(self) -> bool:
        return False  # a model that has given up is opened again

    def application(self) -> Application:
        table = RouteTable(routes_of(self.front), missing_feature)
        return Application(self.front, table, DEFAULT_DIALECT, Exchange)

    def open(self) -> None:
        pass  # settings that name files are refused beside several models

    def attach(self) -> None:
        pass  # models are opened in the event loop

    async def start(self) -> None:
        self.front.models.start()

    async def begin(self) -> None:
        pass  # an earlier server has left nothing

    def drain(self) -> None:
        self.front.is_draining = True
        self.front.models.stop_loading()
        for server in self.front.servers():
            server.is_draining = True

    def leave(self) -> None:
        self.front.live.end()

    def active(self) -> Sequence[Stoppable]:
        found = [each for server in self.front.servers() for each in server.active.values()]
        return [*found, *self.front.live.listeners]

    async def close(self) -> None:
        await self.front.models.close()
        await self.front.shared.close()
