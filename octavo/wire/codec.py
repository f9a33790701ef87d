"""Converts between the core's types and the wire's: requests to the engine, events back."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import fields

from octavo.core.kv.cache_log import Note, Removed, Stored
from octavo.core.plan import HiddenPayload, LogprobsPayload, TokenLogprobs
from octavo.core.request import EncoderInput, Request, TokenEvent
from octavo.core.sampling_params import SamplingParams
from octavo.wire.message_types import (
    MAX_TEXT,
    TEXT_FIELDS,
    AddRequests,
    CacheChanges,
    CacheNote,
    ClearedCache,
    RemovedBlock,
    StoredBlocks,
    WireEncoderInput,
    WireError,
    WireEvent,
    WireHiddenPayload,
    WireLogprobsPayload,
    WireRequest,
    WireSampling,
    WireTokenLogprobs,
    pack,
    unpack,
)

BATCH_BYTES = 4 << 20  # of token ids in one message
MOST_NOTES = 256  # of a prefix cache in one message, each of as many tokens as the log puts there
_TOKENS_ALONE = TokenEvent("", 0, ())[3:]  # the fields after the tokens, all empty
_SENT_FIELDS = [item.name for item in fields(SamplingParams) if item.name not in TEXT_FIELDS]


def request_to_wire(request: Request, number: int, parent: int | None) -> WireRequest:
    """Convert a request; raise WireError if something in it cannot be sent."""
    sampling, encoder = request.sampling, request.encoder
    if not all(isinstance(item, str) for item in sampling.logits_processors):
        raise WireError(
            "logits_processors holds a function, which cannot be sent to the engine's process; "
            "functions need engine='inline'"
        )
    wire = WireRequest(
        number,
        _to_bytes(request.prompt),
        _to_bytes(request.emitted),
        WireSampling(**{name: getattr(sampling, name) for name in _SENT_FIELDS}),
        request.arrival,
        tuple(request.eos_token_ids),
        request.priority,
        request.lora,
        request.cache_scope,
        request.resumed,
        parent,
        request.owner,
        request.weight,
        request.is_background,
        request.salts,
        None if encoder is None else WireEncoderInput(encoder.num_positions, encoder.digest),
        request.holds,
        _to_bytes(request.prediction),
        request.sampler_state,
        request.reports_prompt,
    )
    if request.salts or encoder is not None or request.holds:
        # No other check covers these, which few requests have: one out of bounds fails alone.
        unpack(pack(wire), WireRequest)
    return wire


def request_from_wire(wire: WireRequest) -> Request:
    """Convert a request, which the core names by its number; raise WireError if it is invalid."""
    try:
        sampling = SamplingParams(**{name: getattr(wire.sampling, name) for name in _SENT_FIELDS})
    except ValueError as error:
        raise WireError(str(error)) from error
    encoder = wire.encoder
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
        owner=wire.owner,
        weight=wire.weight,
        is_background=wire.is_background,
        salts=wire.salts,
        encoder=None if encoder is None else EncoderInput(encoder.num_positions, encoder.digest),
        holds=wire.holds,
        prediction=_token_ids(wire.prediction),
        sampler_state=wire.sampler_state,
        reports_prompt=wire.reports_prompt,
    )


def in_batches(requests: Iterable[WireRequest]) -> Iterator[AddRequests]:
    """Yield all requests, in order, in messages of limited size."""
    batch: list[WireRequest] = []
    num_bytes = 0
    for request in requests:
        size = len(request.prompt) + len(request.emitted) + len(request.prediction)
        if batch and num_bytes + size > BATCH_BYTES:
            yield AddRequests(tuple(batch))
            batch, num_bytes = [], 0
        batch.append(request)
        num_bytes += size
    if batch:
        yield AddRequests(tuple(batch))


def name_of(number: int) -> str:
    """Return the request id that the engine's core uses for this number."""
    return str(number)


