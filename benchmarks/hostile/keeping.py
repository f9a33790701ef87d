"""What one key makes a server keep: files, batches, events, and the journal that it begins with.

The server has a directory in which one key has nearly all files and batches that it may have, and a
journal of 3 GB, most of it a hole. That key sends more of everything, and a line of a batch with
700,000 names. Another key must be served all the while.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.hostile.answers import Answer
from benchmarks.hostile.attack import ATTACK_KEY, WATCH_KEY, Attack, Right, request
from benchmarks.hostile.client import carry_out
from benchmarks.served.client import LostError, Served, metric, peak_mib
from octavo.client.durable.framing import Framing
from octavo.options.server import ServerSettings
from octavo.serving.batches.batch_routes import MAX_BATCHES
from octavo.serving.batches.room import FILES_OF_BATCH, MAX_FILES
from octavo.serving.batches.schema import Batch, FileObject, StoredBatch, StoredFile
from octavo.serving.batches.store import TABLES
from octavo.serving.store.database import Database
from octavo.transport.auth import AccessControl

MAX_FRONT_END_MB = 300.0
MAX_HOLD_MS = 100.0  # of the event loop, in processor time
JOURNAL_BYTES = 3 << 30
RESPONSES_BYTES = 1 << 20
NUM_RESPONSES = 48  # in the background, of the hostile key
NUM_NAMES = 700_000  # in one line of a batch
LEFT = 3  # batches that the hostile key may still have
_LEFT_FILES = 1 + FILES_OF_BATCH * LEFT  # one is sent for the batches
MOST_TRIES = 50
LIMIT_SECONDS = 300.0
_LATER = 1 << 33  # when the files expire
_FORM = [("Content-Type", "multipart/form-data; boundary=x")]
_HEAD = (
    b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x\r\n'
    b'Content-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
)


def settings_in(directory: Path, *, is_crowded: bool = True) -> dict[str, Any]:
    """Fill a directory; return the settings of a server that begins with it.

    Unless it is crowded, it has no files and batches, and a shorter journal: all of these take
    some time to write and to read.
    """
    access = AccessControl(ServerSettings(api_keys=(ATTACK_KEY, WATCH_KEY)))
    owner = access.check_key("/v1/files", {"authorization": f"Bearer {ATTACK_KEY}"})
    where = directory / "batches"
    where.mkdir()
    described: dict[str, list[tuple[str, bytes]]] = {"files": [], "batches": []}
    for number in range(MAX_FILES // 2 - _LEFT_FILES if is_crowded else 0):
        file = FileObject(
            id=f"file-{number}",
            bytes=1,
            created_at=0,
            expires_at=_LATER,
            filename="in.jsonl",
            purpose="batch",
        )
        stored = msgspec.json.encode(StoredFile(owner=owner, file=file))
        described["files"].append((file.id, stored))
    for number in range(MAX_BATCHES // 2 - LEFT if is_crowded else 0):
        batch = Batch(
            id=f"batch_{number}",
            endpoint="/v1/completions",
            input_file_id="file-0",
            completion_window="24h",
            status="completed",
            created_at=0,
            expires_at=_LATER,
        )
        stored = msgspec.json.encode(StoredBatch(owner=owner, batch=batch))
        described["batches"].append((batch.id, stored))
    with contextlib.closing(Database(where / "descriptions", TABLES, waits=False)) as database:
        for table, rows in described.items():
            database.write(f"INSERT INTO {table} VALUES (?, ?)", rows)
    journal = directory / "journal"
    with journal.open("wb") as sparse:
        sparse.write(Framing.draw().header)
        sparse.truncate(JOURNAL_BYTES if is_crowded else JOURNAL_BYTES >> 6)
    journal.chmod(0o600)
    return {
        "model": None,
        "measures_holds": True,
        "engine": "fake?step=0.005&slots=64&blocks=40000&vocabulary=300",
        "server": {
            "api_keys": [WATCH_KEY, ATTACK_KEY],
            "batch_dir": str(where),
            "journal": str(journal),
            "responses_bytes": RESPONSES_BYTES,
        },
    }


async def faults_of_keeping(served: Served, *, is_crowded: bool = True) -> list[str]:
    """Return what is wrong with a server while one key makes it keep what it can."""
    port, faults = served.port, list[str]()
    served.held()  # the holds so far
    if is_crowded:
        faults += [fault async for fault in _crowd(port)]
    faults += [fault async for fault in _long_line(port)]
    faults += [fault async for fault in _responses(served)]
    peak_mb = peak_mib(served.process.pid) * 1.048576
    if peak_mb > MAX_FRONT_END_MB:
        faults.append(f"the front end took {peak_mb:.0f} MB, above {MAX_FRONT_END_MB:.0f} MB")
    return [f"keeping: {fault}" for fault in faults]


def pauses_of_keeping(served: Served) -> list[str]:
    """Return the hold of the event loop that is too long; its length is the machine's, too."""
    holds = served.held()["longest_holds_ms"]
    if holds and holds[0][0] > MAX_HOLD_MS:
        return [f"keeping: the event loop was held for {holds[0][0]:.0f} ms of processor time"]
    return []


