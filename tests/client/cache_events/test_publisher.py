"""What is published of a prefix cache: readers know at each batch's end what the cache has."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import zmq
from msgspec import structs

from octavo.client.cache_events import sender as module
from octavo.client.cache_events.form import name_of
from octavo.client.cache_events.publisher import CachePublisher, open_publishers
from octavo.core.config import ConfigError
from octavo.options.kv_events import KVEventsConfig
from octavo.route.kv_events.reader import MOST_MESSAGE_BYTES
from octavo.wire.codec import cache_changes
from octavo.wire.facts import EngineFacts
from octavo.wire.message_types import CacheChanges, RemovedBlock, StoredBlocks, pack, unpack
from octavo.zmtp.parser import Bounds, Message
from octavo.zmtp.port import Caller, Port
from tests.client.cache_events.reader import AllBlocksCleared, BlockStored, Reader
from tests.sim.kv.follower import Follower
from tests.sim.simulation import Simulation
from tests.sim.world import World, draw_world

FACTS = EngineFacts(
    *("fake", "Fake", "", (), 64, 64, 64, 4, 64, 8, 10, 1000, "float32"),
    kv_groups=(("full", None), ("full", 8), ("state", None), ("latent", None), ("none", None)),
)
STORED = StoredBlocks(0, (b"a" * 16,), None, bytes(16), None, ())


@pytest.fixture
def directory() -> Iterator[Path]:
    with TemporaryDirectory() as name:  # short enough for a socket's path
        yield Path(name)


def settings(directory: Path, **more: int | str) -> KVEventsConfig:
    events, replays = f"ipc://{directory}/events", f"ipc://{directory}/replays"
    given: dict[str, Any] = {"endpoint": events, "replay_endpoint": replays, **more}
    return KVEventsConfig(**given)


class PublishingFollower(Follower):
    """A follower that also publishes what it is notified of, and what is cached then."""

    def __init__(self, world: PublishedWorld) -> None:
        super().__init__(world.engine.scheduler)
        self._world = world

    def follow(self) -> None:
        log, world = self._kv.log, self._world
        notes = [] if log is None else log.take()
        for note in notes:
            self._apply(note)
        for changes in cache_changes(notes):
            world.publisher.publish(unpack(pack(changes), CacheChanges).notes, world.facts)
            world.number += 1
        groups = enumerate(self.groups)
        world.cached[world.number] = {
            (index, name_of(each)) for index, blocks in groups for each in blocks
        }
        super().follow()


class PublishedWorld(Simulation):
    """A world whose engines' prefix cache is published, and clears with each of them."""

    def __init__(self, world: World, publisher: CachePublisher, number: int) -> None:
        self.publisher = publisher
        self.number = number  # of the newest batch
        self.cached: dict[int, set[tuple[int, int]]] = {}
        groups = tuple([(group.kind, group.window) for group in world.config.groups])
        self.facts = structs.replace(FACTS, kv_groups=groups)
        super().__init__(world)

    def _start_engine(self) -> None:
        super()._start_engine()
        self.publisher.clear()
        self.number += 1
        self.follower = PublishingFollower(self)


@pytest.mark.parametrize("seed", [3, 12, 27, 33])
def test_a_reader_that_loses_batches_knows_at_each_end_what_is_cached(
    directory: Path, seed: int
) -> None:
    rng, config = random.Random(seed), settings(directory, topic="kv", hwm=100_000)
    publisher, reader = CachePublisher(config, 0), Reader(config.endpoint, config.replay_endpoint)
    try:
        number = joined(reader, publisher)
        world = PublishedWorld(draw_world(seed), publisher, number)
        world.run()
        compared = 0
        for read in range(number + 1, world.number + 1):
            found = reader.wait()
            assert found is not None
            assert found[0] == read
            if rng.random() < 0.3 and read != world.number:
                continue
            reader.take(*found)
            if read in world.cached:
                assert {*reader.blocks} == world.cached[read]
                compared += bool(world.cached[read])
        assert reader.num_gaps == 0
        assert compared or not world.engine.scheduler.kv.caches
    finally:
        reader.close()
        publisher.close()


def joined(reader: Reader, publisher: CachePublisher) -> int:
    """Return the number of the last batch, after as many as it takes to reach the reader."""
    number = 0
    while (found := reader.wait(0.05)) is None:
        publisher.clear()
        number += 1
    while found[0] < number:
        found = reader.wait()
        assert found is not None
    reader.take(*found)
    return number


