"""The records of a journal: what a request is, what it has emitted, and when it needs no more."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct, structs

from octavo.core.request import TokenEvent
from octavo.wire.codec import event_from_wire, event_to_wire
from octavo.wire.message_types import MAX_LISTED, MAX_TEXT, WireError, WireEvent

Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Count = Annotated[int, Meta(ge=1, le=MAX_LISTED)]
Name = Annotated[str, Meta(max_length=4096)]


class Model(Struct, tag=0, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The model of all requests in the file; another one would continue them differently."""

    identity: Name


class Began(Struct, tag=1, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A request that was given to the engine; `head` is the server's own description of it.

    Its answers are numbered from `first` on.
    """

    number: Natural
    owner: Name
    request_id: Name
    first: Natural
    num_answers: Count
    head: bytes


class Emitted(Struct, tag=2, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Events of answers, which they name by their numbers."""

    events: tuple[WireEvent, ...]


class Rested(Struct, tag=3, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A request that needs no engine now: it has ended, or its client has left."""

    number: Natural


class Forgotten(Struct, tag=4, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A request that nothing may ask for any more."""

    number: Natural


Record = Model | Began | Emitted | Rested | Forgotten

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Record)
_EVENT_DECODER = msgspec.msgpack.Decoder(WireEvent)
_TOKENS_ALONE = structs.astuple(WireEvent(0, 0, ()))[3:]


def encode(record: Record) -> bytes:
    """Encode a record as a payload of the file.

    An event ends with its last field that says something: earlier versions have fewer fields, and
    read no event with more.
    """
    if isinstance(record, Emitted):
        return _ENCODER.encode((Emitted.__struct_config__.tag, [*map(_fields_of, record.events)]))
    return _ENCODER.encode(record)


def _fields_of(event: WireEvent) -> tuple[object, ...]:
    """Return the fields of an event up to the last one that has not its default, None."""
    fields = structs.astuple(event)
    if fields[3:] == _TOKENS_ALONE:
        return fields[:3]
    num_fields = len(fields)
    while fields[num_fields - 1] is None:
        num_fields -= 1
    return fields[:num_fields]


def decode(payload: bytes) -> Record | None:
    """Decode a payload; return None if it is no record of this version."""
    try:
        record: Record = _DECODER.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return record


def stored(event: TokenEvent, number: int) -> WireEvent:
    """Return an event as it is recorded, without its statistics, which are an engine's."""
    if event.payload is not None:
        return event_to_wire(event._replace(request_id=str(number), stats=None))
    message = None if event.message is None else event.message[:MAX_TEXT]
    return WireEvent(
        number,
        event.position,
        event.tokens,
        event.finish_reason,
        event.stop_token,
        message,
        sampler_state=event.sampler_state,
    )


def encode_event(event: WireEvent) -> bytes:
    """Encode an event to be kept in memory."""
    return _ENCODER.encode(event)


def decode_event(data: bytes) -> WireEvent:
    """Decode an event that was kept in memory."""
    event: WireEvent = _EVENT_DECODER.decode(data)
    return event


def restored(event: WireEvent) -> TokenEvent | None:
    """Return a recorded event without a name; None if its payload is not valid."""
    try:
        return event_from_wire(event, "")
    except WireError:
        return None
