"""Runs the server under mixed load, with clients that leave or attack, and kills its engines.

    python benchmarks/soak.py --seconds 900 [--model smollm2]

A real server process uses a real engine process, which is killed again and again. No request may
be lost, every response must equal that of the undisturbed run, no hostile request may lead to a
500, and at the end nothing may be left behind: blocks, slots, tasks, threads, descriptors, memory.
The exit code is 1 if any of this fails.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.hostile.attack import Right
from benchmarks.hostile.client import carry_out
from benchmarks.hostile.run import ALL_KINDS, attack_number, warm_up
from benchmarks.hostile.verdict import fault_of
from benchmarks.served.client import (
    LeftError,
    LostError,
    Manner,
    Served,
    ask,
    catalogue,
    metric,
)
from benchmarks.served.leaks import holdings, holdings_in_the_end, leaks, settle

STALL_SECONDS = 3.0
SETTINGS: dict[str, Any] = {
    "model": None,
    "options": {"max_model_len": 1024, "max_num_seqs": 16},  # for a real model
    "engine": "fake?step=0.005&slots=16&blocks=800&vocabulary=300",
    "server": {
        "stall_seconds": STALL_SECONDS,
        "header_seconds": STALL_SECONDS,
        "body_seconds": STALL_SECONDS,
        "template_seconds": 1.0,
        "trust_request_chat_template": True,
        "max_waiting_requests": 12,
        # Full within minutes: what is kept by design would grow like a leak.
        "responses_bytes": 4 << 20,
    },
}
TOKENS = "generation_tokens_total"
RESTART_SECONDS = 300.0  # a real model must be loaded
LEAST_WEIGHTS = 40  # fewer show what is in memory at a moment, not what grows
MAX_GROWTH_MIB = 16.0  # from the mean of the second quarter to that of the last
RIGHT_AMID_KILLS = {
    Right.REFUSED: Right.SERVED,
    Right.SERVED: Right.SERVED,
    Right.REFUSED_OR_CLOSED: Right.LEFT,
    Right.LEFT: Right.LEFT,
}
MANNERS = {
    "whole": (Manner(), 0.7),
    "slow": (Manner(pace=0.05), 0.1),
    "leaves": (Manner(leaves_after=1), 0.12),
    "leaves later": (Manner(leaves_after=4), 0.06),
    "never reads": (Manner(never_reads=True), 0.02),
}


@dataclass(frozen=True)
class Load:
    """The amount of load; a real model must make progress between two kills."""

    num_kinds: int = 60  # of requests
    num_clients: int = 24
    num_hostile: int = 3
    kill_seconds: float = 7.5  # the longest time from an engine's start to its kill
    least_kills: int = 0  # a run on a slow machine takes longer until there were so many


REAL = Load(num_kinds=12, num_clients=6, num_hostile=1, kill_seconds=40.0)


class Soak:
    """A run of the soak test, with its counts and faults."""

    def __init__(self, served: Served, seconds: float, seed: int, load: Load) -> None:
        self.served = served
        self.load = load
        self.seconds = seconds
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.memory: list[tuple[float, float]] = []
        self.restart_seconds: list[float] = []
        self.truth: list[Any] = []
        self._over = asyncio.Event()  # the clients have ended

    async def run(self) -> dict[str, Any]:
        """Run the whole test; return the report."""
        served = self.served
        self.kinds = catalogue(served.start["vocabulary"], self.load.num_kinds, self.random)
        for body in self.kinds:
            answer = await ask(served.port, body)
            if answer.status != 200 or not answer.is_ended:
                raise LostError(f"the undisturbed run failed: {answer}")
            self.truth.append(answer.said())
        await warm_up(served)
        await self._settle()
        before = holdings(served)
        self._began = time.monotonic()
        others = [asyncio.ensure_future(each) for each in (self._kill(), self._weigh())]
        clients = [
            self._client(random.Random(f"{index}")) for index in range(self.load.num_clients)
        ]
        hostile = [self._attack(index) for index in range(self.load.num_hostile)]
        await asyncio.gather(*clients, *hostile)
        self._over.set()
        await asyncio.gather(*others)
        await self._settle()
        after = await holdings_in_the_end(served, before)
        self._compare(before, after)
        return self._report(before, after)

    def _goes_on(self) -> bool:
        """Return whether clients send further requests."""
        has_time = time.monotonic() < self._began + self.seconds
        return has_time or (self.counts["kills"] < self.load.least_kills and not self.faults)

    async def _client(self, chance: random.Random) -> None:
        names = list(MANNERS)
        weights = [share for _, share in MANNERS.values()]
        while self._goes_on():
            which = chance.randrange(self.load.num_kinds)
            (name,) = chance.choices(names, weights)
            await self._one(which, name)
            await asyncio.sleep(chance.choice([0.0, 0.0, 0.2]))

    async def _attack(self, number: int) -> None:
        """Send hostile requests of all kinds; while engines die, any may be refused with a 503."""
        index = number
        while self._goes_on():
            kind, attack = attack_number(index, seed=2, kinds=ALL_KINDS)
            index += self.load.num_hostile
            attack = replace(attack, right=RIGHT_AMID_KILLS[attack.right])
            fault = fault_of(attack, await carry_out(attack, self.served.port))
            self.counts["hostile"] += 1
            if fault is not None:
                self.faults.append(f"{kind.name}, attack {index}: {fault}")

    async def _one(self, which: int, name: str) -> None:
        """Send one request, again while it is rejected, and check the response."""
        for _ in range(200):
            try:
                answer = await ask(self.served.port, self.kinds[which], MANNERS[name][0])
            except LeftError:
                self.counts[name] += 1
                return
            except (LostError, OSError) as error:
                self._lose(which, name, repr(error))
                return
            if answer.status not in (429, 503):
                break
            self.counts["rejected"] += 1
            await asyncio.sleep(min(1.0, answer.retry_seconds))
        if answer.status != 200 or answer.error() or not answer.is_ended:
            self._lose(which, name, f"{answer.status} {answer.error()}")
        elif answer.said() != self.truth[which]:
            self._lose(which, name, "the response differs from the undisturbed one")
        else:
            self.counts[f"{name}: exact"] += 1

    def _lose(self, which: int, name: str, why: str) -> None:
        self.counts["lost"] += 1
        self.faults.append(f"request {which} ({name}): {why}")

    async def _kill(self) -> None:
        """Kill the engine again and again, and measure the time until the next is ready.

        Each makes a token first: a server gives up after several engines in a row that make none.
        """
        num_tokens = await metric(self.served, TOKENS)
        while not self._over.is_set():
            await self._pause(self.random.uniform(0.5, self.load.kill_seconds))
            while await metric(self.served, TOKENS) == num_tokens and not self._over.is_set():
                await self._pause(0.05)
            number = self.served.engine()
            if number is None or self._over.is_set():
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
            self.counts["kills"] += 1
            began = time.monotonic()
            while self.served.engine() in (None, number) or not await metric(self.served, "ready"):
                if time.monotonic() > began + RESTART_SECONDS:
                    self.faults.append(f"no engine followed one within {RESTART_SECONDS:g} s")
                    return
                await asyncio.sleep(0.02)
            self.restart_seconds.append(time.monotonic() - began)
            num_tokens = await metric(self.served, TOKENS)

    async def _weigh(self) -> None:
        while not self._over.is_set():
            self.memory.append((time.monotonic(), self.served.resident_mib()))
            await self._pause(0.5)

    async def _pause(self, seconds: float) -> None:
        """Wait for so long, or until the clients have ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()

    async def _settle(self) -> None:
        fault = await settle(self.served)
        if fault:
            self.faults.append(fault)

    def _compare(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        self.faults += leaks(before, after)
        if len(self.memory) >= LEAST_WEIGHTS and self.growth_mib() > MAX_GROWTH_MIB:
            self.faults.append(f"memory grows: {self.growth_mib():.1f} MiB")

    def growth_mib(self) -> float:
        """Return the growth from the mean of the second quarter to that of the last."""
        weights = [each for _, each in self.memory]
        size = max(1, len(weights) // 4)
        second, last = weights[size : 2 * size], weights[-size:]
        return sum(last) / size - sum(second) / max(1, len(second))

    def slope_mib_an_hour(self) -> float:
        """Return the slope of a least-squares line through the second half."""
        half = self.memory[len(self.memory) // 2 :]
        mean_at = sum(at for at, _ in half) / len(half)
        mean = sum(each for _, each in half) / len(half)
        spread = sum((at - mean_at) ** 2 for at, _ in half) or 1.0
        return 3600 * sum((at - mean_at) * (each - mean) for at, each in half) / spread

    def _report(self, before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
        restarts = sorted(self.restart_seconds)
        return {
            "seconds": self.seconds,
            "counts": dict(sorted(self.counts.items())),
            "seconds_to_ready_after_a_kill": {
                "median": restarts[len(restarts) // 2] if restarts else None,
                "worst": restarts[-1] if restarts else None,
            },
            "resident_mib": {"first": self.memory[0][1], "last": self.memory[-1][1]},
            "growth_mib": self.growth_mib(),
            "slope_mib_an_hour": self.slope_mib_an_hour(),
            "before": before,
            "after": after,
            "faults": self.faults,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=900.0)
    parser.add_argument("--model", help="a real model instead of the fake runner")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    load = REAL if options.model else Load()
    with Served(SETTINGS | {"model": options.model}) as served:
        report = asyncio.run(Soak(served, options.seconds, options.seed, load).run())
        code = served.end()
        if code:
            report["faults"].append(f"its exit code is {code}")
    print(json.dumps(report, indent=2))
    return int(bool(report["faults"]))


if __name__ == "__main__":
    sys.exit(main())
