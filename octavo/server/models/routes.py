"""The routes of a server with several models: the same, each for the model that a request names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from octavo.dialects.llama.router import (
    ModelRequest,
    SuccessResponse,
    is_autoload,
    router_props,
)
from octavo.dialects.ollama import models as ollama
from octavo.dialects.ollama.dialect import OLLAMA
from octavo.dialects.ollama.model_schema import OllamaModels, PullRequest
from octavo.dialects.openai.routes import card, listed
from octavo.observe.llama_metrics import NAMES as LLAMA_NAMES
from octavo.server.models.model import Model, State
from octavo.server.models.naming import Bodies, Wanted, without_tag
from octavo.server.routes import served
from octavo.serving.exchange import Exchange
from octavo.serving.schema.queries import query_of
from octavo.serving.server import VERSION, Server
from octavo.serving.status_routes import respond_metrics
from octavo.transport.deadline import RequestTask
from octavo.transport.errors import ApiError
from octavo.transport.route import Handler, Route

if TYPE_CHECKING:
    from octavo.server.models.front import Front

# Of no model: their handlers need nothing of one.
_OF_NONE = ("/", "/v1/live", "/health/live", "/openapi.json", "/docs", "/api/version")
_READY = ("/health", "/health/ready", "/v1/health", "/ping")
# About what models share, by an id.
_OF_ALL = ("/v1/responses/{id}", "/v1/requests/{id}")
# What a server with several models does not have.
_MISSING: Mapping[str, str] = {
    "/v1/files": "files and batches",
    "/v1/batches": "files and batches",
    "/v1/streams": "streams that outlive their connection",
    "/v1/load_lora_adapter": "adapters",
    "/v1/unload_lora_adapter": "adapters",
    "/load_lora_adapter": "adapters",
    "/unload_lora_adapter": "adapters",
    "/lora-adapters": "adapters",
    "/inference/v1/abort_requests": "the abortion of requests by their ids",
    "/api/push": "changes of its models",
    "/api/create": "changes of its models",
    "/api/copy": "changes of its models",
    "/api/delete": "changes of its models",
}


def routes_of(front: Front) -> list[Route]:
    """Return all routes, with handlers that find the model of each request."""
    own, each_model = _Own(front), _EachModel(front)
    handlers: Mapping[str, Handler] = {
        "/v1/models": own.models,
        "/models": own.models,
        "/v1/models/{id}": own.model,
        "/api/tags": own.tags,
        "/api/ps": own.loaded,
        "/api/pull": own.pull,
        "/version": own.version,
        "/metrics": own.metrics,
        "/models/load": partial(own.change, front.models.load),
        "/models/unload": partial(own.change, front.models.unload),
        **dict.fromkeys(_READY, own.ready),
    }
    routes: list[Route] = []
    for route in served(front.config):
        handler: Handler
        missing = next((what for path, what in _MISSING.items() if route.path.startswith(path)), "")
        if route.path == "/props":
            handler = partial(own.props, partial(each_model.answer, route.handler))
        elif route.path in handlers:
            handler = handlers[route.path]
        elif missing:
            handler = partial(_refuse, missing)
        elif route.path.startswith(_OF_ALL):
            handler = partial(each_model.answer_any, route.handler)
        elif route.path in _OF_NONE and route.method == "GET":
            handler = route.handler
        else:
            handler = partial(each_model.answer, route.handler)
        routes.append(replace(route, handler=handler))
    return routes


async def _refuse(what: str, exchange: Exchange) -> None:
    raise ApiError(
        404,
        f"a server with several models does not have {what}: start one for this model alone",
        code="unsupported_route",
    )


class _EachModel:
    """The way of a request to the server of its model."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._bodies = Bodies()

    async def answer(self, handler: Handler, exchange: Exchange) -> None:
        """Answer a request with the server of the model that it names, once that is loaded."""
        front = self._front
        refusal = front.refusal()
        if refusal is not None:
            front.metrics.reject(refusal.code or "unavailable")
            raise refusal
        async with AsyncExitStack() as stack:
            ticket = front.admission.register(exchange.owner, _num_bytes(exchange))
            try:
                model, wanted = await self._model_of(exchange)
                self._check_may_load(model, exchange)
                exchange.server = await self._loaded(model, exchange, stack)
                if wanted.keeps:
                    model.idle_seconds = wanted.keep_seconds
            finally:
                ticket.leave()
            await handler(exchange)

    async def _model_of(self, exchange: Exchange) -> tuple[Model, Wanted]:
        models = self._front.models
        wanted = await self._bodies.wanted(exchange, models.listed())
        found = models.get(wanted.name)
        if found is None and exchange.dialect is OLLAMA:
            found = models.get(without_tag(wanted.name))
        if found is None:
            raise models.unknown(wanted.name)
        return found, wanted

    def _check_may_load(self, model: Model, exchange: Exchange) -> None:
        """Raise ApiError for a model that is loaded only by a request to do so."""
        autoloads = is_autoload(query_of(exchange), self._front.models.autoloads)
        if not autoloads and model.status is State.UNLOADED:
            raise ApiError(
                400,
                f"the model {model.name!r} is not loaded: POST /models/load loads it, or send "
                "?autoload=true",
                param="model",
                code="model_not_loaded",
            )

    async def _loaded(self, model: Model, exchange: Exchange, stack: AsyncExitStack) -> Server:
        """Return the server of a model, which stays loaded until the stack ends."""
        use = self._front.models.used(model)
        if model.is_ready:
            return await stack.enter_async_context(use)
        made: list[Server] = []

        async def wait() -> None:
            made.append(await stack.enter_async_context(use))

        # In a task that ends when the client leaves.
        await RequestTask(exchange).run(wait(), self._front.config.max_request_seconds)
        return made[0]

    async def answer_any(self, handler: Handler, exchange: Exchange) -> None:
        """Answer a request about what all models share, with the server of any of them."""
        server = self._front.any_server()
        if server is None:
            raise ApiError(404, "no model has answered anything yet", code="not_found")
        exchange.server = server
        await handler(exchange)


