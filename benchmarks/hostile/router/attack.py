"""A router in front of servers that lie, and one key that sends it every wrong thing.

Publishers of KV events attack it too: each must lose its connection, and the router's memory stays
bounded. Each request for a lying model must end in a valid response or with its connection, never
with another's bytes; wrong requests get nothing but 4xx; the other key's stream is the same all the
while; and nothing is left open in the end.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from benchmarks.hostile import framing, heads
from benchmarks.hostile.attack import (
    ATTACK_KEY,
    CHAT,
    COMPLETIONS,
    INJECTED,
    WATCH_KEY,
    Attack,
    Ending,
    Kind,
    Right,
    request,
)
from benchmarks.hostile.client import Outcome, attack_beside, carry_out
from benchmarks.hostile.router.liars import DRIPPING, FLOODING, HONEST, MODELS, TEXT, Liar
from benchmarks.hostile.router.publishers import ATTACKS, LyingPublisher
from benchmarks.hostile.verdict import fault_of
from benchmarks.served.client import resident_mib
from benchmarks.served.command import port_of, running

LIMIT_SECONDS = 300.0
_KINDS: tuple[Kind, ...] = (*framing.KINDS, *heads.KINDS)
_WATCHED = {"model": HONEST, "messages": [], "stream": True}
# Endless answers, of which a client has enough at some time.
_ENDLESS = (DRIPPING, FLOODING)
_SETTLE_SECONDS = 60.0
_MOST_MIB = 300
SILENT_SECONDS = 3.0


def attack_router(
    num_requests: int, log: Path, seed: int, silent_seconds: float = SILENT_SECONDS
) -> list[str]:
    """Return what is wrong with a router that is attacked from both sides.

    The router gives a server up that was silent for `silent_seconds`.
    """
    with log.open("w") as file:
        faults = asyncio.run(_run(file.fileno(), num_requests, seed, silent_seconds))
    if "Traceback" in log.read_text():
        faults.append("the log has a traceback")
    return [f"router: {fault}" for fault in faults]


async def _run(log: int, num_requests: int, seed: int, silent_seconds: float) -> list[str]:
    servers = [Liar(MODELS), Liar((HONEST,))]
    publishers = [LyingPublisher(name) for name in ATTACKS]
    parties: tuple[Liar | LyingPublisher, ...] = (*servers, *publishers)
    for each in parties:
        await each.start()
    words = [f"--kv-events={servers[0].url}={one.endpoint}" for one in publishers]
    urls = [one.url for one in servers]
    with _routing([*urls, *words], silent_seconds, log) as process:
        port = await asyncio.to_thread(port_of, process)
        attacks = _attacks(num_requests, random.Random(seed))
        faults = await attack_beside(port, attacks, _fault_of, _watch)
        faults += await _left(port, servers)
        faults += await _faults_of_publishers(publishers, process.pid)
        process.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(process.wait, LIMIT_SECONDS)
    for each in parties:
        each.stop()
    return faults + ([f"the exit code is {code}"] if code else [])


async def _faults_of_publishers(publishers: list[LyingPublisher], process: int) -> list[str]:
    """Return which publishers the router still listens to, and whether it has kept too much."""
    for _ in range(int(_SETTLE_SECONDS / 0.1)):
        if all(each.num_ended or each.num_taken for each in publishers):
            break
        await asyncio.sleep(0.1)
    faults = [
        f"events: {each.name}: the router took {each.num_taken} attacks whole and ended "
        f"{each.num_ended}"
        for each in publishers
        if each.num_taken or not each.num_ended
    ]
    used = resident_mib(process)
    if used > _MOST_MIB:
        faults.append(f"the router has {used:.0f} MiB of memory, more than {_MOST_MIB}")
    return faults


def _routing(
    words: list[str], silent_seconds: float, log: int
) -> AbstractContextManager[subprocess.Popen[str]]:
    words = ["route", *words, "--port", "0", "--api-key", WATCH_KEY, ATTACK_KEY]
    words += ["--silent-seconds", str(silent_seconds), "--max-request-seconds", "60"]
    words += ["--header-seconds", "3", "--body-seconds", "3", "--stall-seconds", "3"]
    words += ["--health-seconds", "0.5"]
    return running(*words, log=log, environment={})


def _fault_of(name: str, attack: Attack, outcome: Outcome) -> str | None:
    """Return what is wrong with what an attack, or a request whose server lies, has got."""
    return _fault_of_lie(outcome) if name in MODELS else fault_of(attack, outcome)


def _fault_of_lie(outcome: Outcome) -> str | None:
    """Judge the answer to a request whose server lies: it may be an error, or break off."""
    if outcome.was_refused or outcome.is_late:
        return f"no answer: {outcome}"
    if len(outcome.answers) > 1:
        return f"{len(outcome.answers)} answers to one request"
    for answer in outcome.answers:
        body = bytes(answer.body)
        if answer.header(INJECTED) is not None or INJECTED.encode() in body:
            return f"another's bytes were passed on: {body[:200]!r}"
        if answer.status not in (200, 502, 503, 504):
            return f"status {answer.status}: {body[:200]!r}"
    return None


async def _watch(port: int, clients: list[asyncio.Task[None]], faults: list[str]) -> None:
    """Ask for the watched stream until the attack is over: it is always the same."""
    sent = request(CHAT, json.dumps(_WATCHED).encode(), key=WATCH_KEY)
    events = "".join(f"data: {word}\n\n" for word in TEXT.split()).encode()
    count = 0
    while not all(each.done() for each in clients) or not count:
        outcome = await carry_out(Attack((sent,), Right.SERVED), port)
        bodies = [(each.status, bytes(each.body)) for each in outcome.answers]
        if bodies != [(200, events)]:
            faults.append(f"the watched stream: {outcome}")
            return
        count += 1


async def _left(port: int, servers: list[Liar]) -> list[str]:
    """Return what is left behind; the last clients have left just now."""
    sent = request("/metrics", method="GET", key=WATCH_KEY)
    wanted = (b"octavo:route_open_requests 0.0", b"octavo:route_held_bytes 0.0")
    body = b""
    for _ in range(int(_SETTLE_SECONDS / 0.1)):
        outcome = await carry_out(Attack((sent,), Right.SERVED), port)
        body = b"".join(bytes(each.body) for each in outcome.answers)
        # Those that are kept for the next request, and that of a question for health.
        if all(line in body for line in wanted) and sum(each.num_open for each in servers) <= 4:
            return []
        await asyncio.sleep(0.1)
    lines = [line.decode() for line in body.splitlines() if line.startswith(b"octavo:route_")]
    counts = [each.num_open for each in servers]
    return [f"requests or connections stay open ({counts} at the servers): {lines}"]


def _attacks(num_requests: int, chance: random.Random) -> Iterator[tuple[str, Attack]]:
    """Yield attacks, each with its name: each lie once, and then a mix."""
    for index in range(num_requests):
        if index < len(MODELS) or chance.random() < 0.5:
            model = MODELS[index] if index < len(MODELS) else chance.choice(MODELS)
            body = json.dumps({"model": model, "prompt": "x", "stream": chance.random() < 0.5})
            attack = Attack((request(COMPLETIONS, body.encode()),), Right.LEFT)
            if model in _ENDLESS or chance.random() < 0.2:
                ending = chance.choice([Ending.LEAVE, Ending.RESET])
                attack = replace(attack, ending=ending, seconds_before_end=chance.random() / 2)
            yield model, attack
        else:
            (kind,) = chance.choices(_KINDS, [each.share for each in _KINDS])
            yield kind.name, kind.make(chance)
