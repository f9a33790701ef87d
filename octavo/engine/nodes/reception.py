"""The port at which the other nodes of an engine join: open while it starts, until all have.

Anyone who reaches the port may connect. A stranger gets a number and no answer, and keeps one of
few places for at most HANDSHAKE_SECONDS; when these are full, the newest caller takes the place of
the oldest, so strangers can delay a node and not keep it away. Only a node that has proved to have
the secret is read further.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import time
from collections.abc import Callable, Iterator

from octavo.core.config import ConfigError
from octavo.engine.nodes.connection import (
    HANDSHAKE_SECONDS,
    SealedLink,
    bound_waiting,
    wait_for_reader,
    watch_for_cuts,
)
from octavo.engine.nodes.division import CONTROL
from octavo.engine.nodes.handshake import ANSWER_BYTES, OTHER_SECRET, FirstEnd, HandshakeError
from octavo.engine.nodes.messages import Join, Joined, Setting
from octavo.wire.message_types import WireError

log = logging.getLogger(__name__)

MOST_CALLERS = 32  # that have not proved anything yet
REMIND_SECONDS = 30.0  # between two lines of the log about nodes that are missing
_COMPLAIN_SECONDS = 5.0  # between two about callers who do not join
_MOST_HOSTS = 256  # of which it is known what was said last about them
_TICK_SECONDS = 0.5

Place = tuple[int, str]  # a member, and which of its connections


class _Caller:
    """A connection that has to prove that it has the secret, and to say what it is to be."""

    def __init__(
        self, connection: socket.socket, host: str, port: int, secret: bytes, now: float
    ) -> None:
        self.connection = connection
        self.host = host
        self.name = f"{host} port {port}"
        self.deadline = now + HANDSHAKE_SECONDS
        self.end = FirstEnd(secret)
        self.answer = b""
        self.link: SealedLink | None = None  # once it has proved that


class Member:
    """A connection of a node that has joined."""

    def __init__(self, join: Join, link: SealedLink, name: str) -> None:
        self.join = join
        self.link = link
        self.name = name


class Reception:
    """The listening socket of the first node, and the nodes that have joined."""

    def __init__(
        self,
        host: str,
        port: int,
        secret: bytes,
        setting: Setting,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._secret = secret
        self._setting = setting
        self._clock = clock
        self._callers: dict[socket.socket, _Caller] = {}  # in the order in which they came
        self._members: dict[Place, Member] = {}
        self._failures: dict[str, tuple[str, float]] = {}  # by the node: why it gets no place
        self._complaints: dict[str, str] = {}  # by the host: what the log says about it
        self._complained_at = float("-inf")
        self._num_dismissed = 0  # since then, of which the log does not say the same already
        self._division = division = setting.division
        self._wanted = [(m, c) for m in division.further_members for c in division.channels]
        self._listener = _listen(host, port)
        self.address = self._listener.getsockname()[:2]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)

    def wait(self) -> dict[Place, SealedLink]:
        """Return the connections of all other nodes once they have joined."""
        host, port = self.address
        log.info("waiting for %s at %s port %d", self._missing(), host, port)
        remind_at = self._clock() + REMIND_SECONDS
        while len(self._members) < len(self._wanted):
            self.turn(_TICK_SECONDS)
            if self._clock() >= remind_at:
                remind_at = self._clock() + REMIND_SECONDS
                log.warning("still waiting for %s at %s port %d", self._missing(), host, port)
        for member in self._members.values():
            self._selector.unregister(member.link.connection)
            bound_waiting(member.link.connection, 0)
            if member.join.channel != CONTROL:
                wait_for_reader(member.link.connection)
        members, self._members = self._members, {}
        return {place: member.link for place, member in members.items()}

    def turn(self, seconds: float) -> None:
        """Handle what comes within so many seconds, and callers whose time is over."""
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.data, Member):
                self._drop(key.data)  # nothing comes from a node before the engine has spoken
            elif key.data.connection in self._callers:
                self._hear(key.data)
        for caller in [*self._callers.values()]:
            if self._clock() >= caller.deadline:
                self._dismiss(caller, "it did not prove in time that it has the secret")

    @property
    def num_callers(self) -> int:
        """The number of connections that have proved nothing yet."""
        return len(self._callers)

    def close(self) -> None:
        """Close the port and every connection that has no owner yet."""
        for caller in self._callers.values():
            caller.connection.close()
        for member in self._members.values():
            member.link.close()
        self._callers.clear()
        self._members.clear()
        self._selector.close()
        self._listener.close()

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except OSError:  # it has left already, or there are no descriptors left
            return
        if len(self._callers) >= MOST_CALLERS:
            self._dismiss(next(iter(self._callers.values())), "others came after it")
        connection.setblocking(False)
        watch_for_cuts(connection)
        host, port = address[:2]
        caller = _Caller(connection, host, port, self._secret, self._clock())
        self._callers[connection] = caller
        self._selector.register(connection, selectors.EVENT_READ, caller)
        with contextlib.suppress(OSError):
            connection.send(caller.end.greeting)  # which an empty buffer takes as a whole

    def _hear(self, caller: _Caller) -> None:
        """Read on what a caller sends."""
        if caller.link is not None:
            self._admit(caller, caller.link)
            return
        try:
            part = caller.connection.recv(ANSWER_BYTES - len(caller.answer))
        except BlockingIOError:
            return
        except OSError:
            part = b""
        caller.answer += part
        if not part:
            self._dismiss(caller, "it ended the connection before it proved anything")
        elif len(caller.answer) == ANSWER_BYTES:
            self._judge(caller)

    def _judge(self, caller: _Caller) -> None:
        try:
            verdict, keys = caller.end.check(caller.answer)
        except HandshakeError as error:
            with contextlib.suppress(OSError):
                caller.connection.send(OTHER_SECRET)
            self._dismiss(caller, str(error))
            return
        bound_waiting(caller.connection, HANDSHAKE_SECONDS)
        caller.link = SealedLink(caller.connection, keys)
        with contextlib.suppress(OSError):
            caller.connection.sendall(verdict)

    def _admit(self, caller: _Caller, link: SealedLink) -> None:
        """Give a node with the secret its place, or say why it gets none."""
        try:
            join = link.receive(Join)
        except WireError as error:
            self._dismiss(caller, str(error))
            return
        if join is None:
            self._dismiss(caller, "it ended the connection")
            return
        link.machine = f"node {join.node_rank} ({join.machine} at {caller.host})"
        answer = self._answer(join)
        try:
            link.send(answer)
        except ConnectionError:
            self._dismiss(caller, "it ended the connection")
            return
        if answer.occupied:  # it tries again, for as long as it runs
            self._dismiss(caller, answer.occupied)
            return
        if answer.refusal:
            self._note_failure(link.machine, join.failure or f"it is refused: {answer.refusal}")
            self._release(caller)
            link.close()
            return
        if join.ended and join.channel == CONTROL:
            log.warning("%s: %s, before this engine", link.machine, join.ended)
        member = Member(join, link, caller.name)
        self._callers.pop(caller.connection)
        self._selector.modify(caller.connection, selectors.EVENT_READ, member)
        self._members[join.member, join.channel] = member
        if join.channel == self._division.channels[-1]:
            name = self._division.name_of(join.member)
            log.info("%s joins from %s", name, link.machine)

    def _note_failure(self, machine: str, failure: str) -> None:
        """Write to the log why a node gets no place; of one that repeats it, now and then."""
        said, said_at = self._failures.get(machine, ("", 0.0))
        if failure != said or self._clock() >= said_at + REMIND_SECONDS:
            log.warning("%s: %s", machine, failure)
            self._failures[machine] = failure, self._clock()

    def _answer(self, join: Join) -> Joined:
        if join.failure:
            return Joined(refusal="it can have no place")
        difference = join.setting.difference_from(self._setting)
        if difference:
            return Joined(refusal=difference)
        place, division = (join.member, join.channel), self._division
        if place not in self._wanted or join.member not in division.members(join.node_rank):
            name = division.name_of(join.member)
            return Joined(refusal=f"node {join.node_rank} has no {name}, or none with such a link")
        for member in self._members.values():
            is_rank = member.join.node_rank == join.node_rank
            if is_rank and (member.join.node != join.node or place in self._members):
                return Joined(occupied=f"there is a node {join.node_rank} already, {member.name}")
        return Joined()

    def _drop(self, member: Member) -> None:
        """Forget a connection of a node that has left before all were there."""
        log.warning("node %d at %s has left again", member.join.node_rank, member.name)
        self._selector.unregister(member.link.connection)
        member.link.close()
        del self._members[member.join.member, member.join.channel]

    def _dismiss(self, caller: _Caller, why: str) -> None:
        """End a caller's connection, and say so: once of each host, and of few among many."""
        self._release(caller)
        (caller.link or caller.connection).close()
        if self._complaints.get(caller.host) == why:
            return
        self._num_dismissed += 1
        if self._clock() < self._complained_at + _COMPLAIN_SECONDS:
            return
        if len(self._complaints) >= _MOST_HOSTS:
            del self._complaints[next(iter(self._complaints))]
        self._complaints[caller.host] = why
        others = f" ({self._num_dismissed} such callers)" if self._num_dismissed > 1 else ""
        log.warning("a caller from %s does not join: %s%s", caller.name, why, others)
        self._complained_at, self._num_dismissed = self._clock(), 0

    def _release(self, caller: _Caller) -> None:
        self._selector.unregister(caller.connection)
        del self._callers[caller.connection]

    def _missing(self) -> str:
        """Name the nodes that have not joined."""
        return " and ".join(self._missing_nodes())

    def _missing_nodes(self) -> Iterator[str]:
        division = self._division
        for node in range(1, division.nnodes):
            absent = [
                division.name_of(member)
                for member in division.members(node)
                if any((member, channel) not in self._members for channel in division.channels)
            ]
            if absent:
                yield f"node {node} ({', '.join(absent)})"


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _unusable(host, port, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(MOST_CALLERS)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise _unusable(host, port, error) from error
    return listener


def _unusable(host: str, port: int, error: OSError) -> ConfigError:
    why = (error.strerror or str(error)).lower()
    return ConfigError(
        f"master_addr={host}, master_port={port}: the other nodes cannot be received there: {why}; "
        "give an address of this machine, which is node 0, and a free port"
    )
