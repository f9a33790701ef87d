"""The routes that load and unload adapters: for clients if the server allows it, for operators."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Awaitable, Callable, Sequence

from octavo.dialects.adapters.dialect import SGLANG
from octavo.dialects.adapters.schema import (
    AdapterChange,
    LoadAdapterRequest,
    UnloadAdapterRequest,
)
from octavo.options.named_adapters import named_adapter
from octavo.serving.adapters.registry import Origin
from octavo.serving.adapters.rights import check_may_change
from octavo.serving.exchange import Exchange
from octavo.transport.errors import ApiError, invalid
from octavo.transport.exchange import encode
from octavo.transport.route import Handler, Route

log = logging.getLogger(__name__)

_TEXT = b"text/plain; charset=utf-8"
Change = Callable[[Exchange, Origin], Awaitable[str]]


async def _load(exchange: Exchange, origin: Origin) -> str:
    """Load the adapter that the body names; return its name."""
    asked = await exchange.read(LoadAdapterRequest)
    try:
        named = named_adapter(
            asked.lora_name, asked.lora_path, base_model_name=asked.base_model_name
        )
    except argparse.ArgumentTypeError as error:
        raise invalid(str(error), "lora_name") from None
    await exchange.server.adapters.add(named, origin, in_place=asked.load_inplace)
    log.info("the adapter %r is loaded from %r", asked.lora_name, asked.lora_path)
    return asked.lora_name


async def _unload(exchange: Exchange, origin: Origin) -> str:
    """Unload the adapter that the body names; return its name."""
    asked = await exchange.read(UnloadAdapterRequest)
    await exchange.server.adapters.remove(asked.lora_name)
    log.info("the adapter %r is unloaded", asked.lora_name)
    return asked.lora_name


def _as_text(change: Change, what: str, origin: Origin) -> Handler:
    """Return a handler that responds with a sentence, as vLLM does."""

    async def handle(exchange: Exchange) -> None:
        if origin == "client":
            check_may_change(exchange)
        name = await change(exchange, origin)
        text = f"Success: LoRA adapter '{name}' {what} successfully."
        await exchange.respond(text.encode(), kind=_TEXT)

    return handle


def _as_json(change: Change, origin: Origin) -> Handler:
    """Return a handler that responds with the adapters that there are, as SGLang does."""

    async def handle(exchange: Exchange) -> None:
        if origin == "client":
            check_may_change(exchange)
        status, made = 200, AdapterChange(success=True)
        try:
            await change(exchange, origin)
        except ApiError as error:
            status = error.status
            made = AdapterChange(success=False, error_message=error.named_message)
        made.loaded_adapters = {each.name: str(each.path) for each in exchange.server.adapters}
        await exchange.respond(encode(made), status=status)

    return handle


def adapter_routes(origin: Origin) -> Sequence[Route]:
    """Return the routes for operators or for clients."""
    return (
        Route(
            *("POST", "/v1/load_lora_adapter", _as_text(_load, "added", origin)),
            "Load an adapter (LoRA).",
            LoadAdapterRequest,
            kind="text/plain",
        ),
        Route(
            *("POST", "/v1/unload_lora_adapter", _as_text(_unload, "removed", origin)),
            "Unload an adapter.",
            UnloadAdapterRequest,
            kind="text/plain",
        ),
        Route(
            *("POST", "/load_lora_adapter", _as_json(_load, origin)),
            "Load an adapter, for SGLang's clients.",
            *(LoadAdapterRequest, AdapterChange),
            dialect=SGLANG,
        ),
        Route(
            *("POST", "/unload_lora_adapter", _as_json(_unload, origin)),
            "Unload an adapter, for SGLang's clients.",
            *(UnloadAdapterRequest, AdapterChange),
            dialect=SGLANG,
        ),
    )


ADAPTER_ROUTES = adapter_routes("client")
