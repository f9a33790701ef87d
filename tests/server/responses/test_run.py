"""The events of responses in the background: all of them count, and none is changed by that."""

from __future__ import annotations

import asyncio
import random
import zlib
from pathlib import Path

import pytest

from octavo.serving.bounds.shares import Shares
from octavo.serving.store import run as run_module
from octavo.serving.store.responses import ENTRY_BYTES, Content, Limits, ResponseStore, Shelf
from octavo.serving.store.run import Run, split
from tests.server.durable.make import Gate, in_loop
from tests.server.engine import FakeEngine
from tests.server.make import serving, until
from tests.server.responses.make import PATH, text_of
from tests.server.responses.test_background import BACK, LONG, ended
from tests.server.responses.test_store import add, entry_of, kept

KEYS = ("a", "b")
SHARES = Shares(len(KEYS), KEYS.__contains__)


def events(count: int, seed: int = 1) -> list[bytes]:
    """Return events like those of an answer, some of them long."""
    chance = random.Random(seed)
    return [
        b'event: response.output_text.delta\ndata: {"sequence_number":%d,"delta":"%s"}\n\n'
        % (number, b"x" * chance.choice([1, 5, 5, 5, 3000]))
        for number in range(count)
    ]


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 3000])
def test_events_are_the_same_in_blocks(count: int) -> None:
    run, sent, sizes = Run(), events(count), list[int]()
    run.on_growth = sizes.append
    chance = random.Random(2)
    at = 0
    while at < count:
        part = sent[at : at + chance.randrange(1, 4)]
        run.add(b"".join(part))
        at += len(part)
    run.end()
    assert sizes == sorted(sizes)
    assert run.num_bytes < 2 * run_module.BLOCK_BYTES + sum(map(len, sent)) // 4
    for each in (run, Run.of(run.packed())):
        found: list[bytes] = []
        while frames := each.read(len(found)):
            found += frames
        assert found == sent
        for number in range(0, count, 97):
            assert each.read(number)[0] == sent[number]
        assert each.read(count + 5) == []


def test_events_that_an_older_server_has_kept_can_be_read() -> None:
    """An older server compressed all of them together."""
    sent = events(1000)
    packed = zlib.compress(b"".join(sent))
    assert Run.of(packed).read(0) == sent
    assert split(b"".join(sent)) == sent


def test_the_events_of_open_responses_count_and_those_of_the_richest_key_go() -> None:
    limits = Limits(seconds=10, num_bytes=10_000)
    store = ResponseStore(limits, Shelf(), lambda: 0.0, None, SHARES)
    add(store, "b", "b1")
    open_ones = [entry_of("a", "a1"), entry_of("a", "a2"), entry_of("b", "b2")]
    for entry in open_ones:
        assert store.begin(entry, Content(b"", ()))
        store.runs[entry] = Run()
    before = store.num_bytes
    store.hold_events(open_ones[0], 2000)
    store.hold_events(open_ones[0], 3000)
    store.hold_events(open_ones[1], 4000)
    assert store.num_bytes == before + 7000
    assert all(run.is_kept for run in store.runs.values())
    store.hold_events(open_ones[2], 1000)
    assert [store.runs[each].is_kept for each in open_ones] == [True, False, True]
    assert kept(store, "a1", "a2", "b1", "b2") == "a1 a2 b1 b2"
    for entry in open_ones:
        store.settle(entry, "completed", b"")
        store.keep_events(entry, b"")
    assert store.num_bytes == before


def test_the_events_of_a_response_that_was_deleted_are_given_back_once() -> None:
    limits = Limits(seconds=10, num_bytes=8 * ENTRY_BYTES)
    store = ResponseStore(limits, Shelf(), lambda: 0.0, None, SHARES)
    begun = [entry_of("a", f"a{number}") for number in range(3)]
    for entry in begun:
        assert store.begin(entry, Content(b"", ()))
        store.runs[entry] = Run()
    store.hold_events(begun[0], 4 * ENTRY_BYTES)
    store.forget(begun[0])
    for entry in begun[1:]:
        store.hold_events(entry, 3 * ENTRY_BYTES + 1)
    assert [store.runs[each].is_kept for each in begun].count(False) == 1
    assert store.runs[begun[0]].is_kept
    assert store.num_bytes == sum(each.num_bytes for each in begun[1:])
    for entry in begun[1:]:
        store.forget(entry)
    assert (store.num_bytes, store._bytes_of) == (0, {})


def test_open_responses_of_one_key_leave_room_for_those_of_others() -> None:
    limits = Limits(seconds=10, num_bytes=20 * ENTRY_BYTES)
    store = ResponseStore(limits, Shelf(), lambda: 0.0, None, SHARES)
    assert add(store, "b", "b0", 5 * ENTRY_BYTES)
    begun = [entry_of("a", f"a{number}") for number in range(20)]
    num_begun = sum(store.begin(each, Content(b"", ())) for each in begun)
    assert num_begun == 10
    others = [entry_of("b", f"b{number}") for number in range(1, 6)]
    assert all(store.begin(each, Content(b"", ())) for each in others)
    store.settle(begun[0], "completed", b"")
    begun.append(entry_of("a", "a20"))
    assert store.begin(begun[-1], Content(b"", ()))
    for entry in (*begun, *others):
        store.forget(entry)
    assert not store._open_bytes


def test_many_small_responses_do_not_cost_another_key_its_large_one() -> None:
    limits = Limits(seconds=10, num_bytes=1 << 20, num_responses=10)
    store = ResponseStore(limits, Shelf(), lambda: 0.0, None, SHARES)
    add(store, "b", "b1", 100_000)
    for number in range(30):
        add(store, "a", f"a{number}", ENTRY_BYTES)
    assert kept(store, "b1", "a20", "a21", "a29") == "b1 a21 a29"


@in_loop
async def test_a_response_without_room_for_its_events_goes_on(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "BLOCK_EVENTS", 8)
    gate = Gate(0)
    engine = FakeEngine(directory, runner=gate.runner)
    async with serving(directory, engine, responses_bytes=1 << 16) as client:
        store = client.server.responses
        name = (await client.post(PATH, json=BACK)).json()["id"]
        following = asyncio.ensure_future(client.get(f"{PATH}/{name}", params={"stream": "true"}))
        gate.open(12)
        (entry,) = store.runs
        await until(lambda: entry.num_event_bytes > 0)
        assert store.num_bytes > entry.num_event_bytes
        store.hold_events(entry, 1 << 17)
        assert "responses_full" in (await following).text
        again = await client.get(f"{PATH}/{name}", params={"stream": "true"})
        assert (again.status_code, again.json()["error"]["code"]) == (503, "responses_full")
        gate.open()
        done = await ended(client, name)
        whole = await client.post(PATH, json={**LONG, "store": False})
        assert text_of(done) == text_of(whole.json())
        await until(lambda: not store.runs)
        late = await client.get(f"{PATH}/{name}", params={"stream": "true"})
        assert (late.status_code, late.json()["error"]["param"]) == (400, "stream")
        assert entry.num_event_bytes == 0
