"""The router: its servers, which of them gets a request, and what counts for all requests."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import time
from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec

from octavo.observe.exposition import Counter, Gauge, Labels, Metric, expose
from octavo.observe.http_metrics import HttpMetrics
from octavo.options.route import RouteSettings
from octavo.options.transport import ServerStartError, reason
from octavo.route.address import read_addresses
from octavo.route.asked import Asked, BodyReader
from octavo.route.kv_events.address import EventsAddress, read_events_addresses
from octavo.route.kv_events.reader import EventsReader
from octavo.route.kv_events.view import CacheView
from octavo.route.places import Places
from octavo.route.tokens import TokenSource
from octavo.route.upstream import Upstream
from octavo.route.watch import Watch
from octavo.routing import Candidate, choose, not_too_busy
from octavo.transport.auth import AccessControl
from octavo.transport.deadline import RequestTask
from octavo.transport.errors import ApiError, unavailable
from octavo.transport.exchange import HttpExchange

SERVER = "server"  # the label that names a server by its address
# Blocks of all engines that are remembered of KV events, and of each at least.
MOST_BLOCKS, LEAST_BLOCKS = 1 << 19, 1 << 12
MOST_NAMED = 20  # models that an error names


class Router:
    """Implements `transport.context.HttpContext` and `Service` in front of several servers."""

    digests_bodies = False  # no request can be continued here

    def __init__(self, config: RouteSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self.clock = clock
        self.access = AccessControl(config)
        tls = tls_context(config)
        addresses = read_addresses(config.servers)
        self.upstreams = [
            Upstream(number, each, config, tls, clock) for number, each in enumerate(addresses)
        ]
        events = read_events_addresses(config.kv_events, addresses)
        most = max(LEAST_BLOCKS, MOST_BLOCKS // max(1, len(events)))
        self._sources: list[tuple[EventsAddress, CacheView]] = []
        for each in events:
            # With one key for all, servers see one tenant: that of this router.
            view = CacheView(most, ignores_tenants=bool(config.upstream_api_key))
            self.upstreams[addresses.index(each.server)].views.append(view)
            self._sources.append((each, view))
        self._reader: EventsReader | None = None
        self.tokens = TokenSource(config, clock)
        self.places = Places(config.max_open_requests, config.max_held_bytes, len(config.api_keys))
        self.bodies = BodyReader()
        self.metrics = RouterMetrics(self.upstreams, self.places)
        self.tasks: set[RequestTask] = set()  # of the requests that are being answered
        self.is_draining = False
        self._changed = asyncio.Event()  # set when a server may have become ready
        self.watches = [Watch(each, config, clock, self.note_change) for each in self.upstreams]
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def wall_time(self) -> Callable[[], int]:
        """The time of answers, which a router writes in none."""
        return lambda: 0

    # the start and the end

    async def start(self) -> None:
        """Ask all servers once, and then time and again."""
        if self._sources:
            self._reader = EventsReader(self._sources)
        await asyncio.gather(*(each.look() for each in self.watches))
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(each.run()) for each in self.watches]

    async def close(self) -> None:
        """End the questions, and close the connections that have nothing to do."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for each in self.upstreams:
            each.pool.close()
        if self._reader is not None:
            await asyncio.to_thread(self._reader.close)

    @property
    def has_failed(self) -> bool:
        return False  # a server that fails may come back

    @property
    def num_open(self) -> int:
        return self.places.num_open

    def active(self) -> Collection[RequestTask]:
        return self.tasks

    def drain(self) -> None:
        self.is_draining = True

    def leave(self) -> None:
        pass  # nothing of a router's lasts so long

    def note_change(self) -> None:
        """Let requests that wait for a server look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    # the choice

    def refusal(self) -> ApiError | None:
        """Return the reason why requests are not served now; None if they are."""
        if self.is_draining:
            return unavailable("the router is shutting down", "server_shutdown")
        if not any(each.is_ready for each in self.upstreams):
            return unavailable(self._no_server(self.upstreams), "no_server", 1)
        return None

    def usable(self, asked: Asked, tried: Collection[Upstream] = ()) -> list[Upstream]:
        """Return the servers that may be given a request now, without those that were tried.

        Those that are paused are among them only where there is no other.
        """
        found = [
            each
            for each in self.upstreams
            if each.is_ready and each.may_have(asked.model) and each not in tried
        ]
        return [each for each in found if not each.is_paused] or found

    async def server_for(self, asked: Asked) -> Upstream:
        """Return the server that gets a request; wait for one, for a while, if none is ready."""
        until = self.clock() + self.config.wait_seconds
        while True:
            found = self.usable(asked)
            if found:
                return self.chosen(asked, found)
            possible = [each for each in self.upstreams if each.may_have(asked.model)]
            if not possible:
                raise self.unknown(asked.model)
            try:
                async with asyncio.timeout(until - self.clock()):
                    await self._changed.wait()
            except TimeoutError:
                raise unavailable(self._no_server(possible), "no_server", 1) from None

    def chosen(self, asked: Asked, among: Sequence[Upstream]) -> Upstream:
        """Return the server of these that gets a request.

        A session stays with its server, whatever other requests come and go.
        """
        candidates = [each.candidate(asked) for each in among]
        if asked.session:
            upstreams = self._listed(not_too_busy(candidates))
            return max(upstreams, key=lambda each: weight(asked.session, each.name))
        return self.upstreams[choose(asked.size, candidates)]

    async def with_tokens(self, asked: Asked, exchange: HttpExchange, body: bytes) -> Asked:
        """Return a request with the tokens of its prompt, if the choice needs them."""
        usable = self.usable(asked)
        if asked.session or asked.adapter is None or len(usable) < 2:
            return asked
        if not any(each.has_events for each in usable):
            return asked
        tokens = await self.tokens.tokens_of(exchange.route, body, exchange.head, usable)
        self.metrics.tokenized.add(1, "no" if tokens is None else "yes")
        return asked._replace(tokens=tokens, adapter=self._adapter(asked.model, usable))

    @staticmethod
    def _adapter(model: str, among: Sequence[Upstream]) -> str:
        """Return the name of a model in events, if its card says that it is an adapter."""
        for each in among:
            card = (each.models or {}).get(model)
            if card is not None and msgspec.json.decode(card).get("parent") is not None:
                return model
        return ""

    def _listed(self, candidates: Sequence[Candidate]) -> list[Upstream]:
        return [self.upstreams[each.engine] for each in candidates]

    def unknown(self, model: str) -> ApiError:
        """Return the error for a model that no server has."""
        names = self.model_names()
        shown = ", ".join(names[:MOST_NAMED]) or "none"
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        return ApiError(
            404,
            f"no server has the model {model[:200]!r}; there are: {shown}{more}",
            code="model_not_found",
            param="model",
        )

    @staticmethod
    def _no_server(among: Sequence[Upstream]) -> str:
        states = ", ".join(each.state() for each in among)
        return f"none of the {len(among)} servers for this can be given a request now ({states})"

    # the models

    def model_names(self) -> list[str]:
        """Return the names of all models that a server has, each once."""
        return [*self.model_cards()]

    def model_cards(self) -> dict[str, bytes]:
        """Return the cards of all models by their names, in JSON, as the first server has each."""
        found: dict[str, bytes] = {}
        for each in self.upstreams:
            if not each.is_out:
                for name, card in (each.models or {}).items():
                    found.setdefault(name, card)
        return found


def weight(session: bytes, name: str) -> bytes:
    """Return the rank of a server for a session, which is the same in every router.

    Where a server leaves or returns, only the sessions move for which it is the first.
    """
    return hashlib.blake2b(session + b"\0" + name.encode(), digest_size=16).digest()


def tls_context(config: RouteSettings) -> ssl.SSLContext | None:
    """Return the context for servers behind https; None if there is none."""
    if not any(each.startswith("https:") for each in config.servers):
        return None
    path = config.upstream_ca_certs
    try:
        return ssl.create_default_context(cafile=None if path is None else str(path))
    except OSError as error:
        raise ServerStartError(
            f"upstream_ca_certs={path} cannot be read: {reason(error)}; name a file in PEM form"
        ) from error


class RouterMetrics(HttpMetrics):
    """The metrics of a router: its HTTP, its servers, and what became of requests."""

    def __init__(self, upstreams: Sequence[Upstream], places: Places) -> None:
        super().__init__()
        self._upstreams = upstreams
        self.requests = Counter(
            "route_requests",
            "Requests given to a server, by the status of its answer.",
            (SERVER, "status"),
        )
        self.retries = Counter(
            "route_retries", "Requests given to another server, by the reason.", ("reason",)
        )
        self.prompt_tokens = Counter(
            "route_prompt_tokens", "Tokens of prompts given to a server, about.", (SERVER,)
        )
        self.known_tokens = Counter(
            "route_known_tokens", "Tokens of these that it was given before, about.", (SERVER,)
        )
        self.tokenized = Counter(
            "route_tokenized",
            "Prompts whose tokens were asked for, by whether they came in time.",
            ("known",),
        )
        metrics: list[Metric] = [
            *(self.requests, self.retries, self.prompt_tokens, self.known_tokens),
            self.tokenized,
            Gauge(
                "route_cached_blocks",
                "Blocks of a server that its KV events name; none without events.",
                lambda: self._each(lambda upstream: float(sum(map(len, upstream.views)))),
            ),
            Gauge("route_open_requests", "Open requests.", lambda: places.num_open),
            Gauge("route_held_bytes", "Bytes of bodies that are held.", lambda: places.num_bytes),
            Gauge(
                "route_server_requests",
                "Open requests of a server.",
                lambda: self._each(lambda upstream: upstream.num_requests),
            ),
            Gauge(
                "route_server_ready",
                "Whether a server gets requests.",
                lambda: self._each(lambda upstream: float(upstream.state() == "ready")),
            ),
        ]
        self._own += metrics

    def _each(self, read: Callable[[Upstream], float]) -> Iterator[tuple[Labels, float]]:
        for each in self._upstreams:
            yield ((SERVER, each.name),), read(each)

    def text(self) -> bytes:
        """Return the current exposition."""
        own: list[tuple[str, Metric, Labels]] = [
            (f"octavo:{metric.name}", metric, ()) for metric in self._own
        ]
        return expose([*own, *self.of_process()])
