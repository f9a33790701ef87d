"""Carries out one attack over a connection of its own, and returns what came back."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import cast

from benchmarks.hostile.answers import Answer, AnswerReader, MalformedError
from benchmarks.hostile.attack import Attack, Ending

NUM_CLIENTS = 8  # that attack at once
HOLD_SECONDS = 4.0  # of a client that never reads
ANSWER_SECONDS = 300.0  # a response that has not come by then is missing
SLOW_READ_SECONDS = 0.05
SMALL_BUFFER_BYTES = 4096
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset


@dataclass
class Outcome:
    """The responses to a hostile client, and how its connection ended."""

    answers: list[Answer]
    malformed: str | None = None
    is_late: bool = False
    is_closed: bool = False  # by the server
    was_refused: bool = False  # the connection itself


class _Wire(asyncio.Protocol):
    """A connection whose responses are parsed as they arrive."""

    def __init__(self, attack: Attack) -> None:
        self._attack = attack
        self.reader = AnswerReader(has_body=attack.has_body)
        self.malformed: str | None = None
        self.ended = asyncio.Event()  # closed, or all responses are there
        self.is_closed = False  # by the server, as far as it sends
        self.is_lost = False
        self._writable = asyncio.Event()
        self._writable.set()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = self.is_lost = True
        self._writable.set()
        self.ended.set()

    def eof_received(self) -> bool:
        self.is_closed = True
        self._writable.set()
        self.ended.set()
        return False

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        try:
            self.reader.feed(data)
        except MalformedError as error:
            self.malformed = str(error)
            self.ended.set()
        if self.reader.num_whole >= self._attack.num_answers:
            self.ended.set()
        elif self._attack.ending is Ending.READ_SLOWLY and self.transport is not None:
            self.transport.pause_reading()
            asyncio.get_running_loop().call_later(SLOW_READ_SECONDS, self._read_on)

    def _read_on(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    async def write(self, piece: bytes) -> None:
        """Write, and wait until the transport has room again."""
        assert self.transport is not None
        if not self.transport.is_closing():
            self.transport.write(piece)
            await self._writable.wait()


async def carry_out(attack: Attack, port: int, source: str = "127.0.0.1") -> Outcome:
    """Send an attack from a loopback address; return what came back."""
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if attack.ending in (Ending.NEVER_READ, Ending.READ_SLOWLY):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
    connection.setblocking(False)
    connection.bind((source, 0))
    loop = asyncio.get_running_loop()
    wire = _Wire(attack)
    try:
        await loop.sock_connect(connection, ("127.0.0.1", port))
        await loop.create_connection(lambda: wire, sock=connection)
    except OSError:
        connection.close()
        return Outcome([], was_refused=True)
    if attack.ending is Ending.RESET:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await _converse(attack, wire)
    except TimeoutError:
        return Outcome(wire.reader.answers, wire.malformed, is_late=True)
    finally:
        if wire.transport is not None and not wire.is_lost:  # asyncio's may not be aborted then
            wire.transport.abort()


async def _converse(attack: Attack, wire: _Wire) -> Outcome:
    assert wire.transport is not None
    if attack.ending is Ending.NEVER_READ:
        wire.transport.pause_reading()
    for index, piece in enumerate(attack.pieces):
        if index and attack.seconds_between:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(attack.seconds_between):
                    await wire.ended.wait()
        await wire.write(piece)
    match attack.ending:
        case Ending.NEVER_READ:
            await asyncio.sleep(HOLD_SECONDS)
        case Ending.LEAVE | Ending.RESET:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(attack.seconds_before_end):
                    await wire.ended.wait()
        case Ending.HALF_CLOSE:
            if not wire.transport.is_closing():
                wire.transport.write_eof()
            await wire.ended.wait()
        case _:
            await wire.ended.wait()
    if attack.ending not in (Ending.NEVER_READ, Ending.LEAVE, Ending.RESET) and wire.is_closed:
        try:
            wire.reader.end()
        except MalformedError as error:
            wire.malformed = wire.malformed or str(error)
    return Outcome(wire.reader.answers, wire.malformed, is_closed=wire.is_closed)


async def attack_beside(
    port: int,
    attacks: Iterator[tuple[str, Attack]],
    fault_of: Callable[[str, Attack, Outcome], str | None],
    watch: Callable[[int, list[asyncio.Task[None]], list[str]], Awaitable[None]],
) -> list[str]:
    """Carry out named attacks, several at once, beside a client that watches; return the faults.

    `watch` gets the tasks of the attackers and goes on until all are done; it adds to the faults.
    """
    faults: list[str] = []

    async def attack_on() -> None:
        for name, attack in attacks:
            fault = fault_of(name, attack, await carry_out(attack, port))
            if fault:
                faults.append(f"{name}: {fault}")

    clients = [asyncio.create_task(attack_on()) for _ in range(NUM_CLIENTS)]
    await asyncio.gather(*clients, watch(port, clients, faults))
    return faults
