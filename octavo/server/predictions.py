"""/predict: several requests in one body, each with its route, as Vertex AI's endpoints send them.

Each is answered as if it had come alone, with the same key, limits and place in the queue; what is
refused has its error in the place of its prediction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta, Raw, Struct

from octavo.dialects.common.dialect import error_body
from octavo.serving.batches.calls import Calls
from octavo.serving.exchange import Exchange
from octavo.transport.deadline import RequestTask
from octavo.transport.errors import ApiError, invalid

MAX_INSTANCES = 128
FORMAT = "@requestFormat"
_AT_ONCE = 4  # of one body's instances: each may have as many sequences as a request
# By the field that such a request has, where it names no format.
_USUAL = {
    "messages": "/v1/chat/completions",
    "prompt": "/v1/completions",
    "input": "/v1/embeddings",
    "query": "/rerank",
}
# Llama.cpp's names of formats are paths too, in another writing.
_PATHS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages", "/v1/responses"),
    *("/rerank", "/score", "/classify", "/pooling"),
)


def _format_of(path: str) -> str:
    """Return the name of a path's format: /v1/chat/completions is chatCompletions."""
    first, *others = path.removeprefix("/v1").strip("/").split("/")
    return first + "".join(each.capitalize() for each in others)


FORMATS: Mapping[str, str] = {_format_of(path): path for path in _PATHS}


class PredictRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The request of /predict: the bodies of other routes."""

    schema: ClassVar[dict[str, Any]] = {
        "properties": {"instances": {"type": "array", "items": {"type": "object"}}}
    }
    instances: Annotated[list[dict[str, Raw]], Meta(min_length=1, max_length=MAX_INSTANCES)]
    parameters: dict[str, Raw] | None = None  # fields that all instances have unless they say else


class PredictResponse(Struct, kw_only=True):
    """The response of /predict, in the order of the instances."""

    predictions: list[Any]


async def predict(exchange: Exchange, calls: Calls) -> None:
    """Handle POST /predict: answer each instance, and respond with all answers."""
    request = await exchange.read(PredictRequest)
    made: list[Raw] = []

    async def answer() -> None:
        places = asyncio.Semaphore(_AT_ONCE)
        left = _Left(exchange.server.config.max_response_bytes)

        async def one(index: int, instance: dict[str, Raw]) -> Raw:
            try:
                return left.taken(await _prediction(exchange, calls, index, instance))
            finally:
                places.release()

        tasks: list[asyncio.Task[Raw]] = []
        async with asyncio.TaskGroup() as group:  # which ends all others when the client leaves
            for index, each in enumerate(request.instances):
                await places.acquire()
                task = one(index, {**(request.parameters or {}), **each})
                tasks.append(group.create_task(task))
                await asyncio.sleep(0)  # other clients come between two that are read and checked
        made.extend(task.result() for task in tasks)

    await RequestTask(exchange).run(answer(), exchange.server.config.max_request_seconds)
    await exchange.respond_json(PredictResponse(predictions=made))


class _Left:
    """The bytes that the predictions of one body may still have together."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = self._whole = num_bytes

    def taken(self, body: bytes) -> Raw:
        """Return a prediction, or an error once they are too many bytes together."""
        self._num_bytes -= len(body)
        if self._num_bytes >= 0:
            return Raw(body)
        error = invalid(
            f"the predictions have more than {self._whole} bytes together (--max-response-bytes); "
            "divide the instances among requests",
            "instances",
            "response_too_large",
        )
        return Raw(error_body(error))


async def _prediction(
    exchange: Exchange, calls: Calls, index: int, instance: dict[str, Raw]
) -> bytes:
    """Return the body of the response to one instance, which may be an error."""
    try:
        path = _path_of(instance, calls)
        if bytes(instance.get("stream", Raw(b"null"))) not in (b"null", b"false"):
            raise invalid("a prediction is no stream; leave stream out", "stream")
    except ApiError as error:
        return error_body(error)
    body = msgspec.json.encode({name: each for name, each in instance.items() if name != FORMAT})
    name = f"{exchange.request_id[:192]}-{index}"
    reply = await calls.ask(path, body, name=name, owner=exchange.owner, is_background=False)
    return reply.body


def _path_of(instance: dict[str, Raw], calls: Calls) -> str:
    """Return the path that answers an instance; raise ApiError if there is none."""
    given = instance.get(FORMAT)
    if given is None:
        found = next((path for name, path in _USUAL.items() if name in instance), None)
        if found is None:
            raise invalid(f"an instance needs {FORMAT}, one of {', '.join(FORMATS)}", FORMAT)
        return found
    try:
        named = msgspec.json.decode(given, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise invalid(f"{FORMAT} must be a text", FORMAT) from None
    path = FORMATS.get(named, named)
    if path not in calls.urls:
        raise invalid(f"{FORMAT}={named[:64]!r} must be one of {', '.join(FORMATS)}", FORMAT)
    return path
