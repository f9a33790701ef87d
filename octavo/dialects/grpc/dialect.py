"""The errors and the frames of the gRPC dialect, and how its messages become structs.

A frame is a byte that says what it holds, four bytes of length, and a message or an error.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from octavo.dialects.common.schema.completion import CompletionRequest
from octavo.dialects.common.schema.sampling import MAX_DEADLINE_MS
from octavo.dialects.grpc.messages import messages
from octavo.dialects.grpc.schema import FORM, RpcAbortRequest, RpcEmbedRequest, RpcGenerateRequest
from octavo.serving.exchange import Exchange
from octavo.serving.schema.decode import MAX_FAST_BYTES, decode
from octavo.transport.dialect import Dialect
from octavo.transport.errors import ApiError, invalid
from octavo.transport.exchange import encode

T = TypeVar("T", bound=msgspec.Struct)

PACKAGE = "octavo.v1"
SERVICE = f"{PACKAGE}.Inference"
STREAM = "GenerateStream"
_HEAD = struct.Struct("<?I")
_POSITION_TAG = b"\x2a"  # of GenerateChunk.position: field 5, with a length
_ERROR_SCHEMA: dict[str, Any] = {"type": "object", "required": ["status", "message"]}


def frame(message: bytes, *, is_error: bool = False) -> bytes:
    """Return the frame of a message."""
    return _HEAD.pack(is_error, len(message)) + message


def frames_in(data: bytes) -> Iterator[tuple[bool, bytes]]:
    """Yield whether each frame is an error, and what it holds."""
    at = 0
    while at < len(data):
        is_error, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size + length
        yield is_error, data[at - length : at]


def error_fields(error: ApiError) -> dict[str, Any]:
    """Return what a call ends with for an error."""
    return {
        "status": error.status,
        "message": error.message,
        "code": error.code,
        "param": error.param,
        "headers": {name.decode(): value.decode() for name, value in error.headers},
    }


def error_body(error: ApiError) -> bytes:
    """Return the frame of an error, which the call ends with."""
    return frame(encode(error_fields(error)), is_error=True)


def with_position(made: bytes, position: bytes) -> bytes:
    """Return a chunk's frame with its position: a field may be appended to a message."""
    (_, message), *_ = frames_in(made)
    return frame(message + _POSITION_TAG + _length(len(position)) + position)


def _length(number: int) -> bytes:
    """Return a length as protocol buffers write it."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])


def decode_message(exchange: Exchange, body: bytes, kind: type[T]) -> T:
    """Return the struct of a request's message; raise ApiError for one that is not valid."""
    name, read = _KINDS[kind]
    try:
        message = getattr(messages(), name).FromString(body)
    except Exception as error:  # of protobuf's own, in one of its two implementations
        raise invalid(f"the message is no {PACKAGE}.{name}: {error}"[:500]) from None
    made: T = read(exchange, message)
    return made


def _generate(exchange: Exchange, message: Any) -> RpcGenerateRequest:
    fields = _fields(message.sampling_params)
    for name in ("model", "cache_salt", "priority", "deadline_ms", "add_special_tokens"):
        if message.HasField(name):
            fields[name] = getattr(message, name)
    seconds = exchange.head.seconds_left
    if "deadline_ms" not in fields and seconds is not None:
        fields["deadline_ms"] = min(MAX_DEADLINE_MS, max(1, int(1000 * seconds)))
    return RpcGenerateRequest(
        sampling_params=_checked({**fields, "prompt": ""}, CompletionRequest),
        is_stream=exchange.path.endswith(STREAM),
        **_input(exchange, message),
    )


def _embed(exchange: Exchange, message: Any) -> RpcEmbedRequest:
    fields = _fields(message)
    for name in ("prompt", "token_ids"):
        fields.pop(name, None)
    request = _checked(fields, RpcEmbedRequest)
    return msgspec.structs.replace(request, **_input(exchange, message))


def _abort(exchange: Exchange, message: Any) -> RpcAbortRequest:
    return _checked({"request_ids": list(message.request_ids)}, RpcAbortRequest)


# The message of each struct, and what reads it.
_KINDS: Mapping[type[msgspec.Struct], tuple[str, Callable[[Exchange, Any], Any]]] = {
    RpcGenerateRequest: ("GenerateRequest", _generate),
    RpcEmbedRequest: ("EmbedRequest", _embed),
    RpcAbortRequest: ("AbortRequest", _abort),
}


def _input(exchange: Exchange, message: Any) -> dict[str, Any]:
    """Return the text or the token ids; raise ApiError where there is neither."""
    given = message.WhichOneof("input")
    if given is None:
        raise invalid("give either prompt or token_ids", "prompt")
    if given == "prompt":
        return {"prompt": message.prompt}
    ids, longest = message.token_ids.ids, exchange.server.llm.facts.max_model_len
    if len(ids) > 4 * longest:
        raise invalid(
            f"token_ids has {len(ids)} ids; the model's context has {longest}", "token_ids"
        )
    if not ids:
        raise invalid("token_ids is empty; give at least one id", "token_ids")
    try:
        return {"packed_ids": array("i", ids).tobytes()}
    except OverflowError:
        raise invalid("token_ids has an id that no model has", "token_ids") from None


def _fields(message: Any) -> dict[str, Any]:
    """Return the fields of a message that are set, in plain data."""
    fields: dict[str, Any] = {}
    for field, value in message.ListFields():
        if hasattr(value, "ListFields"):
            value = _fields(value)
        elif hasattr(value, "items"):
            value = {str(key): each for key, each in value.items()}
        elif not isinstance(value, str | bytes) and hasattr(value, "__len__"):
            value = list(value)
        fields[field.name] = value
    return fields


def _checked(fields: dict[str, Any], kind: type[T]) -> T:
    """Return fields as a struct, checked like those of a body of JSON."""
    text = encode(fields)
    if len(text) > MAX_FAST_BYTES:
        raise invalid(
            f"the fields beside the input have {len(text)} bytes; at most {MAX_FAST_BYTES} are read"
        )
    try:
        return decode(text, kind)[0]
    except ApiError as error:
        raise named(error) from None


def named(error: ApiError) -> ApiError:
    """Return an error of a field of completions with its name in this dialect."""
    name = (error.param or "").partition(".")[0].partition("[")[0]
    if name in messages().SamplingParams.DESCRIPTOR.fields_by_name:
        error.param = f"sampling_params.{error.param}"
    return error


GRPC = Dialect(
    error_body=error_body,
    error_name="GrpcError",
    error_schema=_ERROR_SCHEMA,
    stream_kind="application/grpc",
    stream_schema=lambda payload: payload,
    decode=decode_message,
    form=FORM,
    with_id=with_position,
)
