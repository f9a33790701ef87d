"""What a router reads of KV events: the blocks of an engine, over losses and lies."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import zmq

from octavo.client.cache_events import form as published
from octavo.options.transport import ServerSettingsError
from octavo.route.address import read_address
from octavo.route.kv_events import reader as reader_module
from octavo.route.kv_events.address import EventsAddress, read_events_addresses
from octavo.route.kv_events.form import NoBatchError, read_batch
from octavo.route.kv_events.reader import UNREACHED_SECONDS, EventsReader
from octavo.route.kv_events.source import ASK_SECONDS, MOST_HELD, MOST_HELD_BYTES, Source
from octavo.route.kv_events.view import CacheView
from octavo.zmtp.allowance import MOMENT_SECONDS, SHARE

SIZE = 4
_END = -1


def batch(*events: Any) -> bytes:
    return published.ENCODER.encode(published.KVEventBatch(0.0, [*events], 0))


def stored(
    tokens: list[int], hashes: list[int], parent: int | None = None, **more: Any
) -> published.BlockStored:
    fields: dict[str, Any] = {"lora_id": None, "medium": "GPU", "lora_name": None, **more}
    return published.BlockStored(hashes, parent, tokens, SIZE, **fields)


def removed(*hashes: int, **more: Any) -> published.BlockRemoved:
    return published.BlockRemoved([*hashes], "GPU", **more)


def view_of(*events: Any, most: int = 1000, ignores_tenants: bool = False) -> CacheView:
    view = CacheView(most, ignores_tenants=ignores_tenants)
    view.begin(knows_all=True)
    view.apply(read_batch(batch(*events)))
    return view


TOKENS = [*range(12)]


def test_a_prefix_is_known_by_its_tokens() -> None:
    view = view_of(stored(TOKENS[:8], [1, 2]), stored(TOKENS[8:], [3], 2))
    assert view.num_tokens(TOKENS) == 12
    assert view.num_tokens([*TOKENS[:7], 99]) == 4
    assert view.num_tokens(TOKENS[1:]) == 0
    assert view.num_tokens(TOKENS, "adapter") == 0
    view.apply(read_batch(batch(removed(2))))
    assert view.num_tokens(TOKENS) == 4
    view.apply(read_batch(batch(published.AllBlocksCleared())))
    assert (view.num_tokens(TOKENS), len(view), view.is_whole) == (0, 0, True)


def test_a_prefix_needs_each_group_that_keeps_all_blocks() -> None:
    full: dict[str, Any] = {"kv_cache_spec_kind": "full_attention"}
    first = stored(TOKENS, [1, 2, 3], group_idx=0, **full)
    window = stored(TOKENS[8:], [9], group_idx=2, kv_cache_spec_kind="sliding_window")
    view = view_of(first, window)
    assert view.num_tokens(TOKENS) == 12
    view.apply(read_batch(batch(stored(TOKENS[:8], [4, 5], group_idx=1, **full))))
    assert view.num_tokens(TOKENS) == 8
    view.apply(read_batch(batch(removed(5, group_idx=1), removed(1, group_idx=0))))
    assert view.num_tokens(TOKENS) == 0


def test_the_blocks_of_adapters_and_tenants_are_apart() -> None:
    view = view_of(stored(TOKENS, [1, 2, 3], lora_name="a", extra_keys=[["a"], None, None]))
    assert (view.num_tokens(TOKENS, "a"), view.num_tokens(TOKENS)) == (12, 0)
    unnamed = view_of(stored(TOKENS, [1, 2, 3], lora_id=7))
    assert (unnamed.num_tokens(TOKENS), unnamed.is_whole) == (0, False)
    of_tenant = stored(TOKENS, [1, 2, 3], extra_keys=[["scope"], None, None])
    assert (view_of(of_tenant).num_tokens(TOKENS), view_of(of_tenant).is_whole) == (0, False)
    assert view_of(of_tenant, ignores_tenants=True).num_tokens(TOKENS) == 12


def test_what_is_remembered_is_bounded() -> None:
    view = view_of(
        *(stored([at] * SIZE, [at]) for at in range(100)),
        *(stored([1] * SIZE, [1000 + at], 7) for at in range(100)),
        most=10,
    )
    assert (len(view), view.is_whole) == (10, False)
    view.apply(read_batch(batch(removed(*range(10)))))
    assert (len(view), len(view._groups)) == (0, 0)


def test_older_and_newer_forms_are_read() -> None:
    fields = [[1, b"x" * 32], None, TOKENS[:8], SIZE, None, "GPU"]
    older = msgspec.msgpack.encode([0.0, [["BlockStored", *fields], ["AllBlocksCleared"]]])
    assert len(read_batch(older)) == 2
    newer: dict[str, Any] = {"type": "BlockStored", "block_hashes": [b"y"]}
    newer |= {"parent_block_hash": None}
    newer |= {"token_ids": TOKENS[:4], "block_size": 4, "locality": "x", "lora_id": None}
    (event,) = read_batch(msgspec.msgpack.encode([0.0, [newer], 3, "more"]))
    view = CacheView(10, ignores_tenants=False)
    view.apply([event])
    assert view.num_tokens(TOKENS) == 4


def _wrong_batches() -> list[bytes]:
    good = batch(stored(TOKENS, [1, 2, 3]))
    wrong: list[Any] = [
        None,
        [],
        [0.0],
        [0.0, [{"type": "Else"}]],
        [0.0, [stored([1 << 40] * 4, [1])]],
        [0.0, [stored([-1] * 4, [1])]],
        [0.0, [stored([1] * 5, [1])]],
        [0.0, [stored([], [1])]],
        [0.0, [stored([1] * 4, [1], group_idx=64)]],
        [0.0, [stored([1] * 4, [1], lora_name="x" * 1000)]],
        [0.0, [published.BlockRemoved([*range(1 << 17)], None)]],
        [0.0, [{"type": "BlockRemoved", "block_hashes": [b"x" * 65]}]],
        [0.0, [{"type": "BlockStored", "block_size": 0, "token_ids": []}]],
    ]
    nested = b"\x91" * 100_000
    return [b"", good[:-1], nested, b"\xc1", *map(msgspec.msgpack.encode, wrong)]


@pytest.mark.parametrize("data", _wrong_batches(), ids=lambda data: data[:12].hex())
def test_what_is_no_batch_is_refused_and_nothing_is_known(data: bytes) -> None:
    with pytest.raises(NoBatchError):
        read_batch(data)
    source = Source("x", CacheView(10, ignores_tenants=False), lambda first: False, lambda: 0.0)
    source.published(0, batch(stored(TOKENS, [1, 2, 3])))
    assert source.view.num_tokens(TOKENS) == 12
    source.published(1, data)
    assert (source.view.num_tokens(TOKENS), source.num_refused) == (0, 1)
    source.published(2, batch(stored(TOKENS, [1, 2, 3])))
    assert (source.view.num_tokens(TOKENS), source.view.is_whole) == (12, False)


class Network:
    """A publisher with a cache, and a router that hears of some of its batches."""

    def __init__(self, seed: int, has_replay: bool) -> None:
        self.random = random.Random(seed)
        self.has_replay = has_replay
        self.now = 0.0
        self.kept: dict[int, bytes] = {}
        self.number = 0
        self.cached: dict[int, tuple[int, ...]] = {}
        self.asked: int | None = None
        view = CacheView(100_000, ignores_tenants=False)
        self.source = Source("x", view, self._ask, lambda: self.now)

    def _ask(self, first: int) -> bool:
        if self.has_replay:
            self.asked = first
        return self.has_replay

    def change(self) -> None:
        """Store, remove or clear blocks, and publish that; it may be lost."""
        events: list[Any] = []
        drawn = self.random.random()
        if drawn < 0.03:
            self.cached.clear()
            events.append(published.AllBlocksCleared())
        elif drawn < 0.4 and self.cached:
            gone = self.random.choice([*self.cached])
            del self.cached[gone]
            events.append(removed(gone))
        else:
            parent = self.random.choice([None, *self.cached])
            tokens = [self.random.randrange(3) for _ in range(SIZE)]
            name = self.random.randrange(1 << 60)
            self.cached[name] = (*(() if parent is None else self.cached[parent]), *tokens)
            events.append(stored(tokens, [name], parent))
        data = batch(*events)
        self.kept[self.number] = data
        for old in [each for each in self.kept if each < self.number - 30]:
            del self.kept[old]
        if self.random.random() < 0.9:
            self.source.published(self.number, data)
            if self.random.random() < 0.05:
                self.source.published(self.number, data)
        self.number += 1

    def answer(self) -> None:
        """Send again what was asked for, or nothing of it, or a part."""
        if self.asked is None:
            return
        first, self.asked = self.asked, None
        if self.random.random() < 0.2:  # the question or its answer is lost
            self.now += ASK_SECONDS + 1
            self.source.look()
            return
        for number, data in self.kept.items():
            if number >= first and self.random.random() < 0.97:
                self.source.replayed(number, data)
        self.source.replayed(_END, b"")

    def restart(self) -> None:
        """Let another publisher begin, with its numbers from 0."""
        self.number = 0
        self.kept.clear()
        self.cached.clear()
        self.source.disconnected()
        assert not self.source.view.is_live
        self.source.connected()

    def check(self) -> None:
        """Require that nothing is known that is not cached, and all of it where that is said."""
        view = self.source.view
        if not view.is_live or self.source._asked_until is not None:
            return
        if self.source._next != self.number:
            return  # the last batches were lost, which the next one shows
        prefixes = {*self.cached.values()}
        for tokens in prefixes:
            found = view.num_tokens(tokens)
            right = 0
            while right < len(tokens) and tokens[: right + SIZE] in prefixes:
                right += SIZE
            assert found <= right
            if view.is_whole:
                assert found == right
        assert len(view) <= len(self.cached)


@pytest.mark.parametrize("has_replay", [True, False])
def test_a_view_is_never_wrong_for_longer_than_until_the_next_batch(has_replay: bool) -> None:
    """Batches are lost, repeated, sent again in part, and publishers begin anew."""
    num_whole = num_steps = 0
    for seed in range(30):
        network = Network(seed, has_replay)
        network.source.connected()
        network.answer()
        for _ in range(200):
            network.change()
            if network.random.random() < 0.7:
                network.answer()
            if network.random.random() < 0.02:
                network.restart()
            network.check()
            num_steps += 1
            num_whole += network.source.view.is_live and network.source.view.is_whole
    assert num_whole > num_steps / (3 if has_replay else 20)


def test_a_publisher_that_never_answers_holds_nothing() -> None:
    network = Network(1, has_replay=True)
    source = network.source
    source.connected()
    for number in range(10 * MOST_HELD):
        source.published(number, b"x" * 100)
    assert len(source._held) == MOST_HELD
    network.now += ASK_SECONDS
    source.look()
    assert not source._held
    for _ in range(50):  # it skips numbers, and never has what is asked for
        number += 2
        source.published(number, batch())
        source.replayed(_END, b"")
    assert source.view.is_live
    assert len(source._held) <= 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "http://localhost:1",
        "localhost:2=tcp://localhost:5",
        "localhost:1=",
        "localhost:1=udp://localhost:5",
        "localhost:1=tcp://*:5",
        "localhost:1=tcp://localhost:70000",
        "localhost:1=tcp://localhost:5,",
        "localhost:1=ipc://a b",
        "localhost:1=ipc://" + "é" * 60,
        "localhost:1=tcp://..:5",
    ],
)
def test_wrong_addresses_are_refused(text: str) -> None:
    with pytest.raises(ServerSettingsError, match="kv-events"):
        read_events_addresses([text], [read_address("localhost:1")])


def test_an_engine_has_an_endpoint_of_its_own() -> None:
    servers = [read_address("localhost:1"), read_address("localhost:2")]
    given = ["localhost:1=tcp://[::1]:5,ipc:///a", "http://localhost:2/v1=tcp://h:5"]
    found = read_events_addresses(given, servers)
    assert [each.replay for each in found] == ["ipc:///a", None]
    with pytest.raises(ServerSettingsError, match="twice"):
        read_events_addresses([*given, "localhost:2=tcp://h:5"], servers)


def test_what_is_read_after_the_end_of_a_connection_is_not_followed() -> None:
    """Some batches may wait when the end is seen, and no change of them would come any more."""
    source = Network(1, has_replay=False).source
    source.connected()
    source.published(0, batch(stored(TOKENS[:4], [1])))
    source.disconnected()
    source.published(1, batch(stored(TOKENS[4:8], [2], 1)))
    assert not source.view.is_live
    source.connected()
    source.published(0, batch(stored(TOKENS[:4], [1])))
    assert source.view.num_tokens(TOKENS) == 4


def test_batches_that_wait_are_bounded_in_bytes() -> None:
    network = Network(1, has_replay=True)
    network.source.connected()
    for number in range(MOST_HELD):
        network.source.published(number, bytes(MOST_HELD_BYTES // 4))
    assert len(network.source._held) == 4


def reader_of(
    endpoint: str, clock: Callable[[], float] = time.monotonic
) -> tuple[EventsReader, CacheView]:
    view = CacheView(10, ignores_tenants=False)
    address = EventsAddress(read_address("localhost:1"), endpoint, None)
    return EventsReader([(address, view)], clock), view


@pytest.mark.parametrize("place", ["reading", "waiting for all"])
def test_a_publisher_pays_for_what_is_computed_and_for_no_pause(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few messages cost too, if each makes the thread look at all others."""
    now = computed = 0.0
    is_ready = False
    has_looked, has_come = threading.Event(), threading.Event()
    published, look = Source.published, Source.look

    def take(source: Source, number: int, data: bytes) -> None:
        nonlocal now, computed
        now += 60
        computed += 0.5 * (place == "reading")
        published(source, number, data)
        has_come.set()

    def look_slowly(source: Source) -> None:
        nonlocal computed
        computed += 0.5 * (is_ready and place == "waiting for all")
        look(source)
        if is_ready:
            has_looked.set()

    monkeypatch.setattr(Source, "published", take)
    monkeypatch.setattr(Source, "look", look_slowly)
    monkeypatch.setattr(time, "thread_time", lambda: computed)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    publisher = context.socket(zmq.XPUB)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    reader, _ = reader_of(f"tcp://127.0.0.1:{port}", lambda: now)
    try:
        publisher.recv()  # its subscription, behind all else that it has to say
        is_ready = True
        has_looked.wait()  # so the round that reads the batch began with a slow look
        publisher.send_multipart((b"", bytes(8), batch()))
        has_come.wait()
    finally:
        reader.close()
        publisher.close(linger=0)
        context.term()
    rest = reader.publishers[0].allowance.rest()
    assert SHARE * 0.5 - 2 * MOMENT_SECONDS < rest < SHARE * 2


def test_a_reader_that_fails_knows_nothing_more_and_can_be_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    def fail(source: Source) -> None:
        source.view.begin(knows_all=True)
        calls.append(source)
        raise MemoryError

    monkeypatch.setattr(Source, "look", fail)
    reader, view = reader_of("tcp://127.0.0.1:1")
    reader._thread.join()
    assert calls
    assert not view.is_live
    reader.close()


def test_a_publisher_that_is_not_reached_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    server.close()  # nothing listens there
    view = CacheView(10, ignores_tenants=False)
    address = EventsAddress(read_address("localhost:1"), f"tcp://127.0.0.1:{port}", None)
    publisher = reader_module._Publisher(address, view, lambda: now)
    for _ in range(10):
        publisher.look()
        publisher.events.write()
        publisher.read(publisher.events)
        now += UNREACHED_SECONDS / 3
    publisher.close()
    (record,) = caplog.records
    assert "no connection for 30 s" in record.getMessage()