def test_events_are_what_readers_of_vllm_decode(directory: Path) -> None:
    config = settings(directory)
    publisher, reader = CachePublisher(config, 3, clock=lambda: 12.5), None
    try:
        reader = Reader(f"{config.endpoint}_dp3", f"{config.replay_endpoint}_dp3")
        notes = (
            STORED,
            StoredBlocks(1, (b"b" * 16,), b"a" * 16, bytes(16), "french", ((b"\1\2",),)),
            RemovedBlock(1, b"b" * 16),
        )
        publisher.publish(notes, FACTS)
        while len(reader.batches) < 2:
            reader.ask(reader.number + 1)
        first, second = reader.batches
        assert first.events == [AllBlocksCleared()]
        assert (second.ts, second.data_parallel_rank) == (12.5, 3)
        events: list[Any] = list(second.events)
        stored, other, removed = events
        assert stored == BlockStored(
            block_hashes=[0x6161616161616161],
            parent_block_hash=None,
            token_ids=[0] * 4,
            block_size=4,
            lora_id=None,
            medium="GPU",
            lora_name=None,
            group_idx=0,
            kv_cache_spec_kind="full_attention",
        )
        assert (other.lora_name, other.extra_keys) == ("french", [("french", "0102")])
        assert other.parent_block_hash == 0x6161616161616161
        assert (other.kv_cache_spec_kind, other.kv_cache_spec_sliding_window) == (
            "sliding_window",
            8,
        )
        assert (removed.block_hashes, removed.group_idx) == ([0x6262626262626262], 1)
    finally:
        if reader is not None:
            reader.close()
        publisher.close()


def test_so_many_batches_are_kept_and_what_came_before_is_lost(directory: Path) -> None:
    config = settings(directory, buffer_steps=2)
    publisher, reader = CachePublisher(config, 0), Reader(config.endpoint, config.replay_endpoint)
    try:
        joined(reader, publisher)
        before = reader.number
        for _ in range(5):
            publisher.publish((STORED,), FACTS)
        found = [reader.wait() for _ in range(5)]
        assert found[-1] is not None
        reader.take(*found[-1])
        assert reader.number == before + 5
        assert reader.num_gaps == 1, "only two of the four that it missed were kept"
    finally:
        reader.close()
        publisher.close()


