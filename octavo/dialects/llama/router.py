"""The routes by which llama-server's router loads and unloads its models, and their requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from octavo.dialects.llama.dialect import LLAMA
from octavo.serving.exchange import Exchange
from octavo.transport.errors import ApiError, invalid
from octavo.transport.route import Route

_YES, _NO = ("1", "true"), ("0", "false")


class ModelRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """A request about one of several models."""

    model: Annotated[str, Meta(min_length=1, max_length=4096)]


class SuccessResponse(Struct, kw_only=True):
    """The response to a request whose work has begun."""

    success: bool = True


async def only_one(exchange: Exchange) -> None:
    """Refuse what concerns several models, on a server with one."""
    raise ApiError(
        404,
        "this server has one model, which is always loaded; start it with several, or with "
        "--models-dir, to load and unload them",
        code="unsupported_route",
    )


def is_autoload(query: dict[str, str], usual: bool) -> bool:
    """Return whether a request may have its model loaded; raise ApiError for another word."""
    given = query.get("autoload", "")
    if given not in ("", *_YES, *_NO):
        raise invalid(f"autoload: expected true or false, got {given[:64]!r}", "autoload")
    return usual if not given else given in _YES


def router_props(most: int, *, autoloads: bool, version: str) -> dict[str, Any]:
    """Return what a server of several models says of itself, where no model is named."""
    return {
        "role": "router",
        "max_instances": most,
        "models_autoload": autoloads,
        "model_alias": "octavo",
        "model_path": "none",
        "default_generation_settings": {"params": {}, "n_ctx": 0},
        "build_info": f"octavo-{version}",
    }


ROUTER_ROUTES: Sequence[Route] = (
    Route(
        *("POST", "/models/load", only_one),
        "Load one of several models, for llama.cpp's clients.",
        *(ModelRequest, SuccessResponse),
        dialect=LLAMA,
    ),
    Route(
        *("POST", "/models/unload", only_one),
        "Unload one of several models once it is idle, for llama.cpp's clients.",
        *(ModelRequest, SuccessResponse),
        dialect=LLAMA,
    ),
)
