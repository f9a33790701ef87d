"""The messages between front end and engine: typed, bounded structs in numbered frames.

Requests and commands go to the engine; its facts, events, replies and heartbeats come back. A frame
is msgpack: (epoch, number, message). The epoch counts engines, so that late frames of an earlier
one are recognised. The number counts frames from 0 in each direction, so that a lost one is
noticed.

On the wire, a request is identified by a number that the front end assigns. The names that users
gave, stop strings and bad words as strings stay in the front end.

The structs are the wire's own. What has a type of a higher layer, such as the arguments of an
engine, crosses as bytes: one end packs it, and the other unpacks it with the type that it expects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec
from msgspec import Meta, Struct

from octavo.core.config import MAX_WEIGHT
from octavo.core.request import FinishReason
from octavo.core.sampling_params import SamplingParams
from octavo.core.snapshot import EngineLoad, EngineSnapshot
from octavo.core.stats import RequestStats
from octavo.wire.commands import CommandError
from octavo.wire.facts import EngineFacts
from octavo.wire.limits import MAX_FRAME_BYTES

MAX_LISTED = 1 << 16  # requests, events or numbers in one frame
MAX_TEXT = 1 << 16  # characters of an error message

Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Name = Annotated[str, Meta(max_length=4096)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Token = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Tokens = Annotated[bytes, Meta(max_length=MAX_FRAME_BYTES)]  # 32 bits each, little-endian
Packed = Annotated[bytes, Meta(max_length=MAX_FRAME_BYTES)]  # a value; see `pack`
Digest = Annotated[bytes, Meta(max_length=64)]
MAX_HOLDS = 8
# These stay in the front end.
TEXT_FIELDS = ("stop", "bad_words", "structured_outputs", "prediction")


def _sampling_struct() -> type[Struct]:
    """Derive the struct from SamplingParams, so that a field added there crosses too."""
    hints = get_type_hints(SamplingParams)
    hints["logits_processors"] = tuple[Name, ...]  # functions cannot cross
    listed: list[Any] = []
    for item in fields(SamplingParams):
        if item.name not in TEXT_FIELDS:
            assert item.default is not MISSING
            listed.append((item.name, hints[item.name], item.default))
    return msgspec.defstruct(
        "WireSampling", listed, array_like=True, frozen=True, forbid_unknown_fields=True
    )


WireSampling: Any = _sampling_struct()


class WireEncoderInput(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    num_positions: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    digest: Digest


class WireRequest(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    number: Natural
    prompt: Tokens
    emitted: Tokens
    sampling: WireSampling
    arrival: float
    eos_token_ids: Annotated[tuple[Token, ...], Meta(max_length=MAX_LISTED)]
    priority: int
    lora: Name | None
    cache_scope: Name
    resumed: bool
    parent: Natural | None
    owner: Name = ""
    weight: Annotated[float, Meta(gt=0, le=MAX_WEIGHT)] = 1.0
    is_background: bool = False
    salts: Annotated[tuple[tuple[Natural, Digest], ...], Meta(max_length=MAX_LISTED)] = ()
    encoder: WireEncoderInput | None = None
    holds: Annotated[tuple[Name, ...], Meta(max_length=MAX_HOLDS)] = ()
    prediction: Tokens = b""
    sampler_state: float | None = None
    reports_prompt: bool = False


class WireTokenLogprobs(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A `TokenLogprobs` as bytes: 32-bit ids and 32-bit floats."""

    token_ids: bytes
    logprobs: bytes
    rank: Natural


class WireLogprobsPayload(Struct, tag=0, array_like=True, frozen=True, forbid_unknown_fields=True):
    sampled: tuple[WireTokenLogprobs, ...]
    prompt_start: Natural
    prompt: tuple[WireTokenLogprobs, ...]


class WireHiddenPayload(Struct, tag=1, array_like=True, frozen=True, forbid_unknown_fields=True):
    values: bytes
    num_vectors: Natural
    start: Natural


