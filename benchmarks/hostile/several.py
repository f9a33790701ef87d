"""A server with three small models, of which two have room, and one key that asks for all of them.

It names models that do not exist, sends bodies that name none, has models loaded, put to sleep and
unloaded, and leaves while they load. The other key's model is answered all the while, with the same
tokens.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.hostile.attack import (
    ATTACK_KEY,
    COMPLETIONS,
    WATCH_KEY,
    Attack,
    Ending,
    Right,
    request,
)
from benchmarks.hostile.client import Outcome, attack_beside, carry_out
from benchmarks.served.command import port_of, running
from tests.api.tiny import make_model

NAMES = ("a", "b", "c")
LARGE_BYTES = 8_000_000
LIMIT_SECONDS = 300.0
_WATCHED = {"model": "a", "prompt": "Hi", "max_tokens": 60, "temperature": 0, "ignore_eos": True}


def attack_models(num_requests: int, directory: Path, seed: int) -> list[str]:
    """Return what is wrong with a server of several models that is attacked."""
    for name in NAMES:
        (directory / name).mkdir(parents=True)
        make_model(directory / name)
    log, attacks = directory / "log", _attacks(num_requests, random.Random(seed))
    with log.open("w") as file, _serving(directory, file.fileno()) as (process, port):
        faults = asyncio.run(attack_beside(port, attacks, _fault_of, _watch))
        process.send_signal(signal.SIGTERM)
        code = process.wait(LIMIT_SECONDS)
    if code:
        faults.append(f"the exit code is {code}")
    if "Traceback" in log.read_text():
        faults.append("the log has a traceback")
    return [f"several models: {fault}" for fault in faults]


@contextmanager
def _serving(directory: Path, log: int) -> Iterator[tuple[subprocess.Popen[str], int]]:
    words = ["serve", "--models-dir", str(directory), "--models-max", "2", "--port", "0"]
    words += ["--num-threads", "1", "--models-wait-seconds", "2"]
    words += ["--api-key", WATCH_KEY, ATTACK_KEY]
    with running(*words, log=log, environment={"OMP_NUM_THREADS": "1"}) as process:
        yield process, port_of(process)


def _fault_of(name: str, attack: Attack, outcome: Outcome) -> str | None:
    """Return what is wrong with what an attack has got."""
    if attack.right is Right.LEFT:
        return None
    if outcome.malformed or outcome.is_late or len(outcome.answers) != 1:
        return str(outcome)
    status = outcome.answers[0].status
    is_right = 400 <= status < 500
    if attack.right is Right.SERVED:
        is_right = status in (200, 429, 503) or (name == "change" and status == 400)
    return None if is_right else f"{status} {bytes(outcome.answers[0].body[:200])!r}"


async def _watch(port: int, clients: list[asyncio.Task[None]], faults: list[str]) -> None:
    """Ask for the watched model until the attack is over: its text is always the same.

    It may have been put to sleep between two requests, and have to wait for its turn.
    """
    sent = request(COMPLETIONS, json.dumps(_WATCHED).encode(), key=WATCH_KEY)
    texts: set[str] = set()
    count = 0
    while not all(each.done() for each in clients) or not count:
        outcome = await carry_out(Attack((sent,), Right.SERVED), port)
        if len(outcome.answers) != 1:
            faults.append(f"the watched model gave no answer: {outcome}")
            return
        answer = outcome.answers[0]
        if answer.status == 200:
            texts.add(json.loads(answer.body)["choices"][0]["text"])
            count += 1
        elif answer.status != 503 or b"models_busy" not in bytes(answer.body):
            faults.append(f"the watched model: {answer.status} {bytes(answer.body[:200])!r}")
            return
    if len(texts) != 1:
        faults.append(f"the watched model gave {len(texts)} different texts")


def _attacks(num_requests: int, chance: random.Random) -> Iterator[tuple[str, Attack]]:
    """Yield attacks, each with its name."""
    numbers = b"[" + b"1," * (LARGE_BYTES // 2) + b"1]"
    wrong = {
        "unknown": b'{"model":"../../etc/passwd","prompt":"x"}',
        "none": b'{"prompt":"x"}',
        "list": b'{"model":["a"],"prompt":"x"}',
        "long": b'{"model":"' + b"a" * 100_000 + b'","prompt":"x"}',
        "nested": b'{"model":' + b"[" * 50_000,
        "numbers": b'{"x":' + numbers + b',"model":"nobody"}',
        "cut": b'{"model":"b","prompt":"x"',
    }
    for _ in range(num_requests):
        kind = chance.randrange(10)
        if kind < 5:
            name = chance.choice([*wrong])
            sent = request(COMPLETIONS, wrong[name], key=ATTACK_KEY)
            yield name, Attack((sent,), Right.REFUSED)
            continue
        model = chance.choice("abc")
        body = json.dumps({"model": model, "prompt": "x", "max_tokens": 2}).encode()
        attack = Attack((request(COMPLETIONS, body, key=ATTACK_KEY),), Right.SERVED)
        if kind == 5:
            asleep = json.dumps({"model": model, "keep_alive": 0}).encode()
            sent = request("/api/generate", asleep, key=ATTACK_KEY)
            yield "sleep", Attack((sent,), Right.SERVED)
        elif kind == 6:
            path = chance.choice(("/models/load", "/models/unload"))
            change = request(path, json.dumps({"model": model}).encode(), key=ATTACK_KEY)
            yield "change", Attack((change,), Right.SERVED)
        elif kind < 8:
            yield "leaves", replace(attack, right=Right.LEFT, ending=Ending.LEAVE)
        else:
            yield "switch", attack
