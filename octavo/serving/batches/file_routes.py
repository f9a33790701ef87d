"""The routes of files: `/v1/files`, whose files are those of the key that sent them."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from io import FileIO
from operator import attrgetter

from octavo.serving.batches.disk import disk_errors, in_thread, open_in_thread
from octavo.serving.batches.multipart import boundary_of
from octavo.serving.batches.schema import DeletedFile, FileList, FileObject, StoredFile
from octavo.serving.batches.service import Batches
from octavo.serving.batches.store import new_id
from octavo.serving.batches.uploads import PIECE_BYTES, receive
from octavo.serving.exchange import Exchange
from octavo.serving.schema.queries import bounded_number, page_of, query_of
from octavo.transport.errors import ApiError, invalid

MAX_PAGE = 10_000
PURPOSE = "batch"
_LEAST_SECONDS = 3600


def batches_of(exchange: Exchange) -> Batches:
    """Return the server's batches; raise ApiError if it has none."""
    batches = exchange.server.batches
    if batches is None:
        raise ApiError(
            404,
            "this server keeps no files and batches; start it with --batch-dir PATH",
            code="batches_disabled",
        )
    return batches


async def upload(exchange: Exchange) -> None:
    """Handle POST /v1/files: store the file of a form."""
    batches, server = batches_of(exchange), exchange.server
    boundary = boundary_of(exchange.headers.get("content-type", ""))
    room, store = batches.room, batches.store
    name = new_id("file-")
    path = str(store.contents(name))
    with room.upload(exchange.owner) as kept, disk_errors():
        try:
            most = server.config.batch_file_bytes
            keep = partial(room.keep, kept)
            reader, size = await receive(exchange, boundary, path, most, keep)
            seconds = _kept_seconds(reader.fields, server.config.batch_keep_seconds)
            if reader.fields.get("purpose") != PURPOSE:
                raise invalid("purpose must be 'batch': files are for batches here", "purpose")
            now = server.wall_time()
            described = FileObject(
                id=name,
                bytes=size,
                created_at=now,
                expires_at=now + seconds,
                filename=reader.filename or "file",
                purpose=PURPOSE,
            )
            stored = StoredFile(owner=exchange.owner, file=described)
            await batches.on_disk(store.save_file, stored)
        except BaseException:
            with suppress(OSError):  # which may be the same again
                await batches.on_disk(store.remove_file, name)
            raise
        store.add_file(stored)
    await exchange.respond_json(described)


async def files(exchange: Exchange) -> None:
    """Handle GET /v1/files: list the files of this key."""
    batches = batches_of(exchange)
    query = query_of(exchange)
    own = [
        each.file
        for each in batches.store.files.values()
        if each.owner == exchange.owner
        and query.get("purpose", each.file.purpose) == each.file.purpose
    ]
    own.sort(key=lambda each: (each.created_at, each.id))
    rows, place = page_of(own, attrgetter("id"), query, MAX_PAGE, MAX_PAGE)
    await exchange.respond_json(FileList(data=rows, **place))


async def file(exchange: Exchange) -> None:
    """Handle GET /v1/files/{id}: describe a file."""
    await exchange.respond_json(find_file(exchange, exchange.parameter).file)


async def contents(exchange: Exchange) -> None:
    """Handle GET /v1/files/{id}/content: send the contents of a file, piece by piece."""
    stored = find_file(exchange, exchange.parameter)
    path = batches_of(exchange).store.contents(stored.file.id)
    try:
        file = await open_in_thread(FileIO, path)
    except FileNotFoundError:
        raise ApiError(
            404,
            f"the contents of {stored.file.id} are gone from the server's disk; delete the file",
            code="file_not_found",
        ) from None
    with file:
        size, at = stored.file.bytes, 0
        headers = [(b"content-type", b"application/jsonl")]
        headers.append((b"content-length", str(size).encode()))
        await exchange.start(200, headers)
        while at < size and exchange.method != "HEAD":
            piece = await in_thread(file.read, min(PIECE_BYTES, size - at))
            if not piece:
                raise OSError(f"{path} is shorter than it was")
            at += len(piece)
            await exchange.write(piece, more=at < size)
        if not exchange.is_finished:
            await exchange.write(b"")


async def delete(exchange: Exchange) -> None:
    """Handle DELETE /v1/files/{id}: remove a file that no open batch needs."""
    batches, stored = batches_of(exchange), find_file(exchange, exchange.parameter)
    name = stored.file.id
    if batches.is_used(name):
        raise ApiError(
            409, f"a batch that has not ended reads {name}; cancel it first", code="file_in_use"
        )
    with disk_errors():
        await batches.remove_file(name)
    await exchange.respond_json(DeletedFile(id=name))


def find_file(exchange: Exchange, name: str) -> StoredFile:
    """Return a file of this key; raise ApiError if there is none."""
    stored = batches_of(exchange).store.files.get(name)
    if stored is None or stored.owner != exchange.owner:
        raise ApiError(404, f"there is no file {name[:64]!r}", code="file_not_found")
    return stored


def _kept_seconds(fields: dict[str, str], most: float) -> int:
    """Return the time for which a file is kept, as its form asks."""
    anchor = fields.get("expires_after[anchor]", "created_at")
    given = fields.get("expires_after[seconds]")
    if anchor != "created_at":
        raise invalid("expires_after[anchor] must be 'created_at'", "expires_after")
    if given is None:
        return int(most)
    seconds = bounded_number(given, _LEAST_SECONDS, int(most))
    if seconds is None:
        raise invalid(
            f"expires_after[seconds] must be a number from {_LEAST_SECONDS} to {most:.0f}",
            "expires_after",
        )
    return seconds
