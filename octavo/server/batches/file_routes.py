"""The routes of files: `/v1/files`, whose files are those of the key that sent them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qs

from octavo.server.batches.multipart import FormReader, boundary_of
from octavo.server.batches.schema import DeletedFile, FileList, FileObject, StoredFile
from octavo.server.batches.service import Batches
from octavo.server.batches.store import MAX_FILES, new_id
from octavo.server.http.errors import ApiError, invalid, too_many
from octavo.server.http.exchange import Exchange
from octavo.server.schema.query_numbers import bounded_number

MAX_UPLOADS = 8  # at once
MAX_PAGE = 10_000
PURPOSE = "batch"
_FORM_BYTES = 64 << 10  # of a form, beside its file
_PIECE_BYTES = 1 << 18
_LEAST_SECONDS = 3600
T = TypeVar("T")


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
    if batches.num_uploads >= MAX_UPLOADS:
        raise too_many(f"{MAX_UPLOADS} files are being sent already", 1, "too_many_uploads")
    if len(batches.store.files) >= MAX_FILES:
        raise _full(f"there are {MAX_FILES} files; delete some")
    room = _room(batches, exchange)
    name = new_id("file-")
    path = batches.store.contents(name)
    batches.num_uploads += 1
    try:
        try:
            reader, size = await _receive(exchange, boundary, str(path), room)
            seconds = _kept_seconds(reader.fields, server.config.batch_keep_seconds)
            if reader.fields.get("purpose") != PURPOSE:
                raise invalid("purpose must be 'batch': files are for batches here", "purpose")
        except BaseException:
            await asyncio.to_thread(_remove, str(path))
            raise
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
        await batches.on_disk(batches.store.save_file, stored)
        batches.store.add_file(stored)
    finally:
        batches.num_uploads -= 1
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
    page, more = page_of(own, query, 10_000)
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    await exchange.respond_json(FileList(data=page, first_id=first, last_id=last, has_more=more))


async def file(exchange: Exchange) -> None:
    """Handle GET /v1/files/{id}: describe a file."""
    await exchange.respond_json(find_file(exchange, exchange.parameter).file)


async def contents(exchange: Exchange) -> None:
    """Handle GET /v1/files/{id}/content: send the contents of a file, piece by piece."""
    stored = find_file(exchange, exchange.parameter)
    path = batches_of(exchange).store.contents(stored.file.id)
    descriptor = await asyncio.to_thread(os.open, path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size, at = stored.file.bytes, 0
        headers = [(b"content-type", b"application/jsonl")]
        headers.append((b"content-length", str(size).encode()))
        await exchange.start(200, headers)
        while at < size and exchange.method != "HEAD":
            piece = await asyncio.to_thread(os.pread, descriptor, min(_PIECE_BYTES, size - at), at)
            if not piece:
                raise OSError(f"{path} is shorter than it was")
            at += len(piece)
            await exchange.write(piece, more=at < size)
        if not exchange.is_finished:
            await exchange.write(b"")
    finally:
        os.close(descriptor)


async def delete(exchange: Exchange) -> None:
    """Handle DELETE /v1/files/{id}: remove a file that no open batch needs."""
    batches, stored = batches_of(exchange), find_file(exchange, exchange.parameter)
    name = stored.file.id
    if batches.is_used(name):
        raise ApiError(
            409, f"a batch that has not ended reads {name}; cancel it first", code="file_in_use"
        )
    await batches.remove_file(name)
    await exchange.respond_json(DeletedFile(id=name))


def find_file(exchange: Exchange, name: str) -> StoredFile:
    """Return a file of this key; raise ApiError if there is none."""
    stored = batches_of(exchange).store.files.get(name)
    if stored is None or stored.owner != exchange.owner:
        raise ApiError(404, f"there is no file {name[:64]!r}", code="file_not_found")
    return stored


def query_of(exchange: Exchange) -> dict[str, str]:
    """Return the parameters of the address, the last of each name."""
    text = exchange.scope.get("query_string", b"").decode("latin-1")
    try:
        found = parse_qs(text, max_num_fields=16)
    except ValueError:
        raise invalid("the address has more than 16 parameters") from None
    return {name: values[-1] for name, values in found.items()}


def page_of(own: Sequence[T], query: dict[str, str], default: int) -> tuple[list[T], bool]:
    """Return a page of what a key has, newest first, and whether there is more behind it."""
    rows: list[Any] = sorted(own, key=lambda each: (each.created_at, each.id))
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid(f"order must be 'asc' or 'desc', not {order[:16]!r}", "order")
    if order == "desc":
        rows.reverse()
    after = query.get("after")
    if after is not None:
        place = next((index for index, each in enumerate(rows) if each.id == after), None)
        if place is None:
            raise invalid(f"after={after[:64]!r} is none of these", "after")
        rows = rows[place + 1 :]
    given = query.get("limit", str(default))
    limit = bounded_number(given, 1, MAX_PAGE)
    if limit is None:
        raise invalid(f"limit must be a number from 1 to {MAX_PAGE}", "limit")
    return rows[:limit], len(rows) > limit


def _room(batches: Batches, exchange: Exchange) -> int:
    """Return the most bytes that a key may add: of several keys, one may have half of all."""
    config = exchange.server.config
    room = config.batch_bytes - batches.used_bytes()
    if len(config.api_keys) > 1:
        room = min(room, config.batch_bytes // 2 - batches.store.bytes_of(exchange.owner))
    if room <= 0:
        raise _full("the server has no room for more files (--batch-bytes); delete some")
    return min(room, config.batch_file_bytes)


async def _receive(
    exchange: Exchange, boundary: bytes, path: str, room: int
) -> tuple[FormReader, int]:
    """Write the file of a form to the disk as it arrives; return the form and the file's size."""
    pieces: list[bytes] = []
    reader = FormReader(boundary, pieces.append)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = await asyncio.to_thread(os.open, path, flags, 0o600)
    size = 0
    try:
        async for part in exchange.body_parts(room + _FORM_BYTES):
            reader.feed(part)
            if sum(map(len, pieces)) >= _PIECE_BYTES:
                size += await asyncio.to_thread(_write, descriptor, pieces)
        reader.finish()
        size += await asyncio.to_thread(_write, descriptor, pieces)
        if size > room:
            raise ApiError(
                413, f"the file has {size} bytes; {room} are possible", code="file_too_large"
            )
        await asyncio.to_thread(os.fsync, descriptor)
    finally:
        os.close(descriptor)
    return reader, size


def _write(descriptor: int, pieces: list[bytes]) -> int:
    data = b"".join(pieces)
    pieces.clear()
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    return len(data)


def _remove(path: str) -> None:
    if os.path.exists(path):
        os.unlink(path)


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


def _full(message: str) -> ApiError:
    return ApiError(400, message, code="storage_full")
