"""The program of a node that is not the first: `octavo serve --headless`, or an actor of Ray.

It keeps a process for each of the node's stages, or for its ranks that add up, and starts another
when one ends: with the engine, of which the next one wants to be joined, or by itself. An actor is
for one engine: it ends with the first of its processes, and the next engine has other actors.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import selectors
import socket
import subprocess
import time
from collections.abc import Callable
from typing import NoReturn

from msgspec import Raw, Struct

from octavo.core.config import ConfigError
from octavo.engine.nodes.connection import CUT_SECONDS
from octavo.engine.nodes.division import Division
from octavo.engine.nodes.group import secret_of
from octavo.engine.nodes.introduction import report_failure
from octavo.engine.nodes.messages import StartNode
from octavo.engine.ranks.followers import describe_status, launch
from octavo.engine.ranks.link import Link, Sign
from octavo.loader.errors import CheckpointError
from octavo.loader.source import resolve
from octavo.observe.log import level_in_use
from octavo.options.engine import EngineArguments
from octavo.wire.message_types import pack

log = logging.getLogger(__name__)

PROGRAM = "octavo.engine.nodes.process"
FAILED_SECONDS = 0.5  # before a member that has failed is started again
_EXIT_SECONDS = 2.0
_TICK_SECONDS = 1.0


class MemberEndedError(Exception):
    """An error for the end of a member that its node does not start again; it says how it ended."""


class _Member(Struct, eq=False):
    number: int
    name: str
    process: subprocess.Popen[bytes]
    link: Link
    heard_at: float | None = None  # its last sign of life; None: it has not begun to give any
    ended: str = ""  # its last words: which process has ended, and why


class Node:
    """The stages of this node, or its ranks."""

    def __init__(
        self,
        arguments: EngineArguments,
        sleep: Callable[[float], None] = time.sleep,
        *,
        is_for_one_engine: bool = False,
    ) -> None:
        secret_of(arguments)  # which is refused here, once, if it cannot be read
        self._arguments = arguments
        self._sleep = sleep
        self._is_for_one_engine = is_for_one_engine
        self._node = secrets.token_bytes(16)
        self._selector = selectors.DefaultSelector()
        self._members: dict[int, _Member] = {}
        self._division = Division.of(arguments)
        self.numbers = self._division.members(arguments.node_rank)

    def serve(self) -> NoReturn:
        """Keep the members running for ever; raise ConfigError if they cannot ever join.

        If they are for one engine, raise MemberEndedError when one has ended.
        """
        try:
            for number in self.numbers:
                self._launch(number)
            while True:
                for key, _ in self._selector.select(_TICK_SECONDS):
                    self._hear(key.data)
                self._end_silent()
        finally:
            for member in self._members.values():
                _end(member)

    def _launch(self, number: int, ended: str = "") -> None:
        """Start a member; the one in its place before has ended so, as the first node hears."""
        process, link = launch(PROGRAM, [])
        made = _Member(number, self._division.process_of(number)[0], process, link)
        self._members[number] = made
        self._selector.register(link.connection, selectors.EVENT_READ, made)
        arguments = Raw(pack(self._arguments))
        message = StartNode(arguments, number, self._node, level_in_use(), ended)
        with contextlib.suppress(OSError):  # it has ended, as will be seen
            link.send(message)

    def name_of(self, number: int) -> str:
        """Return what a member computes, in words."""
        return self._division.name_of(number)

    def _hear(self, member: _Member) -> None:
        """Take a sign of life, or the end, of one; raise ConfigError if it cannot ever join."""
        sign = member.link.receive(Sign)
        if sign is None:
            self._restart(member)
        elif sign.is_final:
            raise ConfigError(sign.ended)
        elif sign.ended:
            member.ended = sign.ended
        else:
            member.heard_at = time.monotonic()

    def _end_silent(self) -> None:
        """Restart the members that give no sign of life.

        One whose signs have come has given some: this process may have been stopped meanwhile.
        """
        for member in [*self._members.values()]:
            if member.heard_at is None or time.monotonic() < member.heard_at + CUT_SECONDS:
                continue
            if any(key.data is member for key, _ in self._selector.select(0)):
                continue
            log.error("%s gives no sign of life, and is ended", member.name)
            self._restart(member, f"it gave no sign of life for {CUT_SECONDS} s")

    def _restart(self, member: _Member, why: str = "") -> None:
        """Start a member again, once it has ended, by itself or because of its silence."""
        self._selector.unregister(member.link.connection)
        status = _end(member)
        is_unsaid = bool(why) or status < 0  # it could say nothing itself
        why = why or ("with its engine" if status == 0 else describe_status(status))
        ended = member.ended or f"{member.name} has ended: {why}"
        if self._is_for_one_engine:
            raise MemberEndedError(ended)
        if status == 0:
            log.info("the engine of %s has ended; it joins the next one", member.name)
        else:
            log.error("%s; it starts again", ended)
            self._sleep(FAILED_SECONDS)
        self._launch(member.number, ended if is_unsaid else "")


def _end(member: _Member) -> int:
    """End a member, which ends by itself with its connection; return its exit status."""
    with contextlib.suppress(OSError):
        member.link.connection.shutdown(socket.SHUT_RDWR)
    try:
        member.process.wait(_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        member.process.kill()
        member.process.wait()
    member.link.connection.close()
    return member.process.returncode


def find_model(arguments: EngineArguments) -> None:
    """Look for the model of this node; the first node hears why it is not there, if it listens."""
    try:
        resolve(arguments.model, has_weights=arguments.has_weights)
    except (CheckpointError, OSError) as error:
        report_failure(arguments, str(error))
        raise


def run_node(arguments: EngineArguments) -> int:
    """Run the members of this node until Ctrl-C or SIGTERM; return the exit status."""
    node = Node(arguments)
    names = ", ".join(map(node.name_of, node.numbers))
    log.info(
        "node %d of %d computes %s, for node 0 at %s port %d",
        *(arguments.node_rank, arguments.nnodes, names),
        *(arguments.master_addr, arguments.master_port),
    )
    with contextlib.suppress(KeyboardInterrupt):
        node.serve()
    return 0


def run_for_one_engine(arguments: EngineArguments) -> str:
    """Run the stages of this node until the first of them ends; return why it has."""
    try:
        # Once, before each stage looks for it.
        resolve(arguments.model, has_weights=arguments.has_weights)
        Node(arguments, is_for_one_engine=True).serve()
    except (MemberEndedError, ConfigError, CheckpointError, OSError) as error:
        return str(error) or type(error).__name__