class WireEvent(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    number: Natural
    position: Natural
    tokens: tuple[Token, ...]
    finish_reason: FinishReason | None = None
    stop_token: Token | None = None
    message: Text | None = None
    payload: WireLogprobsPayload | WireHiddenPayload | None = None
    stats: RequestStats | None = None
    sampler_state: float | None = None


# to the engine


class StartEngine(Struct, tag=0, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The first message: which engine to build, and how its process logs."""

    arguments: Packed  # of type EngineArguments
    log_level: int
    # The key of the digests that name KV, the same for all engines of a front end. It is secret.
    cache_key: Annotated[bytes, Meta(min_length=16, max_length=64)]
    flags: dict[Name, Name] = {}  # how the log spells settings; see octavo.observe.log
    is_first: bool = True  # False: an engine of this client has been ready before
    log_form: Name = "text"  # likewise; of octavo.observe.log


class AddRequests(Struct, tag=1, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Requests to add, in this order."""

    requests: Annotated[tuple[WireRequest, ...], Meta(max_length=MAX_LISTED)]


class AbortRequests(Struct, tag=2, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Numbers of the requests to abort; unknown numbers are ignored."""

    numbers: Annotated[tuple[Natural, ...], Meta(max_length=MAX_LISTED)]


class EngineCommand(Struct, tag=3, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A command of `octavo.wire.commands`, to which a reply with the same number comes back."""

    number: Natural
    name: Name
    arguments: Packed  # of the type that has this name


# from the engine


class ProcessStarted(Struct, tag=0, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The engine's process is running and waits for `StartEngine`."""


class EngineReady(Struct, tag=1, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The model is loaded; requests may come."""

    facts: EngineFacts


class EngineFailed(Struct, tag=2, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The reason why the engine cannot start, or why it ends."""

    text: Text
    is_of_model: bool = False  # the model's files are at fault
    is_of_settings: bool = False  # the engine's arguments are


class StepOutput(Struct, tag=3, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The events of a step, the load after it, and from time to time the statistics."""

    events: Annotated[tuple[WireEvent, ...], Meta(max_length=MAX_LISTED)]
    load: EngineLoad = EngineLoad()
    snapshot: EngineSnapshot | None = None


class Heartbeat(Struct, tag=4, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A sign of life from a thread of its own, with the progress of the working thread."""

    step: Natural
    busy_seconds: Annotated[float, Meta(ge=0)]  # spent in the current step; 0: it is idle
    num_tokens: Natural  # in that step


class CommandReply(Struct, tag=5, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The reply to the command of this number, which gets no other."""

    number: Natural
    value: Packed = b""  # of the command's `result`; empty if that is None, or with an error
    error: CommandError | None = None


class StoredBlocks(Struct, tag=0, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The `Stored` of `octavo.core.kv.cache_log`."""

    group: Natural
    digests: Annotated[tuple[Digest, ...], Meta(min_length=1, max_length=MAX_LISTED)]
    parent: Digest | None
    tokens: Tokens
    lora: Name | None
    keys: Annotated[tuple[tuple[Digest, ...], ...], Meta(max_length=MAX_LISTED)]


class RemovedBlock(Struct, tag=1, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The `Removed` of that module."""

    group: Natural
    digest: Digest


class ClearedCache(Struct, tag=2, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The `Cleared` of that module."""


CacheNote = StoredBlocks | RemovedBlock | ClearedCache


class CacheChanges(Struct, tag=6, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Notes of what has entered and left the prefix cache, in order, where it is followed."""

    notes: Annotated[tuple[CacheNote, ...], Meta(min_length=1, max_length=MAX_LISTED)]


ToEngine = StartEngine | AddRequests | AbortRequests | EngineCommand
EngineMessage = (
    ProcessStarted | EngineReady | EngineFailed | StepOutput | CommandReply | CacheChanges
)
FromEngine = EngineMessage | Heartbeat


class ToEngineFrame(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A frame that the front end sends."""

    epoch: Natural
    number: Natural
    message: ToEngine


class FromEngineFrame(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A frame that an engine sends."""

    epoch: Natural
    number: Natural
    message: FromEngine


class WireError(ValueError):
    """Bytes that are not a message, or a message that does not fit in a frame."""


Value = TypeVar("Value")

_ENCODER = msgspec.msgpack.Encoder()
_TO_ENGINE = msgspec.msgpack.Decoder(ToEngineFrame)
_FROM_ENGINE = msgspec.msgpack.Decoder(FromEngineFrame)


def pack(value: object) -> bytes:
    """Encode a value of any type that msgspec knows; raise WireError if that is impossible."""
    try:
        return _ENCODER.encode(value)
    except (msgspec.MsgspecError, UnicodeEncodeError, OverflowError, TypeError) as error:
        raise WireError(f"the message cannot be encoded: {error}") from error


def unpack(data: bytes, kind: type[Value]) -> Value:
    """Decode a value that was packed; raise WireError if it is not of this type."""
    return _decode(msgspec.msgpack.Decoder(kind).decode, data)


def encode(frame: ToEngineFrame | FromEngineFrame) -> bytes:
    """Encode a frame; raise WireError if it is invalid or too large."""
    data = pack(frame)
    if len(data) > MAX_FRAME_BYTES:
        raise WireError(
            f"the message has {len(data)} bytes; at most {MAX_FRAME_BYTES} can be sent between "
            "the front end and the engine"
        )
    return data


def decode_to_engine(data: bytes) -> ToEngineFrame:
    """Decode a frame that the front end sent."""
    return _decode(_TO_ENGINE.decode, data)


def decode_from_engine(data: bytes) -> FromEngineFrame:
    """Decode a frame that an engine sent."""
    return _decode(_FROM_ENGINE.decode, data)


def _decode(decode: Callable[[bytes], Value], data: bytes) -> Value:
    if len(data) > MAX_FRAME_BYTES:
        raise WireError(f"the frame has {len(data)} bytes; at most {MAX_FRAME_BYTES} are accepted")
    try:
        return decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WireError(f"not a message: {error}") from error
