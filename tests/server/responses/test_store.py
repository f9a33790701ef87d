"""The store of responses: its bounds, its file, and what it restores."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from octavo.dialects.responses.background import recover
from octavo.options.server import ServerSettings
from octavo.options.transport import ServerStartError
from octavo.serving.store.responses import (
    ENTRY_BYTES,
    Content,
    Entry,
    Limits,
    ResponseStore,
    Shelf,
)
from octavo.serving.store.sqlite_shelf import open_store
from octavo.transport.errors import ApiError
from tests.server.durable.make import KEY, Gate, durable, in_loop, service_of
from tests.server.engine import FakeEngine
from tests.server.make import serving, until
from tests.server.responses.make import PATH, text_of
from tests.server.responses.test_background import BACK, LONG, ended, events_after

SIZE = 1000


def entry_of(owner: str, name: str) -> Entry:
    """Return a response that begins."""
    return Entry(owner, name, 0, 0.0, "in_progress", is_background=False, is_stream=False)


def add(store: ResponseStore, owner: str, name: str, size: int = SIZE) -> Entry | None:
    """Keep a response of this size that ends at once; return None if there was no room."""
    entry = entry_of(owner, name)
    if not store.begin(entry, Content(b"", ())):
        return None
    store.settle(entry, "completed", bytes(size - ENTRY_BYTES))
    return entry


def kept(store: ResponseStore, *names: str) -> str:
    """Return which of these names are kept; the first letter is the owner."""
    return " ".join(name for name in names if store.find(name[0], name))


def test_the_key_with_the_most_bytes_loses_its_oldest_response() -> None:
    now = [0.0]
    limits = Limits(seconds=10, num_bytes=4 * SIZE, num_responses=5)
    store = ResponseStore(limits, Shelf(), lambda: now[0], None)
    for name in ("a1", "b1", "a2", "a3"):
        add(store, name[0], name)
    assert (store.num_bytes, len(store)) == (4 * SIZE, 4)
    add(store, "b", "b2")
    assert kept(store, "a1", "a2", "a3", "b1", "b2") == "a2 a3 b1 b2"
    now[0] = 9.0
    add(store, "a", "a4")
    assert kept(store, "a2", "a3", "a4", "b1", "b2") == "a3 a4 b1 b2"
    add(store, "c", "c1", 5 * SIZE)  # more than there is room for: its own key loses it
    assert (store.num_bytes, kept(store, "a4", "b1", "b2", "c1")) == (3 * SIZE, "a4 b1 b2")
    add(store, "a", "a5")
    now[0] = 19.0
    assert kept(store, "a5") == ""
    assert (store.num_bytes, len(store)) == (0, 0)
    running = entry_of("a", "a6")
    assert store.begin(running, Content(bytes(3 * SIZE), ()))
    assert not store.begin(entry_of("b", "b6"), Content(bytes(SIZE), ()))


@in_loop
async def test_a_file_keeps_responses_over_the_end_of_the_server(
    directory: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {
        "responses_store": tmp_path / "responses",
        "api_keys": ("first-key", "second-key"),
    }
    first = {"authorization": "Bearer first-key"}
    other = {"authorization": "Bearer second-key"}
    async with serving(directory, FakeEngine(directory), **options) as client:
        client.headers.update(first)
        made = (await client.post(PATH, json=LONG)).json()
        deleted = (await client.post(PATH, json=LONG)).json()["id"]
        await client.delete(f"{PATH}/{deleted}")
        back = (await client.post(PATH, json=BACK)).json()["id"]
        await ended(client, back)
        events = await events_after(client, back)
        await until(lambda: not client.server.responses.runs)
        owner = client.server.access.check_key(PATH, first)
        unfinished = entry_of(owner, "resp_unfinished")
        client.server.responses.begin(unfinished, Content(b'{"status": "in_progress"}', ()))
        num_bytes = client.server.responses.num_bytes
        with pytest.raises(ServerStartError, match="in use"):
            open_store(client.server.config, lambda: 0.0, lambda: 0.0)
        await client.server.responses.close()
    assert (tmp_path / "responses").stat().st_mode & 0o077 == 0
    async with serving(directory, FakeEngine(directory), **options) as client:
        client.headers.update(first)
        store = client.server.responses
        assert store.num_bytes == num_bytes
        await recover(client.server)
        assert (await client.get(f"{PATH}/{made['id']}")).json() == made
        assert (await client.get(f"{PATH}/{made['id']}", headers=other)).status_code == 404
        assert (await client.get(f"{PATH}/{deleted}")).status_code == 404
        assert await events_after(client, back, 3) == events[4:]
        lost = (await client.get(f"{PATH}/resp_unfinished")).json()
        assert (lost["status"], lost["error"]["code"]) == ("failed", "server_error")
        more = await client.post(PATH, json={**LONG, "previous_response_id": made["id"]})
        assert more.status_code == 200
        await store.close()


def test_responses_of_a_file_expire_by_their_age(tmp_path: Path) -> None:
    config = ServerSettings(responses_store=tmp_path / "responses", responses_seconds=60)

    async def main(now: float) -> int:
        store = open_store(config, lambda: 1000.0, lambda: now)
        store.find("", "")
        number = len(store)
        if not number:
            add(store, "", "one")
        await store.close()
        return number

    assert [asyncio.run(main(now)) for now in (0.0, 59.0, 61.0)] == [0, 1, 0]


@pytest.mark.parametrize("kind", ["text", "database", "version", "folder"])
def test_a_file_that_is_no_store_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    if kind == "folder":
        path.mkdir()
    elif kind == "text":
        path.write_text("a text that is long enough to be no database at all" * 20)
    elif kind == "database":
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE other (number INTEGER)")
        database.close()
    else:
        config = ServerSettings(responses_store=path)
        asyncio.run(open_store(config, lambda: 0.0, lambda: 0.0).close())
        with sqlite3.connect(path) as database:
            database.execute("PRAGMA user_version = 99")
        database.close()
    with pytest.raises(ServerStartError, match=r"responses_store=.*name another file"):
        open_store(ServerSettings(responses_store=path), lambda: 0.0, lambda: 0.0)


@in_loop
async def test_the_next_server_continues_a_response_in_the_background(
    directory: Path, tmp_path: Path
) -> None:
    """The journal has its tokens, and the file the response."""
    gate = Gate(0)
    journal = tmp_path / "journal"
    options: dict[str, Any] = {"responses_store": tmp_path / "responses"}
    async with durable(directory, journal, gate.runner, **options) as client:
        whole = asyncio.ensure_future(client.post(PATH, json={**LONG, "store": False}))
        name = (await client.post(PATH, json=BACK)).json()["id"]
        gate.open(12)
        await until(lambda: gate.num_arrived > gate.num_passes)
        gate.open()
        text = text_of((await whole).json())
        assert text
        assert text_of(await ended(client, name)) == text
        await client.server.responses.close()
    gate = Gate(0)
    async with durable(directory, journal, gate.runner, **options) as client:
        assert client.headers["authorization"] == f"Bearer {KEY}"
        await recover(client.server)
        second = (await client.post(PATH, json=BACK)).json()["id"]
        gate.open(12)
        await until(lambda: gate.num_arrived > gate.num_passes)
        client.server.is_draining = True  # as the end of the server, before the file is closed
        closing = asyncio.ensure_future(client.server.responses.close())
        gate.open(1)
        await closing
        gate.open()
    async with durable(directory, journal, **options) as client:
        await recover(client.server)
        response = await ended(client, second)
        assert (text_of(response), response["status"]) == (text, "incomplete")
        assert (await client.get(f"{PATH}/{name}")).json()["status"] == "incomplete"
        await client.server.responses.close()


@in_loop
async def test_more_responses_than_there_is_room_for_wait_in_the_next_server(
    directory: Path, tmp_path: Path
) -> None:
    """Each of them is refused as long as others wait, and none is lost by that."""
    gate, journal = Gate(0), tmp_path / "journal"
    options: dict[str, Any] = {"responses_store": tmp_path / "responses"}
    async with durable(directory, journal, gate.runner, **options) as client:
        names = [(await client.post(PATH, json=BACK)).json()["id"] for _ in range(4)]
        await until(lambda: len(list(service_of(client).requests)) == 4)
        await until(lambda: gate.num_arrived > gate.num_passes)
        client.server.is_draining = True
        closing = asyncio.ensure_future(client.server.responses.close())
        gate.open()
        await closing
    refused: list[str] = []
    options |= {"max_waiting_requests": 1, "max_running_sequences": 1}
    gate = Gate(0)
    async with durable(directory, journal, gate.runner, **options) as client:
        admission = client.server.admission
        rejected = admission.rejected

        def noted(reason: str, message: str) -> ApiError:
            refused.append(reason)
            return rejected(reason, message)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(admission, "rejected", noted)
            patch.setattr("octavo.dialects.responses.background._FIRST_DELAY", 0.001)
            await recover(client.server)
            await until(lambda: "queue_full" in refused)
            gate.open()
            texts = {text_of(await ended(client, name)) for name in names}
        whole = await client.post(PATH, json={**LONG, "store": False})
        assert texts == {text_of(whole.json())}
        await client.server.responses.close()
