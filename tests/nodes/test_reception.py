"""The port at which nodes join: only a node with the secret that fits gets a place."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
from msgspec import Struct, structs

from octavo.core.config import ConfigError
from octavo.engine.nodes.connection import CUT_SECONDS, HANDSHAKE_SECONDS, SealedLink
from octavo.engine.nodes.division import CONTROL, STEPS
from octavo.engine.nodes.handshake import (
    ANSWER_BYTES,
    GREETING_BYTES,
    MAGIC,
    OTHER_SECRET,
    VERDICT_BYTES,
    HandshakeError,
    OtherEnd,
)
from octavo.engine.nodes.joining import RefusedError, join
from octavo.engine.nodes.messages import Join, Joined, Setting
from octavo.engine.nodes.reception import MOST_CALLERS, Reception
from octavo.engine.ranks.link import Started
from octavo.wire.message_types import WireError

SECRET = b"a secret of the tests, which no other test has"
SETTING = Setting("1", nnodes=3, stages=3, digest=b"model")
Links = list[SealedLink]


class StopError(Exception):
    """An end of attempts to join that would go on."""


class Port:
    """A reception in this thread, and nodes that join in others."""

    def __init__(self) -> None:
        self.now = 0.0
        self.reception = Reception("127.0.0.1", 0, SECRET, SETTING, lambda: self.now)
        self.threads = ThreadPoolExecutor(8)

    def join(
        self,
        rank: int,
        node: bytes = b"",
        setting: Setting = SETTING,
        secret: bytes = SECRET,
        channel_of: Callable[[str], str] = str,
    ) -> Future[Links]:
        """Let a node join; its attempt ends when it would wait for another."""

        def message(channel: str) -> Join:
            return Join(setting, rank, node or b"%d" % rank, rank, channel_of(channel))

        def stop(seconds: float) -> None:
            raise StopError

        host, port = self.reception.address
        channels = setting.division.channels
        return self.threads.submit(join, host, port, secret, channels, message, stop)

    def turn_until(self, condition: Callable[[], bool]) -> None:
        """Let the reception work until a condition holds."""
        while not condition():
            self.reception.turn(0.01)

    def joined(self, rank: int, node: bytes = b"") -> Links:
        """Return the connections of a node that joins."""
        joining = self.join(rank, node)
        self.turn_until(joining.done)
        return joining.result()

    def refused(self, joining: Future[Links]) -> BaseException | None:
        """Return why a node does not get its place."""
        self.turn_until(joining.done)
        return joining.exception()

    def all_join(self) -> None:
        """Let both nodes join."""
        joining = [self.join(rank) for rank in (1, 2)]
        found = self.reception.wait()
        assert len(found) == 4
        for links in (found.values(), *(each.result() for each in joining)):
            for link in links:
                link.close()

    def connect(self) -> socket.socket:
        """Return the connection of a stranger."""
        return socket.create_connection(self.reception.address)

    def greeting(self, stranger: socket.socket) -> bytes:
        """Return what a stranger gets."""
        stranger.setblocking(False)
        found = bytearray()

        def has_come() -> bool:
            try:
                found.extend(stranger.recv(GREETING_BYTES - len(found)))
            except BlockingIOError:
                return False
            return len(found) == GREETING_BYTES

        self.turn_until(has_come)
        return bytes(found)

    def rest(self, stranger: socket.socket) -> bytes:
        """Return all that a stranger gets until its connection is ended."""
        stranger.setblocking(False)
        found = bytearray()

        def is_over() -> bool:
            try:
                part = stranger.recv(1 << 16)
            except BlockingIOError:
                return False
            except ConnectionResetError:
                return True
            found.extend(part)
            return not part

        self.turn_until(is_over)
        return bytes(found)


@pytest.fixture
def port() -> Iterator[Port]:
    made = Port()
    yield made
    made.reception.close()
    made.threads.shutdown()


def test_steps_may_take_longer_than_a_machine_that_cannot_be_reached(port: Port) -> None:
    """The system would end a connection whose buffers are full meanwhile."""
    joining = [port.join(rank) for rank in (1, 2)]
    found = port.reception.wait()
    ends = [(channel, link) for (_, channel), link in found.items()]
    ends += [each for done in joining for each in zip((CONTROL, STEPS), done.result(), strict=True)]
    assert len(ends) == 8
    for channel, link in ends:
        limit = link.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert limit == (CUT_SECONDS * 1000 if channel == CONTROL else 0)
        link.close()


def test_nodes_join_in_any_order_and_speak(port: Port) -> None:
    joining = {rank: port.join(rank) for rank in (2, 1)}
    found = port.reception.wait()
    assert set(found) == {(rank, channel) for rank in (1, 2) for channel in (CONTROL, STEPS)}
    for rank, links in joining.items():
        for channel, theirs in zip((CONTROL, STEPS), links.result(), strict=True):
            ours = found[rank, channel]
            ours.send(Started(weight_bytes=rank))
            assert theirs.receive(Started) == Started(weight_bytes=rank)
            theirs.send(Started(failure=channel))
            assert ours.receive(Started) == Started(failure=channel)
            theirs.close()
            assert ours.receive(Started) is None
            ours.close()


def test_the_port_is_closed_when_all_have_joined(port: Port) -> None:
    port.all_join()
    port.reception.close()
    with pytest.raises(ConnectionRefusedError):
        port.connect()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "2"}, "its version of Octavo is 2, and the first node's is 1"),
        ({"nnodes": 2}, "its --nnodes is 2, and the first node's is 3"),
        ({"stages": 6}, "its --pipeline-parallel-size is 6"),
        ({"digest": b"other"}, "its model is another one"),
        ({"stages": 1, "ranks": 3}, "its --pipeline-parallel-size is 1"),
    ],
)
def test_a_node_that_differs_is_refused_for_good(
    port: Port, changes: dict[str, object], message: str
) -> None:
    error = port.refused(port.join(1, setting=structs.replace(SETTING, **changes)))
    assert isinstance(error, RefusedError)
    assert message in str(error)
    port.all_join()


@pytest.mark.parametrize("rank", [0, 3])
def test_a_place_that_there_is_not_is_refused(port: Port, rank: int) -> None:
    error = port.refused(port.join(rank))
    assert isinstance(error, RefusedError)
    assert f"has no stage {rank}" in str(error)


def test_a_channel_that_there_is_not_is_refused(port: Port) -> None:
    assert isinstance(port.refused(port.join(1, channel_of=lambda name: "x")), RefusedError)


def test_two_nodes_of_one_rank_are_refused_until_the_first_leaves(
    port: Port, caplog: pytest.LogCaptureFixture
) -> None:
    control, steps = port.joined(1, b"one")
    assert isinstance(port.refused(port.join(1, b"other")), StopError)
    assert "there is a node 1 already, 127.0.0.1" in caplog.text
    assert isinstance(port.refused(port.join(1, b"one")), StopError)  # it has its place
    assert caplog.text.count("does not join") == 1  # the clock stands still
    control.close()
    steps.close()
    port.turn_until(lambda: "node 1 (stage 1)" in port.reception._missing())
    for link in (*port.joined(1, b"other"), *port.joined(2)):
        link.close()


def test_a_node_that_speaks_before_the_engine_loses_its_place(port: Port) -> None:
    control, steps = port.joined(1)
    steps.send(Started())
    port.turn_until(lambda: "node 1" in port.reception._missing())
    control.close()
    steps.close()


def test_a_node_with_another_secret_gets_no_place(
    port: Port, caplog: pytest.LogCaptureFixture
) -> None:
    error = port.refused(port.join(1, secret=b"another secret"))
    assert isinstance(error, StopError)  # it would try again
    assert "give all nodes the same --link-secret-file" in caplog.text
    assert "it has another secret" in caplog.text
    assert b"secret of the tests" not in caplog.text.encode()
    port.all_join()


def test_the_log_says_once_why_a_host_s_callers_do_not_join(
    port: Port, caplog: pytest.LogCaptureFixture
) -> None:
    def call(attack: bytes) -> int:
        """Return the number of lines about callers once this one has gone."""
        with port.connect() as stranger:
            port.greeting(stranger)
            stranger.sendall(attack)
            stranger.shutdown(socket.SHUT_WR)
            port.turn_until(lambda: port.reception.num_callers == 0)
        port.now += 60.0
        return caplog.text.count("does not join")

    wrong = bytes(ANSWER_BYTES)
    assert [call(wrong) for _ in range(5)] == [1] * 5
    assert call(b"") == 2  # it is something else now
    assert [call(wrong) for _ in range(2)] == [3, 3]
    assert "such callers" not in caplog.text


ATTACKS = {
    "nothing": b"",
    "one byte": b"o",
    "another protocol": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "zeros": bytes(ANSWER_BYTES),
    "an invented proof": MAGIC + bytes(ANSWER_BYTES - len(MAGIC)),
    "much more": MAGIC * 10_000,
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_stranger_gets_nothing_and_keeps_no_node_away(port: Port, attack: str) -> None:
    with port.connect() as stranger:
        assert port.greeting(stranger).startswith(MAGIC)
        stranger.setblocking(True)
        stranger.sendall(ATTACKS[attack])
        if len(ATTACKS[attack]) >= ANSWER_BYTES:
            assert port.rest(stranger) in (OTHER_SECRET, b"")
            assert port.reception.num_callers == 0
        port.all_join()


def test_a_stranger_who_sends_single_bytes_has_no_more_time(port: Port) -> None:
    with port.connect() as stranger:
        port.greeting(stranger)
        for _ in range(3):
            stranger.send(MAGIC[:1])
            port.now += HANDSHAKE_SECONDS / 3 + 0.01
            port.reception.turn(0.01)
        assert port.rest(stranger) == b""
        assert port.reception.num_callers == 0


def test_a_proof_that_was_overheard_proves_nothing(port: Port) -> None:
    with port.connect() as node, port.connect() as stranger:
        end = OtherEnd(SECRET, port.greeting(node))
        node.sendall(end.answer)
        port.greeting(stranger)
        stranger.sendall(end.answer)
        assert port.rest(stranger) == OTHER_SECRET


def test_a_first_node_without_the_secret_learns_nothing_and_is_left() -> None:
    end = OtherEnd(SECRET, MAGIC + bytes(32))
    for verdict in (OTHER_SECRET, b"\1" + bytes(32), end.answer[-VERDICT_BYTES:]):
        with pytest.raises(HandshakeError, match="the first node has another secret"):
            end.check(verdict)
    with pytest.raises(HandshakeError, match="is no first node"):
        OtherEnd(SECRET, b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n")


def test_many_strangers_have_few_places_and_keep_no_node_away(
    port: Port, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        for _ in range(256):
            stack.enter_context(port.connect())
            port.reception.turn(0.01)
            assert port.reception.num_callers <= MOST_CALLERS
        port.all_join()
    assert caplog.text.count("does not join") == 1  # the clock stands still


class _Wrong(Struct):
    text: str


def _proved(port: Port, node: socket.socket) -> SealedLink:
    """Return the link of a node that has proved to have the secret, and has not joined yet."""
    end = OtherEnd(SECRET, port.greeting(node))
    node.sendall(end.answer)
    verdict = bytearray()

    def has_verdict() -> bool:
        try:
            verdict.extend(node.recv(VERDICT_BYTES - len(verdict)))
        except BlockingIOError:
            return False
        return len(verdict) == VERDICT_BYTES

    port.turn_until(has_verdict)
    node.setblocking(True)
    return SealedLink(node, end.check(bytes(verdict)))


def test_a_node_whose_first_message_is_wrong_is_left(port: Port) -> None:
    with port.connect() as node:
        link = _proved(port, node)
        link.send(_Wrong("x" * 100_000))
        port.turn_until(lambda: port.reception.num_callers == 0)
        assert link.receive(Joined) is None
        link.close()


def test_what_another_has_sent_in_place_of_a_node_is_no_message(
    port: Port, caplog: pytest.LogCaptureFixture
) -> None:
    with port.connect() as node:
        link = _proved(port, node)
        node.sendall(bytes(100))
        port.turn_until(lambda: port.reception.num_callers == 0)
        assert "was not sealed by its other end" in caplog.text
        link.close()
    control, steps = port.joined(1)
    port.reception._members[1, CONTROL].link.connection.sendall(bytes(100))
    with pytest.raises(WireError, match="was not sealed by its other end"):
        control.receive(Started)
    control.close()
    steps.close()


def test_a_port_that_cannot_be_used_is_named() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(ConfigError, match="address already in use"),
    ):
        Reception("127.0.0.1", other.getsockname()[1], SECRET, SETTING)
    with pytest.raises(ConfigError, match="cannot assign requested address"):
        Reception("192.0.2.1", 1, SECRET, SETTING)


@contextmanager
def _silent_port() -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made.getsockname()


def test_a_node_says_why_it_cannot_join_yet(caplog: pytest.LogCaptureFixture) -> None:
    """Once for each reason, however often it tries."""
    caplog.set_level(logging.WARNING)
    with _silent_port() as (host, port):
        pass  # no process listens there any more
    attempts = []

    def sleep(seconds: float) -> None:
        attempts.append(seconds)
        if len(attempts) == 3:
            raise StopError

    def message(channel: str) -> Join:
        return Join(SETTING, 1, b"1", 1, channel)

    with pytest.raises(StopError):
        join(host, port, SECRET, SETTING.division.channels, message, sleep)
    assert caplog.text.count("cannot join") == 1
    assert "node 0 is not there" in caplog.text
