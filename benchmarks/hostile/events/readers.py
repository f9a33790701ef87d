"""Readers of KV events that ask for more than a server may keep, and a server that they attack.

A message that never ends, and questions whose answers are not taken, must end their connection;
subscriptions without an end must not be kept. Another reader gets its events all the while, and the
server's memory stays bounded.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import zmq

from benchmarks.hostile.attack import ATTACK_KEY, COMPLETIONS, WATCH_KEY, Attack, Right, request
from benchmarks.hostile.client import carry_out
from benchmarks.served.client import resident_mib
from benchmarks.served.command import port_of, running
from octavo.zmtp.parser import command, frames, greeting
from tests.api.tiny import make_model

LIMIT_SECONDS = 300.0
MOST_SENT_BYTES = 2 << 20  # of an attack whose connection is not ended
MOST_CONNECTIONS = 80  # more than an endpoint takes
MOST_MORE_MIB = 40


class ReaderAttack(NamedTuple):
    """The bytes that a reader sends once and then without an end, and what must become of it."""

    kind: bytes
    once: bytes
    endless: Callable[[int], bytes]  # of a number, which is another one each time
    is_ended: bool  # whether its connection must be


def _question(number: int) -> bytes:
    return b"".join(frames((b"", (number % 2).to_bytes(8, "big"))))


def _topic(number: int) -> bytes:
    return command(b"\x09SUBSCRIBE" + str(number).encode())


ATTACKS: Mapping[str, ReaderAttack] = {
    "topics": ReaderAttack(b"SUB", b"", _topic, is_ended=False),
    "topics in messages": ReaderAttack(
        b"SUB", b"", lambda number: b"".join(frames((b"\1%d" % number,))), is_ended=False
    ),
    "parts": ReaderAttack(b"SUB", b"", lambda _: b"\1\1x", is_ended=True),
    "a large part": ReaderAttack(
        b"SUB", b"\2" + (1 << 40).to_bytes(8, "big"), bytes, is_ended=True
    ),
    "questions": ReaderAttack(b"DEALER", b"", _question, is_ended=True),
    "parts of a question": ReaderAttack(b"DEALER", b"", lambda _: b"\1\0", is_ended=True),
    "pings": ReaderAttack(b"SUB", b"", lambda _: command(b"\4PING\0\0" + b"x" * 16), is_ended=True),
    "no ZeroMQ": ReaderAttack(b"", b"GET / HTTP/1.1\r\n", lambda _: b"x", is_ended=True),
}


def attack(given: ReaderAttack, path: str) -> bool:
    """Send without an end to a socket and read nothing; return whether the connection was ended."""
    numbers = count(1)
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(LIMIT_SECONDS)
        caller.connect(path)
        sent = 0
        with suppress(ConnectionError):
            caller.sendall((greeting(given.kind) if given.kind else b"") + given.once)
            while sent < MOST_SENT_BYTES:
                portion = b"".join(given.endless(next(numbers)) for _ in range(1000))
                caller.sendall(portion)
                sent += max(len(portion), 1000)
            return False
    return True


def attack_all(events: str, replays: str) -> list[str]:
    """Carry out each attack, and take all places with idle callers; return what is wrong."""
    faults = []
    for name, each in ATTACKS.items():
        was_ended = attack(each, replays if each.kind == b"DEALER" else events)
        if was_ended != each.is_ended:
            faults.append(f"{name}: the connection was {'' if was_ended else 'not '}ended")
    with ExitStack() as stack:
        refused = 0
        for _ in range(MOST_CONNECTIONS):
            caller = stack.enter_context(socket.socket(socket.AF_UNIX))
            caller.settimeout(LIMIT_SECONDS)
            caller.connect(events)
            try:
                caller.sendall(greeting(b"SUB"))
                refused += not caller.recv(1)
            except ConnectionError:
                refused += 1
        if not refused:
            faults.append(f"{MOST_CONNECTIONS} callers have places at one endpoint")
    return faults


def attack_readers(directory: Path) -> list[str]:
    """Return what is wrong with a server whose endpoints of KV events are attacked."""
    model = directory / "model"
    model.mkdir(parents=True)
    make_model(model)
    log = directory / "log"
    with TemporaryDirectory() as sockets, log.open("w") as file:
        events, replays = f"{sockets}/events", f"{sockets}/replays"
        config = {"enable_kv_cache_events": True, "endpoint": f"ipc://{events}"}
        config["replay_endpoint"] = f"ipc://{replays}"
        words = ["serve", str(model), "--port", "0", "--num-threads", "1", "--block-size", "16"]
        words += ["--kv-events-config", json.dumps(config), "--api-key", WATCH_KEY, ATTACK_KEY]
        with running(*words, log=file.fileno(), environment={"OMP_NUM_THREADS": "1"}) as process:
            faults = _attack_server(port_of(process), process.pid, events, replays)
            process.send_signal(signal.SIGTERM)
            code = process.wait(LIMIT_SECONDS)
    if code:
        faults.append(f"the exit code is {code}")
    if "Traceback" in log.read_text():
        faults.append("the log has a traceback")
    return [f"readers of events: {fault}" for fault in faults]


def _attack_server(port: int, process: int, events: str, replays: str) -> list[str]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    reader = context.socket(zmq.SUB)
    reader.set(zmq.SUBSCRIBE, b"")
    reader.connect(f"ipc://{events}")
    try:
        faults = _faults_of_events(port, reader, "before")
        before = resident_mib(process)
        faults += attack_all(events, replays)
        faults += _faults_of_events(port, reader, "after")
        more = resident_mib(process) - before
        if more > MOST_MORE_MIB:
            faults.append(f"the server has {more:.0f} MiB more than before the attacks")
    finally:
        reader.close(linger=0)
        context.term()
    return faults


def _faults_of_events(port: int, reader: zmq.Socket[bytes], when: str) -> list[str]:
    """Send requests until a reader gets events of them; return what is wrong."""
    for number in range(100):
        body = {"prompt": [3 + number % 40] * 40 + [number % 40], "max_tokens": 1}
        sent = request(COMPLETIONS, json.dumps(body).encode(), key=WATCH_KEY)
        outcome = asyncio.run(carry_out(Attack((sent,), Right.SERVED), port))
        if [each.status for each in outcome.answers] != [200]:
            return [f"{when} the attacks: a request: {outcome}"]
        if reader.poll(1000):
            while reader.poll(0):
                reader.recv_multipart()
            return []
    return [f"{when} the attacks: no events come"]
