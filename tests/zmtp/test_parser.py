"""What a connection of ZMTP brings: all messages, however they are cut, and nothing without end."""

from __future__ import annotations

import os
import random
import socket

import pytest
import zmq

from octavo.zmtp.connection import HANDSHAKE_SECONDS, SILENT_SECONDS, Connection, EndedError
from octavo.zmtp.parser import Bounds, BrokenError, Parser, command, frames, greeting

BOUNDS = Bounds(b"SUB", (b"PUB",), 3, 1000)
MESSAGES = [[b"", bytes(8), b"x" * 300], [b"one"], [b"a", b""], [b"y" * 1000], [b"", b"", b""]]


def ready() -> Parser:
    parser = Parser(BOUNDS)
    assert not parser.feed(greeting(b"PUB"))
    assert parser.is_ready
    return parser


def data_of(*messages: list[bytes]) -> bytes:
    return b"".join(b"".join(frames(each)) for each in messages)


@pytest.mark.parametrize("seed", range(20))
def test_messages_are_the_same_however_their_bytes_are_cut(seed: int) -> None:
    rng, parser = random.Random(seed), Parser(BOUNDS)
    ping = command(b"\4PING\0\x3ccontext")
    data = greeting(b"PUB") + data_of(*MESSAGES[:2]) + ping + data_of(*MESSAGES[2:])
    found = []
    while data:
        size = rng.choice([1, 2, 9, 70, 5000])
        found += parser.feed(data[:size])
        data = data[size:]
    assert found == MESSAGES
    assert parser.replies == command(b"\4PONGcontext")


@pytest.mark.parametrize(
    "data",
    [
        data_of([b"1", b"2", b"3", b"4"]),
        data_of([b"x" * 600, b"y" * 401]),
        b"\2" + (1001).to_bytes(8, "big"),
        b"\3" + ((1 << 64) - 1).to_bytes(8, "big"),
        b"\6" + (1025).to_bytes(8, "big"),
    ],
)
def test_a_message_beyond_a_bound_ends_the_connection(data: bytes) -> None:
    with pytest.raises(BrokenError):
        ready().feed(data)


@pytest.mark.parametrize("part", [b"", b"x", b"x" * 400])
def test_a_message_that_does_not_end_is_not_kept(part: bytes) -> None:
    parser = ready()
    piece = frames([part, b"."])[0][:-2]  # that part alone, behind which more must come
    for num_sent in range(10):
        try:
            parser.feed(piece)
        except BrokenError:
            assert num_sent in (2, 3)
            return
    pytest.fail("it keeps a message that does not end")


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"\xff" + bytes(8) + b"\x7f\1\0" + bytes(52),
        greeting(b"PUB")[:12] + b"CURVE".ljust(20, b"\0") + bytes(32),
        greeting(b"ROUTER"),
        greeting(b"PUB")[:64] + command(b"\4PING\0\0"),
        greeting(b"PUB")[:64] + data_of([b"early"]),
        greeting(b"PUB")[:64] + command(b""),
    ],
)
def test_what_is_no_handshake_ends_the_connection(data: bytes) -> None:
    with pytest.raises(BrokenError):
        Parser(BOUNDS).feed(data)


@pytest.mark.parametrize("seed", range(30))
def test_noise_ends_a_connection_or_is_skipped(seed: int) -> None:
    rng, parser = random.Random(seed), ready()
    try:
        for _ in range(200):
            parser.feed(rng.randbytes(rng.randrange(200)))
            assert len(parser._buffer) + parser._num_bytes <= 2 * BOUNDS.most_bytes
    except BrokenError:
        pass


def test_subscriptions_are_messages_in_both_forms() -> None:
    parser = ready()
    assert parser.feed(command(b"\x09SUBSCRIBEkv") + command(b"\6CANCELkv")) == [
        [b"\1kv"],
        [b"\0kv"],
    ]
    assert parser.feed(data_of([b"\1kv"])) == [[b"\1kv"]]


def test_libzmq_reads_what_is_written_and_the_other_way_round() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.ROUTER)
    port = dealer.bind_to_random_port("tcp://127.0.0.1")
    given = socket.create_connection(("127.0.0.1", port))
    bounds = Bounds(b"DEALER", (b"ROUTER",), 3, 1 << 20)
    connection = Connection(given, bounds, lambda: 0.0, beats=False)
    large = [b"", b"1" * 255, os.urandom(70_000)]
    try:
        connection.send(frames(large))
        while not connection.is_ready:
            connection.write()
            assert connection.read() == []
        connection.write()
        name, *parts = dealer.recv_multipart()
        assert parts == large
        dealer.send_multipart([name, *large])
        found: list[list[bytes]] = []
        while not found:
            found = connection.read()
        assert found == [large]
    finally:
        connection.close()
        dealer.close(linger=0)
        context.term()


def test_an_end_that_is_silent_is_given_up() -> None:
    now = 0.0
    one, other = socket.socketpair()
    with one, other:
        connection = Connection(one, BOUNDS, lambda: now, beats=True)
        now = HANDSHAKE_SECONDS + 1
        with pytest.raises(EndedError, match="handshake"):
            connection.look(is_read=True)
        other.sendall(greeting(b"PUB"))
        assert connection.read() == []
        connection.write()
        now += SILENT_SECONDS - 1
        connection.look(is_read=True)
        assert connection.wants_write, "it asks"
        now += 2
        connection.look(is_read=False)  # whether anything came is not known
        for _ in range(4):
            now += SILENT_SECONDS / 4
            connection.look(is_read=True)
        now += 0.1
        with pytest.raises(EndedError, match="nothing came"):
            connection.look(is_read=True)
