"""The routes of Ollama's dialect about models: one is served, and it is always loaded."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Struct

from octavo.dialects.ollama.dialect import OLLAMA, instant, line
from octavo.dialects.ollama.model_schema import (
    OllamaCard,
    OllamaDetails,
    OllamaModels,
    OllamaShown,
    OllamaStatus,
    OllamaVersion,
    PullRequest,
    ShowRequest,
)
from octavo.dialects.ollama.schema import (
    OllamaAnswer,
    OllamaAnswerMessage,
    OllamaChatRequest,
    OllamaRequest,
    asked_model,
)
from octavo.serving.adapters.selection import known
from octavo.serving.exchange import Exchange
from octavo.serving.schema.decode import decode
from octavo.serving.server import VERSION, Server
from octavo.transport.errors import ApiError
from octavo.transport.route import Handler

# Routes that are refused: method, name, and what to do instead.
REFUSED = (
    ("POST", "push", "the model stays as it is"),
    ("POST", "create", "what a Modelfile sets belongs in each request: system, options, format"),
    ("POST", "copy", "for further names start it with --served-model-name"),
    ("DELETE", "delete", "`octavo list` shows where models are on the disk"),
)
_ADVICE = {f"/api/{name}": advice for _, name, advice in REFUSED}
_UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))
_PEEKED_BYTES = 4096  # a longer request has a prompt
_TASK_OF_CLASS = re.compile(r"(?:For[A-Z]\w*|Model)\Z")  # LlamaForCausalLM, BertModel
_FOREVER = "9999-12-31T23:59:59Z"  # the model is not unloaded


class _Peeked(Struct):
    """The part of a request that shows whether it is only to load the model."""

    model: str
    prompt: str | None = None
    messages: list[Any] | None = None
    keep_alive: Any = None


class _Weights(NamedTuple):
    """The facts about the files of the weights."""

    num_bytes: int
    modified_at: float
    digest: str


def loading(kind: type[OllamaRequest], generate: Handler) -> Handler:
    """Return a handler that answers a request without a prompt: the model is loaded."""
    is_chat = kind is OllamaChatRequest
    field = "messages" if is_chat else "prompt"

    async def handle(exchange: Exchange) -> None:
        length = exchange.headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) <= _PEEKED_BYTES:
            body = await exchange.body()
            peeked = _peek(body)
            if peeked is not None and not getattr(peeked, field):
                await exchange.select(exchange.accept(kind, *decode(body, kind)))
                await exchange.respond_json(_loaded(exchange, peeked, is_chat=is_chat))
                return
            exchange.unread(body)
        await generate(exchange)

    return handle


def _peek(body: bytes) -> _Peeked | None:
    try:
        return msgspec.json.decode(body, type=_Peeked)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # the other handler names what is wrong


def _loaded(exchange: Exchange, peeked: _Peeked, *, is_chat: bool) -> OllamaAnswer:
    answer = OllamaAnswer(
        model=exchange.model_name, created_at=instant(exchange.created), done=True
    )
    answer.done_reason = "unload" if peeked.keep_alive in (0, "0", "0s") else "load"
    answer.message = OllamaAnswerMessage() if is_chat else UNSET
    answer.response = UNSET if is_chat else ""
    return answer


async def tags(exchange: Exchange) -> None:
    """Handle GET /api/tags: list the model under all its names."""
    await exchange.respond_json(OllamaModels(models=await cards_of(exchange.server)))


async def cards_of(server: Server) -> list[OllamaCard]:
    """Return what /api/tags says of a model, under each of its names."""
    weights = await _weights(server)
    at = instant(weights.modified_at)
    names = [*server.model_names, *(each.name for each in server.adapters)]
    return [_card(server, name, weights, modified_at=at) for name in names]


async def card_of_files(name: str, files: Sequence[str], started_at: float) -> OllamaCard:
    """Return what is known of a model that has not been loaded."""
    weights = await asyncio.to_thread(_read_weights, tuple(files), started_at)
    is_gguf = any(each.endswith(".gguf") for each in files)
    return OllamaCard(
        name=name,
        model=name,
        size=weights.num_bytes,
        digest=weights.digest,
        modified_at=instant(weights.modified_at),
        details=OllamaDetails(
            format="gguf" if is_gguf else "safetensors",
            family="",
            families=[],
            parameter_size="",
            quantization_level="",
        ),
    )


async def loaded(exchange: Exchange) -> None:
    """Handle GET /api/ps: list the model, which is loaded."""
    await exchange.respond_json(OllamaModels(models=[await loaded_card(exchange.server)]))


async def loaded_card(server: Server, expires_at: float | None = None) -> OllamaCard:
    """Return what /api/ps says of a model that is loaded; None: it stays so."""
    facts = server.llm.facts
    card = _card(
        server,
        server.model_name,
        await _weights(server),
        size_vram=0,
        expires_at=_FOREVER if expires_at is None else instant(expires_at),
        context_length=facts.longest_tokens,
    )
    card.size = sum(facts.memory_bytes.values()) or card.size
    return card


async def show(exchange: Exchange) -> None:
    """Handle POST /api/show: describe the model."""
    request = await exchange.read(ShowRequest)
    server = exchange.server
    name = request.model or request.name
    if name is None:
        raise ApiError(400, "model is missing", param="model")
    await exchange.select(request)
    facts, formats = server.llm.facts, server.context.formats.formats
    capabilities = ["completion"] * ("generate" in facts.pooling.tasks)
    capabilities += ["embedding"] * ("embed" in facts.pooling.tasks)
    capabilities += ["tools"] * (formats.tools is not None and "completion" in capabilities)
    capabilities += ["thinking"] * (formats.reasoning is not None)
    weights = await _weights(server)
    family = _family(server)
    info: dict[str, Any] = {
        "general.architecture": family,
        "general.basename": server.model_name,
        "general.parameter_count": facts.num_parameters,
        f"{family}.context_length": facts.max_model_len,
        f"{family}.vocab_size": facts.vocabulary,
    }
    if facts.pooling.width:
        info[f"{family}.embedding_length"] = facts.pooling.width
    shown = OllamaShown(
        modelfile=_modelfile(exchange),
        parameters=_parameters(server),
        template=server.config.chat_template
        or server.llm.model.tokenizer.chat_templates.get("default", ""),
        details=_details(server),
        info=info,
        capabilities=capabilities,
        modified_at=instant(weights.modified_at),
    )
    await exchange.respond_json(shown)


def _modelfile(exchange: Exchange) -> str:
    """Return the model, and the adapter that the name stands for."""
    lines = ["# served by Octavo", f"FROM {exchange.server.model_name}"]
    if exchange.selected is not None and exchange.selected.adapter is not None:
        lines.append(f"ADAPTER {exchange.selected.adapter.path}")
    return "\n".join([*lines, ""])


async def version(exchange: Exchange) -> None:
    """Handle GET /api/version: the server's own version."""
    await exchange.respond_json(OllamaVersion(version=VERSION))