async def _crowd(port: int) -> AsyncIterator[str]:
    """Add batches and files until they are refused; another key must have its own."""
    file = json.loads((await _ask(port, "/v1/files", *_upload_of(b"\n"))).body)["id"]
    body = json.dumps({"input_file_id": file, "endpoint": "/v1/completions"}).encode()
    error, batch = await _until_refused(port, "/v1/batches", (body, ()))
    if error != "too_many_batches":
        yield f"batches are not bounded: {error}"
    error, _ = await _until_refused(port, "/v1/files", _upload_of(b"\n"))
    if error != "storage_full":
        yield f"files are not bounded: {error}"
    await _end_of(port, batch, ATTACK_KEY)
    await _ask(port, f"/v1/batches/{batch}", method="DELETE")
    error, _ = await _until_refused(port, "/v1/batches", (body, ()))
    if error != "storage_full":
        yield f"files of batches are not bounded: {error}"
    sent = await _ask(port, "/v1/files", *_upload_of(b"\n"), key=WATCH_KEY)
    if sent.status != 200:
        yield f"one key closes /v1/files to another: {bytes(sent.body[:200])!r}"
        return
    body = body.replace(file.encode(), json.loads(sent.body)["id"].encode())
    begun = await _ask(port, "/v1/batches", body, key=WATCH_KEY)
    if begun.status != 200:
        yield f"one key closes /v1/batches to another: {bytes(begun.body[:200])!r}"


async def _until_refused(port: int, path: str, sent: tuple[bytes, Any]) -> tuple[str | None, str]:
    """Send the same until it is refused; return the error's code and the last id before it."""
    name = ""
    for _ in range(MOST_TRIES):
        answer = json.loads((await _ask(port, path, *sent)).body)
        if "error" in answer:
            return answer["error"]["code"], name
        name = answer["id"]
    return None, name


async def _long_line(port: int) -> AsyncIterator[str]:
    """Begin a batch of one line with very many names, which must fail."""
    names = ",".join(f'"{number:x}":1' for number in range(NUM_NAMES))
    line = f'{{"custom_id":"a","url":"/v1/completions","body":{{"prompt":"x"}},{names}}}\n'
    sent = await _ask(port, "/v1/files", *_upload_of(line.encode()), key=WATCH_KEY)
    body = {"input_file_id": json.loads(sent.body)["id"], "endpoint": "/v1/completions"}
    begun = await _ask(port, "/v1/batches", json.dumps(body).encode(), key=WATCH_KEY)
    status = await _end_of(port, json.loads(begun.body)["id"], WATCH_KEY)
    if status != "failed":
        yield f"a batch of a line with {NUM_NAMES} names is {status}"


async def _end_of(port: int, batch: str, key: str) -> str:
    """Return the status of a batch when it has ended, or after the longest time."""
    status, until = "validating", time.monotonic() + LIMIT_SECONDS
    while status in ("validating", "in_progress") and time.monotonic() < until:
        await asyncio.sleep(0.01)
        answer = await _ask(port, f"/v1/batches/{batch}", method="GET", key=key)
        status = json.loads(answer.body)["status"]
    return status


async def _responses(served: Served) -> AsyncIterator[str]:
    """Begin responses in the background; another key must have one, and all bytes count."""
    port = served.port
    body = {"input": "Hello", "background": True, "max_output_tokens": 400}
    data = json.dumps({**body, "ignore_eos": True}).encode()
    statuses = [(await _ask(port, "/v1/responses", data)).status for _ in range(NUM_RESPONSES)]
    if not any(status == 200 for status in statuses):
        yield f"no response in the background was begun: {statuses}"
    own = await _ask(port, "/v1/responses", data, key=WATCH_KEY)
    if own.status != 200:
        yield f"one key closes /v1/responses to another: {bytes(own.body[:200])!r}"
        return
    path = f"/v1/responses/{json.loads(own.body)['id']}"
    status, until = "queued", time.monotonic() + LIMIT_SECONDS
    while status in ("queued", "in_progress") and time.monotonic() < until:
        await asyncio.sleep(0.05)
        kept = await metric(served, "responses_bytes")
        if kept > RESPONSES_BYTES:
            yield f"responses take {kept:.0f} bytes, more than {RESPONSES_BYTES}"
            return
        answer = await _ask(port, path, method="GET", key=WATCH_KEY)
        status = json.loads(answer.body).get("status", "lost")
    if status not in ("completed", "incomplete"):
        yield f"the other key's response is {status}"


def _upload_of(data: bytes) -> tuple[bytes, Any]:
    """Return the body of an upload, and its headers."""
    return _HEAD + data + b"\r\n--x--\r\n", _FORM


async def _ask(
    port: int,
    path: str,
    body: bytes = b"",
    headers: Any = (),
    *,
    method: str = "POST",
    key: str = ATTACK_KEY,
) -> Answer:
    """Return the response to one request."""
    sent = request(path, body, method=method, headers=headers, key=key)
    outcome = await carry_out(Attack((sent,), Right.SERVED), port)
    if len(outcome.answers) != 1 or outcome.malformed:
        raise LostError(f"no response to {method} {path}: {outcome}")
    return outcome.answers[0]
