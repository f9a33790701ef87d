"""The server's description of a durable request: enough to write its answer again from any token.

The prompts are stored as token ids. A chat template may read the date, so that rendering it again
could give another prompt.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import Struct, structs

from octavo.api.requests import CheckedRequest
from octavo.serving.adapters.selection import Selection
from octavo.serving.exchange import Exchange
from octavo.serving.operation import GenerationRequest, PreparedRequest
from octavo.serving.preparation import prepare
from octavo.serving.schema.rules import rules_of
from octavo.serving.server import Server
from octavo.serving.translation import TranslationContext
from octavo.transport.errors import ApiError
from octavo.workers.jobs import PreparedPrompt, Refused

Translate = Callable[[TranslationContext, Any], GenerationRequest]

# The structs that generating routes accept, by their names in a journal.
_TRANSLATIONS: dict[str, tuple[type[Struct], Translate]] = {}
_encode = msgspec.msgpack.Encoder().encode


class StoredPrompt(Struct, array_like=True, frozen=True):
    """One prompt; its text only where the answer repeats it."""

    text: str
    packed_ids: bytes
    seed: int


class Head(Struct, array_like=True, frozen=True):
    """A request as its dialect has it, without what its prompts were made from, and the prompts."""

    kind: str  # as `_kind_name` has it
    request: bytes
    digest: bytes  # of the body; a large one is not kept, only what it asks for
    created: int
    prompts: tuple[StoredPrompt, ...]
    bad_words: list[list[int]]
    lora: str | None = None  # the engine's id of the adapter
    model_name: str = ""  # of the model or adapter, as the answer has it
    packed_prediction: bytes = b""


def register(kind: type[Struct], translate: Translate) -> None:
    """Note how the requests of a route are translated.

    Two structs of one name would let a recorded request be answered as another one.
    """
    name = _kind_name(kind)
    before = _TRANSLATIONS.setdefault(name, (kind, translate))
    assert before == (kind, translate), f"{name!r} means two kinds of requests, {before} and {kind}"


def _kind_name(kind: type[Struct]) -> str:
    """Return the name of a struct in a journal: that of its dialect's package, and its own."""
    _, _, package = kind.__module__.partition(".server.")
    return f"{package.partition('.')[0]}.{kind.__name__}"


def describe(request: Struct, prepared: PreparedRequest, exchange: Exchange) -> bytes:
    """Return the description of a request whose prompts have their seeds."""
    prompts = []
    for prompt, checked in zip(prepared.prompts, prepared.checked, strict=True):
        assert checked.sampling.seed is not None
        text = prompt.text if prepared.asked.wants_text else ""
        prompts.append(StoredPrompt(text, prompt.packed_ids, checked.sampling.seed))
    kind = type(request)
    head = Head(
        _kind_name(kind),
        _encode(rules_of(kind).without_prompts(request)),
        exchange.body_digest,
        exchange.created,
        tuple(prompts),
        prepared.prompts[0].bad_words_token_ids,
        prepared.asked.lora,
        exchange.model_name,
        prepared.prompts[0].packed_prediction,
    )
    return _encode(head)


def read_head(data: bytes) -> Head:
    """Read a description; raise ApiError for one that another version has written."""
    try:
        head = msgspec.msgpack.decode(data, type=Head)
    except msgspec.MsgspecError:
        raise _unreadable() from None
    if head.kind not in _TRANSLATIONS:
        raise _unreadable()
    return head


def form_of(head: Head) -> str:
    """Return the form of the streams that answer a request."""
    return rules_of(_TRANSLATIONS[head.kind][0]).form


async def restore(
    server: Server, head: Head, owner: str, *, is_background: bool = False
) -> PreparedRequest:
    """Prepare a request again, from token ids, so that its answer continues as it began.

    The model's context may have become shorter than a prediction, on which no token depends.
    """
    kind, translate = _TRANSLATIONS[head.kind]
    try:
        asked = translate(server.context, msgspec.msgpack.decode(head.request, type=kind))
    except msgspec.MsgspecError:
        raise _unreadable() from None
    most_predicted = server.llm.facts.max_model_len * array("i").itemsize
    made: list[PreparedPrompt | Refused] = []
    for stored in head.prompts:
        num_tokens = len(stored.packed_ids) // array("i").itemsize
        prompt = PreparedPrompt(
            text=stored.text,
            packed_ids=stored.packed_ids,
            num_tokens=num_tokens,
            bad_words_token_ids=[] if made else head.bad_words,
            packed_prediction=b"" if made else head.packed_prediction[:most_predicted],
        )
        made.append(prompt)
    asked.prepared, asked.keeps_apart, asked.lora = made, asked.is_stream, head.lora
    prepared = await prepare(server, asked, owner, is_background=is_background)
    prepared.checked = [
        _with_seed(checked, stored.seed)
        for checked, stored in zip(prepared.checked, head.prompts, strict=True)
    ]
    return prepared


def select_again(exchange: Exchange, head: Head) -> None:
    """Give an exchange what the request has selected, as its answer and its record name it."""
    name = head.model_name or exchange.server.model_name
    exchange.selected = Selection(name, exchange.server.adapters.get(name))


def _with_seed(checked: CheckedRequest, seed: int) -> CheckedRequest:
    return structs.replace(checked, sampling=replace(checked.sampling, seed=seed))


def _unreadable() -> ApiError:
    return ApiError(
        404,
        "this request was begun by another version of the server, which describes requests in "
        "another way; send it again with a new X-Request-Id",
        code="stream_not_found",
    )
