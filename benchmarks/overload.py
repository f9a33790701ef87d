"""Measures a server under ten times its capacity: time to reject, goodput, the share of each key.

    python benchmarks/overload.py --seconds 300

A real server uses a real engine process with a fake runner, so that its capacity is known. The
clients are one process on another core. The time that they and the machine add is measured too, by
requests for /health/live that are timed in the same way.

Requests come at a fixed rate, whatever the server answers. One of four keys sends most of them; the
three others send as much as the whole server can process, each. Each key must get a quarter.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).parents[1]))

import uvloop

from benchmarks.served.client import Served, resident_mib

SLOTS, NUM_TOKENS, STEP_SECONDS = 16, 40, 0.02  # tokens of a request: the mean
PROBES_A_SECOND = 50
GREEDY, MODEST = "key-of-the-greedy-client", "key-of-modest-client-"
KEYS = (GREEDY, *(f"{MODEST}{number}" for number in range(3)))
NUM_GREEDY_OF_TEN = 7  # requests that the first key sends; the others send one each
MIN_SHARE = 0.9  # of an equal share of the tokens, for each key
LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Wire(asyncio.Protocol):
    """A reused connection that notes when the first byte of a response comes."""

    def __init__(self, pool: deque[Wire]) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[None] | None = None
        self._is_stream = False
        self.received = bytearray()
        self.first_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionResetError("closed in mid-response"))

    def data_received(self, data: bytes) -> None:
        if not self.received:
            self.first_at = time.perf_counter()
        self.received += data
        if self._is_whole() and self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _is_whole(self) -> bool:
        head, mark, body = bytes(self.received).partition(b"\r\n\r\n")
        if not mark:
            return False
        if b"chunked" in head:
            return self.received.endswith(b"0\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return len(body) >= int(length)

    async def ask(self, data: bytes) -> tuple[int, float]:
        """Send a request; return the status and the seconds to the first byte."""
        self.received.clear()
        self._done = asyncio.get_running_loop().create_future()
        assert self._transport is not None
        began = time.perf_counter()
        self._transport.write(data)
        await self._done
        self._pool.append(self)
        return int(self.received[9:12]), self.first_at - began


class Load:
    """The clients of one server, and what they measured."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._pool: deque[Wire] = deque()
        # Several lengths, so that the requests do not all begin and end together.
        self.lengths = range(20, 2 * NUM_TOKENS - 19)
        self.requests = {key: [request(each, key) for each in self.lengths] for key in KEYS}
        self.num_asked = 0
        self.statuses: Counter[int] = Counter()
        self.served: list[tuple[float, float, int]] = []  # first token, end, tokens
        self.by_key: Counter[str] = Counter()  # tokens
        self.rejected: list[float] = []
        self.probed: list[float] = []
        self.broken = 0

    async def wire(self) -> Wire:
        """Return a free connection."""
        if self._pool:
            return self._pool.popleft()
        loop = asyncio.get_running_loop()
        made = await loop.create_connection(lambda: Wire(self._pool), "127.0.0.1", self._port)
        return made[1]

    async def one(self) -> None:
        """Send a request and record its result."""
        wire = await self.wire()
        self.num_asked += 1
        turn = self.num_asked % 10
        key = KEYS[max(0, turn - NUM_GREEDY_OF_TEN + 1)]
        index = 17 * (self.num_asked // 10 + turn) % len(self.lengths)
        num_tokens = self.lengths[index]
        try:
            status, seconds = await wire.ask(self.requests[key][index])
        except ConnectionResetError:
            self.broken += 1
            return
        self.statuses[status] += 1
        if status == 200:
            is_whole = b'"finish_reason":"length"' in wire.received and b"[DONE]" in wire.received
            self.broken += not is_whole
            self.by_key[key] += num_tokens
            self.served.append((wire.first_at, time.perf_counter(), num_tokens))
        else:
            self.rejected.append(seconds)

    async def probe(self) -> None:
        """Time a request that needs no work."""
        wire = await self.wire()
        self.probed.append((await wire.ask(LIVE))[1])

    async def closed(self, num_clients: int, seconds: float) -> float:
        """Run clients with one request each at a time; return tokens a second."""
        until = time.perf_counter() + seconds

        async def client() -> None:
            while time.perf_counter() < until:
                await self.one()

        await asyncio.gather(*(client() for _ in range(num_clients)))
        return self.rate(until - 0.8 * seconds, until)

    async def opened(self, a_second: float, seconds: float) -> float:
        """Send requests at a fixed rate, whatever their result; return tokens a second."""
        began = time.perf_counter()
        tasks: set[asyncio.Task[None]] = set()
        for kind, each in ((self.one, a_second), (self.probe, PROBES_A_SECOND)):
            tasks.add(asyncio.ensure_future(self._paced(kind, each, began, seconds, tasks)))
        while tasks:
            await asyncio.wait(tasks)
            for task in [task for task in tasks if task.done()]:
                task.result()
                tasks.discard(task)
        return self.rate(began + 0.2 * seconds, began + seconds)

    async def _paced(
        self, kind: Any, a_second: float, began: float, seconds: float, tasks: set[Any]
    ) -> None:
        for index in range(int(a_second * seconds)):
            await asyncio.sleep(max(0.0, began + index / a_second - time.perf_counter()))
            tasks.add(asyncio.ensure_future(kind()))

    def shares(self) -> dict[str, float]:
        """Return the tokens of each key, where 1 is an equal share."""
        total = max(1, self.by_key.total())
        return {key: len(KEYS) * self.by_key[key] / total for key in KEYS}

    def rate(self, since: float, until: float) -> float:
        """Return the tokens a second of accepted requests, each spread over its duration."""
        total = 0.0
        for first, end, num_tokens in self.served:
            inside = max(0.0, min(end, until) - max(first, since))
            total += num_tokens * inside / max(1e-9, end - first)
        return total / (until - since)


def request(num_tokens: int, key: str) -> bytes:
    """Return the bytes of a request for so many tokens."""
    body = {"prompt": [3] * 30, "max_tokens": num_tokens, "stream": True, "ignore_eos": True}
    data = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {key}\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def quantiles(seconds: list[float]) -> dict[str, float]:
    """Return quantiles in milliseconds."""
    ordered = sorted(seconds) or [float("nan")]
    places = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "worst": 1.0}
    last = len(ordered) - 1
    return {name: 1000 * ordered[round(share * last)] for name, share in places.items()}


