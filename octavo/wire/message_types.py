"""The messages between front end and engine: typed structs, bounded, in numbered frames.

Down go requests and commands, up come the engine's facts, its events and its pulse. A frame is
msgpack: (epoch, number, message). The epoch counts engines: what an earlier one still says is
recognised by it. Numbers count frames from 0 in each direction, so that a lost one is noticed.

The wire knows requests by numbers that the front end gives; names of users never cross, nor does
what concerns text alone (stop strings, bad words as strings).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import msgspec
from msgspec import Meta, Struct

from octavo.core.request import FinishReason
from octavo.core.sampling_params import SamplingParams
from octavo.core.snapshot import EngineSnapshot
from octavo.core.stats import RequestStats
from octavo.engine_arguments import EngineArguments
from octavo.wire.facts import EngineFacts

MAX_FRAME_BYTES = 64 << 20
MAX_LISTED = 1 << 16  # requests, events or numbers in one frame
MAX_TEXT = 1 << 16  # characters of an error

Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Name = Annotated[str, Meta(max_length=4096)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Token = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Tokens = Annotated[bytes, Meta(max_length=MAX_FRAME_BYTES)]  # 32 bits each, little-endian
TEXT_FIELDS = ("stop", "bad_words")  # they stay in the front end


def _sampling_struct() -> type[Struct]:
    """SamplingParams field for field, so that one that is added there crosses too."""
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


class WireRequest(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A `Request`."""

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


class WireLogprobs(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A `TokenLogprobs`: 32-bit ids, 32-bit floats."""

    token_ids: bytes
    logprobs: bytes
    rank: Natural


class LogprobsNews(Struct, tag=0, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A `LogprobsPayload`."""

    sampled: tuple[WireLogprobs, ...]
    prompt_start: Natural
    prompt: tuple[WireLogprobs, ...]


class HiddenNews(Struct, tag=1, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A `HiddenPayload`."""

    values: bytes


class WireEvent(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A `TokenEvent`."""

    number: Natural
    position: Natural
    tokens: tuple[Token, ...]
    finish_reason: FinishReason | None = None
    stop_token: Token | None = None
    message: Text | None = None
    payload: LogprobsNews | HiddenNews | None = None
    stats: RequestStats | None = None


# down


class Start(Struct, tag=0, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What engine to be; the first message."""

    arguments: EngineArguments
    log_level: int


class Add(Struct, tag=1, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Take these requests, in this order."""

    requests: Annotated[tuple[WireRequest, ...], Meta(max_length=MAX_LISTED)]


class Drop(Struct, tag=2, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Abort these requests; unknown ones are no error."""

    numbers: Annotated[tuple[Natural, ...], Meta(max_length=MAX_LISTED)]


class Command(Struct, tag=3, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Something about the engine as a whole."""

    verb: Literal["pause", "resume", "reset_prefix_cache"]


# up


class Hello(Struct, tag=0, array_like=True, frozen=True, forbid_unknown_fields=True):
    """An engine's process is there, and waits to be told what to be."""


class Ready(Struct, tag=1, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The model is loaded."""

    facts: EngineFacts


class Failed(Struct, tag=2, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The engine ends, and this is why; whether it had started."""

    text: Text
    at_start: bool


class News(Struct, tag=3, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What a step has brought, and now and then the statistics."""

    events: Annotated[tuple[WireEvent, ...], Meta(max_length=MAX_LISTED)]
    snapshot: EngineSnapshot | None = None


class Pulse(Struct, tag=4, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A sign of life from a thread that does nothing else, with the facts of the one that works."""

    step: Natural
    busy_seconds: Annotated[float, Meta(ge=0)]  # the present step has taken; 0: there is none
    num_tokens: Natural  # of that step


Down = Start | Add | Drop | Command
Up = Hello | Ready | Failed | News | Pulse


class DownFrame(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What the front end sends."""

    epoch: Natural
    number: Natural
    message: Down


class UpFrame(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What an engine sends."""

    epoch: Natural
    number: Natural
    message: Up


class WireError(ValueError):
    """Bytes that are no message, or a message that does not fit in a frame."""


Frame = TypeVar("Frame")

_ENCODER = msgspec.msgpack.Encoder()
_DOWN = msgspec.msgpack.Decoder(DownFrame)
_UP = msgspec.msgpack.Decoder(UpFrame)


def encode(frame: DownFrame | UpFrame) -> bytes:
    """A frame's bytes."""
    try:
        data = _ENCODER.encode(frame)
    except (msgspec.MsgspecError, UnicodeEncodeError, OverflowError, TypeError) as error:
        raise WireError(f"cannot be written as a message: {error}") from error
    if len(data) > MAX_FRAME_BYTES:
        raise WireError(
            f"a message of {len(data)} bytes; at most {MAX_FRAME_BYTES} cross between the "
            "front end and the engine"
        )
    return data


def decode_down(data: bytes) -> DownFrame:
    """What the front end sent."""
    return _decode(_DOWN.decode, data)


def decode_up(data: bytes) -> UpFrame:
    """What an engine sent."""
    return _decode(_UP.decode, data)


def _decode(decode: Callable[[bytes], Frame], data: bytes) -> Frame:
    if len(data) > MAX_FRAME_BYTES:
        raise WireError(f"a frame of {len(data)} bytes; at most {MAX_FRAME_BYTES} are taken")
    try:
        return decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WireError(f"not a message: {error}") from error
