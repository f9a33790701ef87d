"""The whole run: a real server, watched streams, a mix of attacks, and the faults found."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.hostile import bodies, costly, framing, heads, manners, shapes
from benchmarks.hostile.adapters import routes
from benchmarks.hostile.attack import (
    ATTACK_KEY,
    CHAT,
    WATCH_KEY,
    Attack,
    Kind,
    Right,
    post,
)
from benchmarks.hostile.client import carry_out
from benchmarks.hostile.flood import flood
from benchmarks.hostile.live import listeners
from benchmarks.hostile.occupation import occupy
from benchmarks.hostile.verdict import fault_of
from benchmarks.served.client import LostError, Served, peak_mib, resident_mib
from benchmarks.served.leaks import holdings, holdings_in_the_end, leaks, settle

ALL_KINDS: tuple[Kind, ...] = tuple(
    kind
    for module in (bodies, heads, framing, manners, listeners, costly, shapes, routes)
    for kind in module.KINDS
)
MAX_CONNECTIONS = 800
# The limits of time are shorter than by default, so that slow clients do not prolong the run.
SETTINGS: dict[str, Any] = {
    "measures_holds": True,
    # For a real model.
    "options": {"max_model_len": 2048, "max_num_seqs": 64, "enable_lora": True},
    "has_adapters": True,  # for the fake one
    "engine": "fake?step=0.02&slots=64&blocks=40000&vocabulary=300",
    "server": {
        "api_keys": [WATCH_KEY, ATTACK_KEY],
        "max_connections": MAX_CONNECTIONS,
        "header_seconds": 3.0,
        "body_seconds": 3.0,
        "stall_seconds": 3.0,
        "template_seconds": 1.0,
        "trust_request_chat_template": True,
        "allow_runtime_lora_updating": True,
    },
}
MAX_GAP_MS = 100.0  # beyond the longest of the undisturbed server
MAX_HOLD_MS = 100.0  # of the event loop, in processor time
MAX_FRONT_END_MB = 300.0
KEPT_FAULTS = 3  # of each kind
NICENESS = 10  # of the hostile clients, which would run on other machines


@dataclass(frozen=True)
class Options:
    """The amount of the run."""

    num_requests: int = 10_000
    num_clients: int = 24
    num_streams: int = 16
    baseline_seconds: float = 10.0
    max_seconds: float = 1800.0
    seed: int = 1
    niceness: int = NICENESS  # of this process, from then on
    kinds: Sequence[Kind] = ALL_KINDS
    model: str | None = None


@dataclass
class Tally:
    """Counts of the responses and of the faults, by kind of attack."""

    sent: Counter[str] = field(default_factory=Counter)
    statuses: dict[str, Counter[str]] = field(default_factory=dict)
    faults: dict[str, list[str]] = field(default_factory=dict)
    num_faults: Counter[str] = field(default_factory=Counter)
    worst_worker_mib: float = 0.0
    spans: list[tuple[float, float, str]] = field(default_factory=list)  # of attacks

    def add(self, kind: str, statuses: list[int], fault: str | None, index: int) -> None:
        """Count an attack with the statuses of its responses."""
        self.sent[kind] += 1
        counter = self.statuses.setdefault(kind, Counter())
        counter.update(str(status) for status in statuses)
        if not statuses:
            counter["none"] += 1
        if fault is not None:
            self.num_faults[kind] += 1
            kept = self.faults.setdefault(kind, [])
            if len(kept) < KEPT_FAULTS:
                kept.append(f"attack {index}: {fault}")

    def around(self, hold: float, at: float) -> dict[str, Any]:
        """Return the length of a hold, and the attacks that were going on."""
        names = [name for began, ended, name in self.spans if began <= at <= ended]
        return {"ms": round(hold, 1), "attacks": names}


def attack_number(index: int, seed: int, kinds: Sequence[Kind]) -> tuple[Kind, Attack]:
    """Return one attack of a mix: each kind once, and then by their shares."""
    chance = random.Random(f"{seed} {index}")
    if index < len(kinds):
        kind = kinds[index]
    else:
        (kind,) = chance.choices(kinds, [each.share for each in kinds])
    return kind, kind.make(chance)


async def attack_all(served: Served, options: Options, tally: Tally) -> None:
    """Send the mix from several clients at once."""
    until = time.monotonic() + options.max_seconds
    indices = iter(range(options.num_requests))

    async def client(number: int) -> None:
        source = f"127.0.0.{2 + number % 8}"
        for index in indices:
            if time.monotonic() > until:
                return
            kind, attack = attack_number(index, options.seed, options.kinds)
            began = time.monotonic()
            outcome = await carry_out(attack, served.port, source)
            tally.spans.append((began, time.monotonic(), f"{kind.name} {index}"))
            statuses = [answer.status for answer in outcome.answers]
            tally.add(kind.name, statuses, fault_of(attack, outcome), index)

    await asyncio.gather(*(client(number) for number in range(options.num_clients)))


async def warm_up(served: Served) -> None:
    """Start each kind of prompt worker by a job for it."""
    messages = [{"role": "user", "content": "Hello"}]
    template, shape = {"chat_template": "{{ messages[0].content }}"}, {"regex": "a"}
    for more in ({}, template, shape):
        body = {"messages": messages, "max_tokens": 1, **more}
        outcome = await carry_out(Attack((post(CHAT, body),), Right.SERVED), served.port)
        if [answer.status for answer in outcome.answers] != [200]:
            raise LostError(f"the server does not serve: {outcome}")
    await settle(served)


async def _weigh(served: Served, tally: Tally) -> None:
    """Note the memory of the prompt workers, time and again."""
    while True:
        engine = served.engine()
        for number in served.children():
            if number != engine:
                try:
                    tally.worst_worker_mib = max(tally.worst_worker_mib, resident_mib(number))
                except (OSError, IndexError):  # it has just ended
                    continue
        await asyncio.sleep(0.5)


class Watcher:
    """The process with the watched streams."""

    def __init__(self, served: Served, options: Options) -> None:
        settings = {
            "port": served.port,
            "num_streams": options.num_streams,
            "baseline_seconds": options.baseline_seconds,
            "processes": [served.process.pid, served.engine()],
        }
        program = Path(__file__).with_name("watch.py")
        command = [sys.executable, str(program), json.dumps(settings)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def report(self) -> dict[str, Any]:
        """Wait for its next report."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise LostError("the process with the watched streams has ended")
        report: dict[str, Any] = json.loads(line)
        return report

    def end(self) -> None:
        """Kill it, if it has not ended."""
        self.process.kill()
        with self.process:  # closes the pipes, and waits
            pass

    def finish(self) -> dict[str, Any]:
        """Let the streams end; return what they showed."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.report()


async def show(served: Served, options: Options, index: int) -> None:
    """Carry out one attack of a mix, and print it with its responses."""
    kind, attack = attack_number(index, options.seed, options.kinds)
    outcome = await carry_out(attack, served.port)
    sent = b"".join(attack.pieces)
    print(f"{kind.name}: {len(sent)} bytes, {attack.right.name}, {attack.ending.name}")
    print(sent[:1000], *([b"...", sent[-200:]] if len(sent) > 1000 else []), sep="\n")
    for answer in outcome.answers:
        print(answer.status, answer.headers, bytes(answer.body[:1000]), sep="\n")
    print("fault:", fault_of(attack, outcome))
    print(
        "longest holds, in ms:", [round(hold, 1) for hold, _ in served.held()["longest_holds_ms"]]
    )


async def measure(served: Served, options: Options, log: Path) -> dict[str, Any]:
    """Run everything against a server; return the report."""
    engine = served.engine()
    tally = Tally()
    await warm_up(served)
    before = holdings(served)
    watcher = Watcher(served, options)
    os.nice(options.niceness)
    try:
        baseline = await asyncio.to_thread(watcher.report)
        served.held()  # the holds so far
        weighing = asyncio.ensure_future(_weigh(served, tally))
        began = time.monotonic()
        await attack_all(served, options, tally)
        seconds = time.monotonic() - began
        holds = served.held()["longest_holds_ms"]
        flooded = await flood(served.port, MAX_CONNECTIONS)
        flooded += await occupy(served.port)
        weighing.cancel()
        attacked = await asyncio.to_thread(watcher.finish)
    finally:
        watcher.end()
    # Hundreds of connections that open or close at once are accepted or freed in one pass.
    flood_holds = served.held()["longest_holds_ms"]
    unsettled = await settle(served)
    after = await holdings_in_the_end(served, before)
    peak_mb = peak_mib(served.process.pid) * 1.048576
    faults = [f"{kind}: {fault}" for kind, found in tally.faults.items() for fault in found]
    faults += [f"watched: {wrong}" for wrong in attacked["wrong"][:10]]
    faults += leaks(before, after) + flooded + ([unsettled] if unsettled else [])
    faults += log_faults(log)
    if peak_mb > MAX_FRONT_END_MB:
        faults.append(f"the front end took {peak_mb:.0f} MB, above {MAX_FRONT_END_MB:.0f} MB")
    if served.engine() != engine:
        faults.append("the engine was restarted")
    return {
        "attacks": sum(tally.sent.values()),
        "seconds": seconds,
        "statuses": {kind: dict(counts) for kind, counts in tally.statuses.items()},
        "baseline": baseline,
        "attacked": attacked,
        "longest_hold_of_flood_ms": flood_holds[0][0] if flood_holds else 0.0,
        "longest_holds": [tally.around(hold, at) for hold, at in holds],
        "front_end_peak_mb": peak_mb,
        "worst_prompt_worker_mib": tally.worst_worker_mib,
        "before": before,
        "after": after,
        "faults_by_kind": dict(tally.num_faults),
        "faults": faults,
        "pauses": pauses(baseline, attacked, holds, options),
    }


def pauses(
    baseline: dict[str, Any],
    attacked: dict[str, Any],
    holds: list[tuple[float, float]],
    options: Options,
) -> list[str]:
    """Return the pauses that are too long: faults, too, but their length is the machine's."""
    found = []
    limit = baseline["worst_gap_ms"] + MAX_GAP_MS
    # The steps of a real model take longer while it computes long prompts: its gaps are reported.
    if options.model is None and attacked["worst_gap_ms"] > limit:
        found.append(f"a gap of {attacked['worst_gap_ms']:.0f} ms, above {limit:.0f} ms")
    if holds and holds[0][0] > MAX_HOLD_MS:
        found.append(f"the event loop was held for {holds[0][0]:.0f} ms of processor time")
    return found


def log_faults(log: Path) -> list[str]:
    """Return the tracebacks in the server's log: a request must not lead to one."""
    text = log.read_text("utf-8", "replace")
    return [
        f"the log has a traceback that ends in {last_line(part)!r}"
        for part in text.split("Traceback (most recent call last):")[1:][:KEPT_FAULTS]
    ]


def last_line(traceback: str) -> str:
    """Return where a traceback ends, and the exception."""
    lines = traceback.split("\n")
    end = next((at for at, line in enumerate(lines) if at and line[:1].strip()), len(lines) - 1)
    return " | ".join(line.strip() for line in lines[max(0, end - 2) : end + 1])[:500]