class _Own:
    """The handlers of what concerns the whole server, or the list of its models."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def models(self, exchange: Exchange) -> None:
        """Handle GET /v1/models: list all models, with the state of each."""
        await exchange.respond_json(listed([self._card(each) for each in self._front.models]))

    async def model(self, exchange: Exchange) -> None:
        """Handle GET /v1/models/{id}: describe one model."""
        models = self._front.models
        found = models.get(exchange.parameter)
        if found is None:
            raise models.unknown(exchange.parameter)
        await exchange.respond_json(self._card(found))

    def _card(self, model: Model) -> dict[str, Any]:
        """Return a model's card; what only its engine knows is null until it was loaded."""
        state: dict[str, Any] = {"value": str(model.status)}
        if model.failure is not None:
            state["failed"] = True
        status = {"status": state}  # as llama-server's list has it
        if model.context is not None:
            return card(model.context.server, model.name) | status
        created = self._front.shared.started_at
        started = datetime.fromtimestamp(created, UTC).isoformat(timespec="seconds")
        return {
            "id": model.name,
            "object": "model",
            "created": created,
            "owned_by": "octavo",
            "root": model.source,
            "parent": None,
            "max_model_len": None,
            "permission": [],
            "type": "model",
            "display_name": model.name,
            "created_at": started.replace("+00:00", "Z"),
            "lifecycle": "active",
            "max_input_tokens": None,
            **status,
        }

    async def tags(self, exchange: Exchange) -> None:
        """Handle GET /api/tags: list all models."""
        started = self._front.shared.started_at
        found = []
        for each in self._front.models:
            if each.context is not None:
                found += await ollama.cards_of(each.context.server)
            else:
                found.append(await ollama.card_of_files(each.name, each.files, started))
        await exchange.respond_json(OllamaModels(models=found))

    async def loaded(self, exchange: Exchange) -> None:
        """Handle GET /api/ps: list the models that are loaded, and when each will sleep."""
        found = []
        for each in self._front.models:
            if each.state is State.LOADED and each.context is not None:
                server = each.context.server
                found.append(await ollama.loaded_card(server, self._expires_at(each)))
        await exchange.respond_json(OllamaModels(models=found))

    def _expires_at(self, model: Model) -> float | None:
        if model.idle_seconds is None or math.isinf(model.last_used):
            return None
        since = self._front.clock() - model.last_used
        return self._front.wall_time() + max(0.0, model.idle_seconds - since)

    async def change(self, change: Callable[[Model], None], exchange: Exchange) -> None:
        """Handle POST /models/load or /models/unload, of which only the beginning is waited for."""
        asked = await exchange.read(ModelRequest)
        refusal = self._front.refusal()
        if refusal is not None:
            raise refusal
        models = self._front.models
        found = models.get(asked.model)
        if found is None:
            raise models.unknown(asked.model)
        change(found)
        await exchange.respond_json(SuccessResponse())

    async def props(self, of_one: Handler, exchange: Exchange) -> None:
        """Handle GET /props: describe the model that the address names, or else the server."""
        if query_of(exchange).get("model"):
            await of_one(exchange)
            return
        models = self._front.models
        found = router_props(models.most, autoloads=models.autoloads, version=VERSION)
        await exchange.respond_json(found)

    async def pull(self, exchange: Exchange) -> None:
        """Handle POST /api/pull: the models of this server are there, others are refused."""
        request = await exchange.read(PullRequest)
        name = request.model or request.name
        if name is None:
            raise ApiError(400, "model is missing", param="model")
        models = self._front.models
        if models.get(name) is None and models.get(without_tag(name)) is None:
            raise models.unknown(name)
        await ollama.respond_pulled(exchange, request)

    async def version(self, exchange: Exchange) -> None:
        """Handle GET /version: the server's own version."""
        await exchange.respond_json({"version": VERSION})

    async def ready(self, exchange: Exchange) -> None:
        """Respond whether requests are accepted; models are loaded when they are asked for."""
        refusal = self._front.refusal()
        if refusal is not None:
            raise refusal
        await exchange.respond_json({"status": "ready"})

    async def metrics(self, exchange: Exchange) -> None:
        """Respond with the metrics of the server, and of each model that was used."""
        front, names = self._front, self._front.config.metrics_names
        found = front.metrics.named("", "octavo" if names == LLAMA_NAMES else names)
        for each in front.servers():
            found += each.metrics.named(each.model_name, names, is_one=False)
        await respond_metrics(exchange, found)


def _num_bytes(exchange: Exchange) -> int:
    """Return the size of a request's body, or the most that it may have."""
    most = exchange.server.config.max_body_bytes
    length = exchange.headers.get("content-length", "" if exchange.method == "POST" else "0")
    return min(int(length[:20]), most) if length.isdecimal() else most