async def pull(exchange: Exchange) -> None:
    """Handle POST /api/pull: the served model is there already, another is refused."""
    request = await exchange.read(PullRequest)
    name = request.model or request.name
    if name is None:
        raise ApiError(400, "model is missing", param="model")
    if known(exchange.server, asked_model(request)) is None:
        raise _fixed(exchange, "ask for that one, or start another server: octavo serve MODEL")
    await respond_pulled(exchange, request)


async def respond_pulled(exchange: Exchange, request: PullRequest) -> None:
    """Respond that a model is there."""
    if request.stream is False:
        await exchange.respond_json(OllamaStatus())
    else:
        await exchange.respond(line(OllamaStatus()), kind=OLLAMA.stream_kind.encode())


async def refuse(exchange: Exchange) -> None:
    """Refuse a request that would change which models there are."""
    raise _fixed(exchange, _ADVICE[exchange.path])


def _fixed(exchange: Exchange, advice: str) -> ApiError:
    return ApiError(
        400,
        f"{exchange.path} is not supported: this server has the model that it was started with, "
        f"{exchange.server.model_name!r}, and no other; {advice}",
        code="unsupported_route",
    )


def _card(server: Server, name: str, weights: _Weights, **more: Any) -> OllamaCard:
    return OllamaCard(
        name=name,
        model=name,
        size=weights.num_bytes,
        digest=weights.digest,
        details=_details(server),
        **more,
    )


def _details(server: Server) -> OllamaDetails:
    facts, family = server.llm.facts, _family(server)
    is_gguf = any(each.endswith(".gguf") for each in facts.weights)
    return OllamaDetails(
        format="gguf" if is_gguf else "safetensors",
        family=family,
        families=[family],
        parameter_size=_shortened(facts.num_parameters),
        quantization_level=facts.weight_type,
    )


def _shortened(count: int) -> str:
    """Return a number as names of models have it: 134.5M."""
    for unit, letter in _UNITS:
        if count >= unit:
            return f"{count / unit:.1f}".removesuffix(".0") + letter
    return str(count)


def _family(server: Server) -> str:
    """Return the architecture, as names of this dialect are written."""
    name = server.llm.facts.architecture
    return _TASK_OF_CLASS.sub("", name).lower() or "unknown"


def _parameters(server: Server) -> str:
    """Return the sampling parameters that the model's makers recommend."""
    defaults = server.llm.model.defaults
    names = {"temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
    names["repetition_penalty"] = "repeat_penalty"
    return "\n".join(f"{theirs} {getattr(defaults, ours)}" for ours, theirs in names.items())


async def _weights(server: Server) -> _Weights:
    return await asyncio.to_thread(_read_weights, server.llm.facts.weights, server.started_at)


@lru_cache(maxsize=64)
def _read_weights(paths: tuple[str, ...], started_at: float) -> _Weights:
    """Return the size, the time and a name of the weights; other files have another name."""
    num_bytes, modified_at, digest = 0, 0.0, hashlib.sha256()
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:  # they may be gone, since they are in memory
            continue
        num_bytes += status.st_size
        modified_at = max(modified_at, status.st_mtime)
        digest.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return _Weights(num_bytes, modified_at or started_at, digest.hexdigest())