def cpu_seconds(number: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(served: Served, seconds: float, factor: float) -> dict[str, Any]:
    """Measure the peak, and then the overload."""
    load = Load(served.port)
    await load.closed(SLOTS, 1.0)  # warm up
    peak = await load.closed(SLOTS + 4, max(4.0, seconds / 4))
    load.statuses.clear()
    number = served.process.pid
    rate = factor * peak / NUM_TOKENS
    await load.opened(rate, min(2.0, seconds / 4))  # opens the connections
    load.rejected.clear()
    load.probed.clear()
    load.by_key.clear()
    memory, spent = resident_mib(number), cpu_seconds(number)
    began = time.perf_counter()
    goodput = await load.opened(rate, seconds)
    span = time.perf_counter() - began
    return {
        "seconds": seconds,
        "peak_tokens_a_second": peak,
        "offered_requests_a_second": rate,
        "goodput_of_peak": goodput / peak,
        "equal_shares": load.shares(),
        "rejection_ms": quantiles(load.rejected),
        "health_live_ms": quantiles(load.probed),
        "server_cpu_ms_a_request": 1000 * (cpu_seconds(number) - spent) / (rate * seconds),
        "server_cpu_share": (cpu_seconds(number) - spent) / span,
        "resident_mib": {"before": memory, "after": resident_mib(number)},
        "statuses": dict(load.statuses),
        "broken": load.broken,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--factor", type=float, default=10.0)
    options = parser.parse_args()
    settings = {
        "model": None,
        "engine": f"fake?step={STEP_SECONDS}&slots={SLOTS}",
        "server": {"max_waiting_requests": 32, "api_keys": KEYS},
    }
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:  # the server and its engine inherit the first core
        os.sched_setaffinity(0, {cores[0]})
    with Served(settings) as served:
        if len(cores) > 1:
            os.sched_setaffinity(0, set(cores[1:]))
        report = uvloop.run(measure(served, options.seconds, options.factor))
        served.end()
    print(json.dumps(report, indent=2))
    is_fair = min(report["equal_shares"].values()) >= MIN_SHARE
    is_right = not report["broken"] and set(report["statuses"]) <= {200, 429}
    return int(not (is_fair and is_right))


if __name__ == "__main__":
    sys.exit(main())