def event_to_wire(event: TokenEvent) -> WireEvent:
    """Convert an event of the engine's core."""
    if event[3:] == _TOKENS_ALONE:
        return WireEvent(int(event.request_id), event.position, event.tokens)
    return WireEvent(
        int(event.request_id),
        event.position,
        event.tokens,
        event.finish_reason,
        event.stop_token,
        None if event.message is None else event.message[:MAX_TEXT],
        None if event.payload is None else _payload_to_wire(event.payload),
        event.stats,
        event.sampler_state,
    )


def event_from_wire(wire: WireEvent, request_id: str) -> TokenEvent:
    """Convert an event, and give it the request id that the front end uses."""
    return TokenEvent(
        request_id,
        wire.position,
        wire.tokens,
        wire.finish_reason,
        wire.stop_token,
        wire.message,
        None if wire.payload is None else _payload_from_wire(wire.payload),
        wire.stats,
        wire.sampler_state,
    )


def cache_changes(notes: Iterable[Note]) -> Iterator[CacheChanges]:
    """Yield all notes of a prefix cache, in order, in messages of limited size."""
    wire = [*map(_note_to_wire, notes)]
    for at in range(0, len(wire), MOST_NOTES):
        yield CacheChanges(tuple(wire[at : at + MOST_NOTES]))


def _note_to_wire(note: Note) -> CacheNote:
    match note:
        case Stored():
            return StoredBlocks(*note)
        case Removed():
            return RemovedBlock(*note)
        case _:
            return ClearedCache()


def _payload_to_wire(payload: object) -> WireLogprobsPayload | WireHiddenPayload:
    if isinstance(payload, LogprobsPayload):
        return WireLogprobsPayload(
            tuple(map(_logprobs_to_wire, payload.sampled)),
            payload.prompt_start,
            tuple(map(_logprobs_to_wire, payload.prompt)),
        )
    if isinstance(payload, HiddenPayload):
        return WireHiddenPayload(_to_bytes(payload.values), payload.num_vectors, payload.start)
    raise WireError(f"a payload of type {type(payload).__name__} cannot be sent")


def _payload_from_wire(
    wire: WireLogprobsPayload | WireHiddenPayload,
) -> LogprobsPayload | HiddenPayload:
    if isinstance(wire, WireHiddenPayload):
        values = _from_bytes("f", wire.values)
        if not wire.num_vectors or len(values) % wire.num_vectors:
            raise WireError(f"{len(values)} numbers are not {wire.num_vectors} equal vectors")
        return HiddenPayload(values, wire.num_vectors, wire.start)
    return LogprobsPayload(
        tuple(map(_logprobs_from_wire, wire.sampled)),
        wire.prompt_start,
        tuple(map(_logprobs_from_wire, wire.prompt)),
    )


def _logprobs_to_wire(item: TokenLogprobs) -> WireTokenLogprobs:
    return WireTokenLogprobs(_to_bytes(item.token_ids), _to_bytes(item.logprobs), item.rank)


def _logprobs_from_wire(wire: WireTokenLogprobs) -> TokenLogprobs:
    item = TokenLogprobs(_token_ids(wire.token_ids), _from_bytes("f", wire.logprobs), wire.rank)
    if not len(item.token_ids) == len(item.logprobs) > 0:
        raise WireError(f"{len(item.token_ids)} tokens with {len(item.logprobs)} log-probabilities")
    return item


def _to_bytes(values: array[int] | array[float]) -> bytes:
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values.tobytes()


def _from_bytes(kind: str, data: bytes) -> array[float]:
    values: array[float] = array(kind)
    if len(data) % values.itemsize:
        raise WireError(f"{len(data)} bytes are not a multiple of {values.itemsize}-byte values")
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _token_ids(data: bytes) -> array[int]:
    ids: array[int] = _from_bytes("i", data)  # type: ignore[assignment]
    if ids and min(ids) < 0:
        raise WireError(f"token id {min(ids)} is negative")
    return ids
