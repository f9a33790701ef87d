"""What readers of KV events can make a server keep, and who of them gets what."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import zmq

from benchmarks.hostile.events.readers import ATTACKS, MOST_CONNECTIONS, attack, attack_all
from octavo.client.cache_events import sender
from octavo.client.cache_events.publisher import CachePublisher
from octavo.options.kv_events import KVEventsConfig
from octavo.zmtp.parser import frames, greeting
from octavo.zmtp.port import MOST_CALLERS
from tests.client.cache_events.reader import Reader
from tests.client.cache_events.test_publisher import FACTS, STORED, joined, settings

Context = zmq.Context[zmq.Socket[bytes]]


@pytest.fixture
def directory() -> Iterator[Path]:
    with TemporaryDirectory() as name:  # short enough for a socket's path
        yield Path(name)


@pytest.mark.slow
def test_readers_that_attack_lose_their_connection_and_another_reader_nothing(
    directory: Path,
) -> None:
    assert MOST_CONNECTIONS > MOST_CALLERS
    config = settings(directory)
    publisher, reader = CachePublisher(config, 0), Reader(config.endpoint, config.replay_endpoint)
    try:
        joined(reader, publisher)
        assert attack_all(f"{directory}/events", f"{directory}/replays") == []
        before = reader.number
        for _ in range(3):
            publisher.publish((STORED,), FACTS)
            found = reader.wait()
            assert found is not None
            reader.take(*found)
        assert (reader.number, reader.num_gaps) == (before + 3, 0)
    finally:
        reader.close()
        publisher.close()


def test_subscriptions_without_effect_are_not_kept(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[sender.Sender] = []
    begun = sender.Sender.run

    def run(each: sender.Sender) -> None:
        seen.append(each)
        begun(each)

    monkeypatch.setattr(sender.Sender, "run", run)
    publisher = CachePublisher(settings(directory, topic="kv"), 0)
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(f"{directory}/events")
        topics = [b"k", b"a", b"kv", b"kvx", b"a", b"kv"]
        data = b"".join(b"".join(frames((b"\1" + each,))) for each in topics)
        caller.sendall(greeting(b"SUB") + data)
        received = b""
        while b"\2kv" not in received:  # until a batch comes
            publisher.clear()
            received += caller.recv(1 << 16)
        (one,) = seen[0]._outlet.callers
        assert one.topics == {b"k", b"kv"}
    publisher.close()


def test_what_waits_for_a_reader_that_takes_nothing_is_bounded(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "MOST_WAITING_BYTES", 2000)
    config = settings(directory)
    publisher, reader = CachePublisher(config, 0), Reader(config.endpoint, config.replay_endpoint)
    with socket.socket(socket.AF_UNIX) as stalled:
        stalled.connect(f"{directory}/events")
        stalled.sendall(greeting(b"SUB") + b"".join(frames((b"\1",))))
        received = b""
        while b"\x93" not in received:
            publisher.clear()
            received += stalled.recv(1 << 16)
        joined(reader, publisher)
        before = reader.number
        for _ in range(5000):  # more than a socket's buffers take
            publisher.publish((STORED,), FACTS)
            found = reader.wait()
            assert found is not None
            reader.take(*found)
        assert (reader.number, reader.num_gaps) == (before + 5000, 0)
        publisher.close()
        size = 0
        while data := stalled.recv(1 << 16):
            size += len(data)
        assert size < 5000 * 50
    reader.close()


def test_a_reader_subscribes_to_a_topic_and_leaves_it(directory: Path) -> None:
    publisher, context = CachePublisher(settings(directory, topic="kv-one"), 0), Context()
    good, other = context.socket(zmq.SUB), context.socket(zmq.SUB)
    try:
        good.set(zmq.SUBSCRIBE, b"kv")
        other.set(zmq.SUBSCRIBE, b"kx")
        for each in (other, good):
            each.connect(f"ipc://{directory}/events")
        while not good.poll(10):
            publisher.clear()
        assert good.recv_multipart()[0] == b"kv-one"
        good.set(zmq.UNSUBSCRIBE, b"kv")
        number = 0
        while good.poll(10) or number < 5:
            number = 0 if good.poll(0) else number + 1
            while good.poll(0):
                good.recv_multipart()
            publisher.clear()
        assert not other.poll(0)
    finally:
        for each in (good, other):
            each.close(linger=0)
        context.term()
        publisher.close()


def test_a_publisher_calls_a_reader_that_listens_and_calls_it_again() -> None:
    context = Context()
    first = context.socket(zmq.SUB)
    first.set(zmq.SUBSCRIBE, b"")
    port = first.bind_to_random_port("tcp://127.0.0.1")
    publisher = CachePublisher(KVEventsConfig(endpoint=f"tcp://localhost:{port}"), 0)
    try:
        while not first.poll(10):
            publisher.clear()
        first.close(linger=0)
        second = context.socket(zmq.SUB)
        second.set(zmq.SUBSCRIBE, b"")
        while True:
            try:
                second.bind(f"tcp://127.0.0.1:{port}")
                break
            except zmq.ZMQError:  # the first one is being closed
                continue
        while not second.poll(10):
            publisher.clear()
        second.close(linger=0)
    finally:
        publisher.close()
        context.term()


def test_an_attack_on_questions_ends_alone(directory: Path) -> None:
    """Another reader's question has its answer while one asks without an end."""
    config = settings(directory)
    publisher, reader = CachePublisher(config, 0), Reader(config.endpoint, config.replay_endpoint)
    try:
        assert attack(ATTACKS["questions"], f"{directory}/replays")
        while not reader.batches:
            reader.ask(0)
    finally:
        reader.close()
        publisher.close()
