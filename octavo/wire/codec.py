"""Between the core's types and the wire's: requests down, events up."""

from __future__ import annotations

import sys
from array import array
from dataclasses import fields

from octavo.core.plan import HiddenPayload, LogprobsPayload, TokenLogprobs
from octavo.core.request import Request, TokenEvent
from octavo.core.sampling_params import SamplingParams
from octavo.wire.message_types import (
    MAX_TEXT,
    TEXT_FIELDS,
    HiddenNews,
    LogprobsNews,
    WireError,
    WireEvent,
    WireLogprobs,
    WireRequest,
    WireSampling,
)

_CROSSING = [item.name for item in fields(SamplingParams) if item.name not in TEXT_FIELDS]


def request_to_wire(request: Request, number: int, parent: int | None) -> WireRequest:
    """A request under its number; WireError if something in it cannot cross."""
    sampling = request.sampling
    if not all(isinstance(item, str) for item in sampling.logits_processors):
        raise WireError(
            "logits_processors holds a function, and the engine runs in a process of its own; "
            "functions work with engine='inline'"
        )
    return WireRequest(
        number,
        _to_bytes(request.prompt),
        _to_bytes(request.emitted),
        WireSampling(**{name: getattr(sampling, name) for name in _CROSSING}),
        request.arrival,
        tuple(request.eos_token_ids),
        request.priority,
        request.lora,
        request.cache_scope,
        request.resumed,
        parent,
    )


def request_from_wire(wire: WireRequest) -> Request:
    """The request; in the core it goes by its number. WireError if it is not a possible one."""
    try:
        sampling = SamplingParams(**{name: getattr(wire.sampling, name) for name in _CROSSING})
    except ValueError as error:
        raise WireError(str(error)) from error
    return Request(
        request_id=name_of(wire.number),
        prompt=_token_ids(wire.prompt),
        sampling=sampling,
        arrival=wire.arrival,
        emitted=_token_ids(wire.emitted),
        eos_token_ids=wire.eos_token_ids,
        priority=wire.priority,
        lora=wire.lora,
        cache_scope=wire.cache_scope,
        resumed=wire.resumed,
        parent_id=None if wire.parent is None else name_of(wire.parent),
    )


def name_of(number: int) -> str:
    """What the engine's core calls the request of this number."""
    return str(number)


def event_to_wire(event: TokenEvent) -> WireEvent:
    """An event of the core, under its request's number."""
    return WireEvent(
        int(event.request_id),
        event.position,
        event.tokens,
        event.finish_reason,
        event.stop_token,
        None if event.message is None else event.message[:MAX_TEXT],
        None if event.payload is None else _payload_to_wire(event.payload),
        event.stats,
    )


def event_from_wire(wire: WireEvent, request_id: str) -> TokenEvent:
    """The event, under the name that the front end knows."""
    return TokenEvent(
        request_id,
        wire.position,
        wire.tokens,
        wire.finish_reason,
        wire.stop_token,
        wire.message,
        None if wire.payload is None else _payload_from_wire(wire.payload),
        wire.stats,
    )


def _payload_to_wire(payload: object) -> LogprobsNews | HiddenNews:
    if isinstance(payload, LogprobsPayload):
        return LogprobsNews(
            tuple(map(_logprobs_to_wire, payload.sampled)),
            payload.prompt_start,
            tuple(map(_logprobs_to_wire, payload.prompt)),
        )
    if isinstance(payload, HiddenPayload):
        return HiddenNews(_to_bytes(payload.values))
    raise WireError(f"no message carries a {type(payload).__name__}")


def _payload_from_wire(wire: LogprobsNews | HiddenNews) -> LogprobsPayload | HiddenPayload:
    if isinstance(wire, HiddenNews):
        return HiddenPayload(_from_bytes("f", wire.values))
    return LogprobsPayload(
        tuple(map(_logprobs_from_wire, wire.sampled)),
        wire.prompt_start,
        tuple(map(_logprobs_from_wire, wire.prompt)),
    )


def _logprobs_to_wire(told: TokenLogprobs) -> WireLogprobs:
    return WireLogprobs(_to_bytes(told.token_ids), _to_bytes(told.logprobs), told.rank)


def _logprobs_from_wire(wire: WireLogprobs) -> TokenLogprobs:
    told = TokenLogprobs(_token_ids(wire.token_ids), _from_bytes("f", wire.logprobs), wire.rank)
    if not len(told.token_ids) == len(told.logprobs) > 0:
        raise WireError(f"{len(told.token_ids)} tokens with {len(told.logprobs)} log-probabilities")
    return told


def _to_bytes(values: array[int] | array[float]) -> bytes:
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values.tobytes()


def _from_bytes(kind: str, data: bytes) -> array[float]:
    values: array[float] = array(kind)
    if len(data) % values.itemsize:
        raise WireError(f"{len(data)} bytes are not a whole number of {values.itemsize}-byte ones")
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _token_ids(data: bytes) -> array[int]:
    ids: array[int] = _from_bytes("i", data)  # type: ignore[assignment]
    if ids and min(ids) < 0:
        raise WireError(f"token id {min(ids)} is negative")
    return ids