def test_bytes_of_kept_batches_are_bounded(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_KEPT_BYTES", 1000)
    config = settings(directory)
    publisher, reader = CachePublisher(config, 0), Reader(config.endpoint, config.replay_endpoint)
    try:
        joined(reader, publisher)
        reader.batches.clear()
        large = StoredBlocks(0, (b"a" * 16,), None, bytes(1200), None, ())
        for _ in range(9):
            publisher.publish((large,), FACTS)
        while (found := reader.wait()) is not None and found[0] < reader.number + 9:
            pass
        reader.number = -1
        reader.ask(0)
        assert len(reader.batches) < 4
    finally:
        reader.close()
        publisher.close()


def test_readers_that_do_not_take_what_they_asked_for_share_its_bytes(directory: Path) -> None:
    config, publisher = settings(directory), CachePublisher(settings(directory), 0)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sockets: list[zmq.Socket[bytes]] = []

    def ask(number: int) -> bytes:
        """Return the first number of an answer; those to earlier questions have ended."""
        socket = context.socket(zmq.DEALER)
        sockets.append(socket)
        socket.set(zmq.RCVHWM, 1)
        socket.connect(str(config.replay_endpoint))
        socket.send_multipart([b"", number.to_bytes(8, "big")])
        return socket.recv_multipart()[1]

    try:
        large = StoredBlocks(0, (b"a" * 16,), None, b"\0\0\0\1" * 8192, None, ())
        for _ in range(400):  # of 40 KB each
            publisher.publish((large,), FACTS)
        while ask(400) != (400).to_bytes(8, "big"):
            pass
        before = resident_bytes()
        for _ in range(8):
            ask(1)
        ask(1 << 40)
        assert resident_bytes() - before < 64 << 20, "they have asked for 128 MB"
    finally:
        for each in sockets:
            each.close(linger=0)
        context.term()
        publisher.close()


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGESIZE")


def test_a_batch_without_room_makes_the_next_begin_anew(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(directory)
    publisher, reader = CachePublisher(config, 0), Reader(config.endpoint, config.replay_endpoint)

    try:
        joined(reader, publisher)
        publisher.publish((STORED,), FACTS)
        with monkeypatch.context() as patch:
            patch.setattr(publisher, "_most_waiting", 0)
            publisher.publish((STORED,), FACTS)
            publisher.publish((RemovedBlock(0, b"a" * 16),), FACTS)
        publisher.publish((STORED,), FACTS)
        for _ in range(2):
            found = reader.wait()
            assert found is not None
            reader.take(*found)
        assert [type(each) for each in reader.batches[-1].events] == [AllBlocksCleared, BlockStored]
    finally:
        reader.close()
        publisher.close()


def test_what_is_no_question_gets_no_answer_and_harms_nothing(directory: Path) -> None:
    config = settings(directory)
    publisher, reader = CachePublisher(config, 0), Reader(config.endpoint, config.replay_endpoint)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sockets: list[zmq.Socket[bytes]] = []
    try:
        questions = ([b"x"], [b"", bytes(8), b""], [b"", b"1"], [b"y", bytes(8)], [b"", bytes(999)])
        for parts in questions:
            hostile = context.socket(zmq.DEALER)
            sockets.append(hostile)
            hostile.connect(str(config.replay_endpoint))
            hostile.send_multipart(parts)
        publisher.publish((STORED,), FACTS)
        while len(reader.batches) < 2:
            reader.ask(reader.number + 1)
        assert not any(each.poll(0) for each in sockets)
    finally:
        for each in sockets:
            each.close(linger=0)
        context.term()
        reader.close()
        publisher.close()


def test_an_address_in_use_is_refused_and_nothing_stays_open() -> None:
    taken = zmq.Context[zmq.Socket[bytes]]()
    socket = taken.socket(zmq.PUB)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    try:
        with pytest.raises(ConfigError, match="kv_events_config"):
            open_publishers(KVEventsConfig(endpoint=f"tcp://127.0.0.1:{port}"), 0, 1)
    finally:
        socket.close(linger=0)
        taken.term()


def test_closing_twice_is_harmless_and_nothing_is_published_then(directory: Path) -> None:
    publisher = CachePublisher(settings(directory), 0)
    publisher.close()
    publisher.close()
    publisher.clear()


def test_much_that_changes_at_once_is_published_in_batches_that_a_router_takes(
    directory: Path,
) -> None:
    config = settings(directory)
    publisher, reader = CachePublisher(config, 0), Reader(config.endpoint, config.replay_endpoint)
    try:
        number = joined(reader, publisher)
        tokens = b"\0\0\0\1" * 8192
        notes = [
            StoredBlocks(0, (each.to_bytes(16, "little"),), None, tokens, None, ())
            for each in range(128)  # less than may wait for a slow reader
        ]
        publisher.publish(notes, FACTS)
        names: list[Any] = []
        while len(names) < len(notes):
            found = reader.wait()
            assert found is not None
            assert (found[0], len(found[1]) < MOST_MESSAGE_BYTES) == (number + 1, True)
            number += 1
            reader.take(*found)
            events: list[Any] = list(reader.batches[-1].events)
            names += [each.block_hashes[0] for each in events]
        assert names == [name_of(each.digests[0]) for each in notes]
        assert reader.num_gaps == 0
    finally:
        reader.close()
        publisher.close()


def test_what_nobody_sends_any_more_is_not_kept(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(sender: module.Sender) -> bool:
        raise MemoryError

    monkeypatch.setattr(module.Sender, "_round", fail)
    publisher = CachePublisher(settings(directory), 0)
    publisher._thread.join()
    publisher.publish((STORED,), FACTS)
    assert not publisher._batches
    publisher.close()
    publisher.close()


def test_a_pause_of_the_process_is_not_the_readers_time(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute in which the machine stood still would else be one of eight without readers."""
    paused, pause = 0.0, 0.0
    read = Port.read

    def slow(port: Port, caller: Caller) -> list[Message]:
        nonlocal paused
        paused += pause
        return read(port, caller)

    def new_port(address: str, bounds: Bounds) -> Port:
        return Port(address, bounds, listens=True, clock=lambda: time.monotonic() + paused)

    monkeypatch.setattr(Port, "read", slow)
    monkeypatch.setattr("octavo.client.cache_events.publisher._open", new_port)
    config = settings(directory)
    publisher, reader = CachePublisher(config, 0), Reader(config.endpoint, config.replay_endpoint)
    try:
        reader.ask(0)  # the connection is there
        pause = 60.0
        reader.ask(0)
        replays = publisher._sender._replays
        assert replays is not None
        assert paused
        assert replays.allowance.rest() < 60
    finally:
        reader.close()
        publisher.close()


def test_a_thread_that_takes_the_last_batch_at_once_does_not_fail_the_close(
    directory: Path,
) -> None:
    publisher = CachePublisher(settings(directory), 0)
    publisher._batches.append(None)  # by `close`, which has not woken the thread yet
    publisher.clear()  # the thread is awake for another reason, and ends
    publisher._thread.join()
    publisher._has_ended = False  # `close` has looked before
    publisher.close()
