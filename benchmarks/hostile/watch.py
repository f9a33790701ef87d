"""A process with streams that nothing may disturb: their texts, and the gaps between their tokens.

    python benchmarks/hostile/watch.py '{"port": 8000, "num_streams": 16, ...}'

It runs every request once, whose texts are the right ones, then measures the gaps of the
undisturbed server and prints them as a line of JSON. It goes on until its standard input is closed,
and prints what it saw since.

A gap counts less the time for which the machine let the server, the engine or this process wait for
a processor: that time says how busy the machine was, and nothing about the server.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import uvloop

from benchmarks.hostile.answers import AnswerReader, MalformedError
from benchmarks.hostile.attack import CHAT, COMPLETIONS, WATCH_KEY, request

NUM_TOKENS = 150
SAMPLE_SECONDS = 0.02
NOTED_SECONDS = 0.05  # shorter gaps are counted, and not listed
LIMIT_SECONDS = 300.0
TOKEN = b'"token_ids":['  # begins the tokens of a frame; those of the prompt have another name
Said = tuple[str, tuple[int, ...], str]


@dataclass(frozen=True)
class Gap:
    """The time between two reads of one stream."""

    began: float
    ended: float
    waited: float  # for a processor

    @property
    def seconds(self) -> float:
        """The gap without the time for which the machine was busy."""
        return max(0.0, self.ended - self.began - self.waited)


class Waits:
    """The time for which the threads of some processes waited for a processor."""

    def __init__(self, processes: list[int]) -> None:
        self._folders = [Path(f"/proc/{number}/task") for number in processes]
        self._times: list[float] = []
        self._sums: list[float] = []

    def start(self) -> None:
        """Sample from now on, in a thread."""
        threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        while True:
            self._sums.append(sum(map(seconds_waited, self._folders)))
            self._times.append(time.monotonic())
            time.sleep(SAMPLE_SECONDS)

    def between(self, began: float, ended: float) -> float:
        """Return the seconds of waiting between two times."""
        first = max(0, bisect.bisect_right(self._times, began) - 1)
        last = min(len(self._times) - 1, bisect.bisect_left(self._times, ended))
        return max(0.0, self._sums[last] - self._sums[first])


def seconds_waited(folder: Path) -> float:
    """Return for how long the living threads of a process have waited for a processor so far."""
    total = 0
    with contextlib.suppress(OSError):  # the process or a thread has just ended
        for thread in folder.iterdir():
            total += int((thread / "schedstat").read_text().split()[1])
    return total / 1e9


@dataclass
class Phase:
    """Observations of the streams in one part of the run."""

    num_requests: int = 0
    num_reads: int = 0
    wrong: list[str] = field(default_factory=list)
    first_token_seconds: list[float] = field(default_factory=list)
    long: list[tuple[float, float]] = field(default_factory=list)  # gaps: begin and end

    def report(self, waits: Waits) -> dict[str, Any]:
        """Return the figures in milliseconds, the worst gaps first."""
        gaps = [Gap(began, ended, waits.between(began, ended)) for began, ended in self.long]
        gaps.sort(key=lambda gap: -gap.seconds)
        firsts = sorted(self.first_token_seconds) or [0.0]
        return {
            "requests": self.num_requests,
            "reads": self.num_reads,
            "wrong": self.wrong,
            "worst_gap_ms": 1000 * gaps[0].seconds if gaps else 0.0,
            "worst_gap_with_waits_ms": 1000 * max((b - a for a, b in self.long), default=0.0),
            "first_token_ms": {"p50": 1000 * firsts[len(firsts) // 2], "worst": 1000 * firsts[-1]},
            "worst_gaps": [
                {"at": gap.began, "ms": 1000 * gap.seconds, "waited_ms": 1000 * gap.waited}
                for gap in gaps[:10]
            ],
        }


class Stream(asyncio.Protocol):
    """A connection that serves one response after the other, and notes the gaps."""

    def __init__(self, phase: Callable[[], Phase]) -> None:
        self.transport: Any = None
        self._phase = phase  # the current one
        self._reader = AnswerReader()
        self._news = asyncio.Event()
        self._last = 0.0  # when the last data came; zero before the first token
        self._error: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._error = self._error or "the connection was closed"
        self._news.set()

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        phase = self._phase()
        if self._last:
            phase.num_reads += 1
            if now - self._last > NOTED_SECONDS:
                phase.long.append((self._last, now))
            self._last = now
        elif TOKEN in data:  # the head may come earlier, when a request waits for its turn
            phase.first_token_seconds.append(now - self._began)
            self._last = now
        try:
            self._reader.feed(data)
        except MalformedError as error:
            self._error = str(error)
        if self._error or self._reader.num_whole:
            self._news.set()

    async def ask(self, sent: bytes) -> Said:
        """Send a request; return the text, the tokens and the reason of the end."""
        self._reader, self._last, self._began = AnswerReader(), 0.0, time.monotonic()
        self._news.clear()
        self.transport.write(sent)
        async with asyncio.timeout(LIMIT_SECONDS):
            await self._news.wait()
        self._phase().num_requests += 1
        if self._error:
            raise MalformedError(self._error)
        (answer,) = self._reader.answers
        if answer.status != 200:
            raise MalformedError(f"status {answer.status}: {bytes(answer.body[:200])!r}")
        return said_in(bytes(answer.body))


def said_in(body: bytes) -> Said:
    """Return what a stream says; raise MalformedError if it has no end or an error."""
    text, reason = "", ""
    tokens: list[int] = []
    frames = [each[6:] for each in body.decode().split("\n\n") if each.startswith("data: ")]
    if not frames or frames.pop() != "[DONE]":
        raise MalformedError("the stream has no end")
    for frame in frames:
        part = json.loads(frame)
        if "error" in part:
            raise MalformedError(str(part["error"]))
        for choice in part["choices"]:
            text += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            tokens += choice.get("token_ids") or []
            reason = choice["finish_reason"] or reason
    return text, tuple(tokens), reason


def watched_request(index: int) -> bytes:
    """Return the request of one stream; its text depends on nothing but itself."""
    body: dict[str, Any] = {
        "max_tokens": NUM_TOKENS + 7 * index,  # so that they do not all end together
        "ignore_eos": True,
        "temperature": 0.8 if index % 2 else 0.0,
        "seed": index,
        "stream": True,
        "return_token_ids": True,
    }
    if index % 4 == 0:
        body["messages"] = [{"role": "user", "content": f"Count to {index}."}]
    elif index % 4 == 1:
        body["prompt"] = f"The story of number {index} begins in the country."
    else:
        body["prompt"] = [3 + (index * step) % 50 for step in range(1, 20 + index)]
    path = CHAT if "messages" in body else COMPLETIONS
    return request(path, json.dumps(body).encode(), key=WATCH_KEY)


class Watch:
    """The watched streams, and the texts that they must have."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._port = settings["port"]
        self._requests = [watched_request(index) for index in range(settings["num_streams"])]
        self._baseline_seconds = settings["baseline_seconds"]
        self._waits = Waits([*settings["processes"], os.getpid()])
        self._truth: dict[int, Said] = {}
        self._phase = Phase()
        self._is_over = False

    async def run(self) -> None:
        """Record the texts, measure the baseline, and watch until the input is closed."""
        self._waits.start()
        streams = [await self._connect() for _ in self._requests]
        texts = await asyncio.gather(
            *(stream.ask(sent) for stream, sent in zip(streams, self._requests, strict=True))
        )
        self._truth = dict(enumerate(texts))
        tasks = [asyncio.ensure_future(self._follow(*each)) for each in enumerate(streams)]
        await asyncio.sleep(self._baseline_seconds)
        print(json.dumps(self._phase.report(self._waits)), flush=True)
        self._phase = Phase()
        await asyncio.to_thread(sys.stdin.read)
        self._is_over = True
        await asyncio.gather(*tasks)
        print(json.dumps(self._phase.report(self._waits)), flush=True)

    async def _connect(self) -> Stream:
        loop = asyncio.get_running_loop()
        _, stream = await loop.create_connection(
            lambda: Stream(lambda: self._phase), "127.0.0.1", self._port
        )
        return stream

    async def _follow(self, index: int, stream: Stream) -> None:
        """Send one request again and again, and compare what it says."""
        while not self._is_over:
            try:
                said = await stream.ask(self._requests[index])
            except (MalformedError, TimeoutError) as error:
                self._phase.wrong.append(f"stream {index}: {error!r}")
                stream.transport.abort()
                await asyncio.sleep(0.2)
                stream = await self._connect()
                continue
            if said != self._truth[index]:
                self._phase.wrong.append(f"stream {index} differs: {said[0][-80:]!r}")


if __name__ == "__main__":
    uvloop.run(Watch(json.loads(sys.argv[1])).run())
