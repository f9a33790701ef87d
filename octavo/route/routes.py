"""The routes of a router: those that servers answer, its own, and those of its operators."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from urllib.parse import parse_qs

from octavo.dialects.anthropic.dialect import ANTHROPIC
from octavo.dialects.cohere.dialect import COHERE
from octavo.dialects.common.dialect import OPENAI
from octavo.dialects.ollama.dialect import OLLAMA
from octavo.observe.exposition import CONTENT_TYPE
from octavo.options.transport import ServerSettingsError
from octavo.route.address import read_address
from octavo.route.proxy import Proxy
from octavo.route.router import Router
from octavo.route.upstream import Upstream
from octavo.transport.app import Application
from octavo.transport.dialect import Dialect
from octavo.transport.errors import invalid
from octavo.transport.exchange import HttpExchange
from octavo.transport.route import Handler, Route, RouteTable

# What servers compute from a body in JSON, without keeping anything. What they keep (files,
# batches, stored responses) is of one server alone, and what changes them is for their operators.
PASSED_ON: Sequence[tuple[Dialect, tuple[str, ...]]] = (
    (
        OPENAI,
        (
            *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"),
            *("/v1/moderations", "/v1/rerank", "/v1/score", "/rerank", "/score", "/classify"),
            *("/pooling", "/tokenize", "/detokenize", "/generate", "/generate_stream"),
            *("/completion", "/infill", "/embedding", "/inference/v1/generate"),
            *("/v1/fim/completions", "/v1/classify", "/v1/pooling"),
        ),
    ),
    (ANTHROPIC, ("/v1/messages", "/v1/messages/count_tokens")),
    (OLLAMA, ("/api/chat", "/api/generate", "/api/embed")),
    (COHERE, ("/v2/chat", "/v2/embed", "/v2/rerank")),
)
READY = ("/health", "/health/ready", "/v1/health", "/ping")


def application(router: Router) -> Application:
    """Return what answers clients."""
    own = _Own(router)
    proxy = Proxy(router)
    routes = [Route("GET", path, own.ready, "Say whether a server is ready") for path in READY]
    routes += [
        Route("GET", "/health/live", own.live, "Say that the router runs"),
        Route("GET", "/v1/models", own.models, "List the models of all servers"),
        Route("GET", "/v1/models/{id}", own.model, "Describe a model"),
        Route("GET", "/metrics", own.metrics, "Return the metrics of the router"),
    ]
    routes += passed_on(proxy.answer, "Let a server answer")
    table = RouteTable(routes, not_passed_on)
    return Application(router, table, OPENAI, HttpExchange)


def passed_on(answer: Handler, summary: str) -> list[Route]:
    """Return the routes whose requests another server answers from their body alone."""
    return [
        Route("POST", path, answer, summary, dialect=dialect)
        for dialect, paths in PASSED_ON
        for path in paths
    ]


def admin_application(router: Router) -> Application:
    """Return what answers operators, on a socket of their own."""
    admin = _Admin(router)
    routes = [
        Route("GET", "/servers", admin.servers, "List the servers, with the state of each"),
        Route("POST", "/servers/out", admin.take_out, "Give a server no requests any more"),
        Route("POST", "/servers/in", admin.put_in, "Give a server requests again"),
    ]
    return Application(
        router, RouteTable(routes, not_passed_on), OPENAI, HttpExchange, checks_access=False
    )


def not_passed_on(path: str) -> str | None:
    """Return what a path of one server is for, which a router cannot answer."""
    if path.startswith(("/v1/files", "/v1/batches", "/v1/responses/", "/v1/streams")):
        return "what is kept is kept by one server; ask that one"
    if path.startswith(("/v1/audio", "/v1/images")):
        return "a router passes on bodies in JSON alone"
    return None


class _Own:
    """The handlers of what a router answers itself."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def live(self, exchange: HttpExchange) -> None:
        """Respond that the event loop runs, which the answer itself proves."""
        await exchange.respond_json({"status": "live"})

    async def ready(self, exchange: HttpExchange) -> None:
        """Respond whether a server can be given requests; 503 with the reason if not."""
        refusal = self._router.refusal()
        if refusal is not None:
            raise refusal
        await exchange.respond_json({"status": "ready"})

    async def models(self, exchange: HttpExchange) -> None:
        """Handle GET /v1/models: list the models of all servers, each once."""
        cards = b",".join(self._router.model_cards().values())
        await exchange.respond(b'{"object":"list","data":[', cards, b"]}")

    async def model(self, exchange: HttpExchange) -> None:
        """Handle GET /v1/models/{id}: describe one model."""
        card = self._router.model_cards().get(exchange.parameter)
        if card is None:
            raise self._router.unknown(exchange.parameter)
        await exchange.respond(card)

    async def metrics(self, exchange: HttpExchange) -> None:
        """Respond with the metrics of the router; those of servers are at the servers."""
        await exchange.respond(self._router.metrics.text(), kind=CONTENT_TYPE)


class _Admin:
    """The handlers of operators' commands."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def servers(self, exchange: HttpExchange) -> None:
        """Handle GET /servers: describe each server."""
        await exchange.respond_json({"servers": [*map(self._described, self._router.upstreams)]})

    async def take_out(self, exchange: HttpExchange) -> None:
        """Handle POST /servers/out: give a server no new requests; those that it has go on."""
        await self._put(exchange, is_out=True)

    async def put_in(self, exchange: HttpExchange) -> None:
        """Handle POST /servers/in: give a server requests again."""
        await self._put(exchange, is_out=False)

    async def _put(self, exchange: HttpExchange, *, is_out: bool) -> None:
        upstream = self._named(exchange)
        upstream.is_out = is_out
        self._router.note_change()
        await exchange.respond_json(self._described(upstream))

    def _named(self, exchange: HttpExchange) -> Upstream:
        name = parse_qs(exchange.head.query).get("server", [""])[0]
        with contextlib.suppress(ServerSettingsError):  # as on the command line
            name = read_address(name).url
        found = [each for each in self._router.upstreams if each.name == name]
        if not found:
            known = ", ".join(each.name for each in self._router.upstreams)
            raise invalid(f"?server= must name one of: {known}", "server")
        return found[0]

    def _described(self, upstream: Upstream) -> dict[str, object]:
        return {
            "server": upstream.name,
            "state": upstream.state(),
            "trouble": upstream.trouble,
            "models": None if upstream.models is None else [*upstream.models],
            "models_trouble": upstream.nameless,
            "open_requests": upstream.num_requests,
        }
