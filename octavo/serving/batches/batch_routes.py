"""The routes of batches: `/v1/batches`, whose batches are those of the key that made them."""

from __future__ import annotations

import copy
from collections import Counter
from operator import attrgetter

from octavo.serving.batches.disk import disk_errors
from octavo.serving.batches.file_routes import MAX_PAGE, batches_of, find_file
from octavo.serving.batches.schema import (
    ENDED,
    Batch,
    BatchList,
    BatchRequest,
    DeletedBatch,
    StoredBatch,
)
from octavo.serving.batches.service import Batches
from octavo.serving.batches.store import new_id
from octavo.serving.exchange import Exchange
from octavo.serving.schema.near_names import not_among
from octavo.serving.schema.queries import page_of, query_of
from octavo.transport.errors import ApiError, invalid

MAX_BATCHES = 10_000
MAX_OPEN = 64  # batches of one key that have not ended
_UNITS = {"m": 60, "h": 3600, "d": 86_400}
_MAX_DAYS = 14
_PAGE = 20


async def create(exchange: Exchange) -> None:
    """Handle POST /v1/batches: begin to answer the requests of a file."""
    batches = batches_of(exchange)
    request = await exchange.read(BatchRequest)
    if request.endpoint not in batches.urls:
        raise not_among("endpoint", sorted(batches.urls), request.endpoint)
    window = int(request.completion_window[:-1]) * _UNITS[request.completion_window[-1]]
    if window > _MAX_DAYS * _UNITS["d"]:
        raise invalid(f"completion_window: {_MAX_DAYS}d is the longest", "completion_window")
    try:
        find_file(exchange, request.input_file_id)
    except ApiError as error:
        raise invalid(error.message, "input_file_id", error.code) from None
    all_batches = batches.store.batches
    _check_counts(batches, exchange.owner)
    now = exchange.server.wall_time()
    name = new_id("batch_")
    batch = Batch(
        id=name,
        endpoint=request.endpoint,
        input_file_id=request.input_file_id,
        completion_window=request.completion_window,
        status="validating",
        created_at=now,
        expires_at=now + window,
        metadata=request.metadata,
    )
    expiry = request.output_expires_after
    stored = StoredBatch(
        owner=exchange.owner,
        batch=batch,
        output_seconds=None if expiry is None else expiry.seconds,
    )
    shown = copy.deepcopy(batch)
    all_batches[name] = stored
    try:
        with disk_errors():
            await batches.save(stored)
    except BaseException:
        del all_batches[name]
        raise
    batches.begin(stored)
    await exchange.respond_json(shown)


def _check_counts(batches: Batches, owner: str) -> None:
    """Raise ApiError if a key has as many batches as it may have, or as many that are open."""
    counts: Counter[str] = Counter()
    num_open = 0
    for each in batches.store.batches.values():
        counts[each.owner] += 1
        num_open += each.owner == owner and each.batch.status not in ENDED
    if num_open >= MAX_OPEN:
        what = f"{num_open} batches of this key have not ended, of {MAX_OPEN}; wait for some to end"
        raise ApiError(400, what, code="too_many_batches")
    if batches.shares.left(owner, counts, batches.shares.most(MAX_BATCHES)) <= 0:
        raise ApiError(
            400,
            f"this key has {counts[owner]} batches, the most that it may have now ({MAX_BATCHES} "
            "of all keys); delete some that have ended: DELETE /v1/batches/ID",
            code="too_many_batches",
        )
    batches.room.check_batch(owner)


async def batches(exchange: Exchange) -> None:
    """Handle GET /v1/batches: list the batches of this key."""
    query = query_of(exchange)
    own = [
        each.batch
        for each in batches_of(exchange).store.batches.values()
        if each.owner == exchange.owner
    ]
    own.sort(key=lambda each: (each.created_at, each.id))
    rows, place = page_of(own, attrgetter("id"), query, _PAGE, MAX_PAGE)
    await exchange.respond_json(BatchList(data=rows, **place))


async def batch(exchange: Exchange) -> None:
    """Handle GET /v1/batches/{id}: describe a batch."""
    await exchange.respond_json(_find(exchange).batch)


async def cancel(exchange: Exchange) -> None:
    """Handle POST /v1/batches/{id}/cancel: end a batch, and keep what has been answered."""
    stored = _find(exchange)
    if stored.batch.status in ENDED:
        raise ApiError(
            409, f"this batch has ended: it is {stored.batch.status}", code="batch_has_ended"
        )
    with disk_errors():
        await batches_of(exchange).cancel(stored)
    await exchange.respond_json(stored.batch)


async def delete(exchange: Exchange) -> None:
    """Handle DELETE /v1/batches/{id}: forget a batch that has ended; its files remain."""
    stored = _find(exchange)
    if stored.batch.status not in ENDED:
        raise ApiError(
            409,
            f"this batch has not ended: it is {stored.batch.status}; cancel it first",
            code="batch_has_not_ended",
        )
    with disk_errors():
        await batches_of(exchange).remove_batch(stored)
    await exchange.respond_json(DeletedBatch(id=stored.batch.id))


def _find(exchange: Exchange) -> StoredBatch:
    stored = batches_of(exchange).store.batches.get(exchange.parameter)
    if stored is None or stored.owner != exchange.owner:
        name = exchange.parameter[:64]
        raise ApiError(404, f"there is no batch {name!r}", code="batch_not_found")
    return stored
