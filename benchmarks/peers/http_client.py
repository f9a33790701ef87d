"""The HTTP client for all servers: streams of token ids, and the time of each part.

It shares the processors with the server, so during the measurement it only records when bytes
arrive, and parses them afterwards.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

MARK = b"\ndata: {"  # an event begins a line
LIMIT_SECONDS = 600


class ClientError(RuntimeError):
    """A server's answer that is not what was requested."""


@dataclass
class Stream(asyncio.Protocol):
    """One request over a connection of its own, which the server closes."""

    asked: bytes
    ended: asyncio.Future[None]
    began: float = 0.0
    parts: list[tuple[float, bytes]] = field(default_factory=list)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.began = time.perf_counter()
        transport.write(self.asked)

    def data_received(self, data: bytes) -> None:
        self.parts.append((time.perf_counter(), data))

    def connection_lost(self, error: Exception | None) -> None:
        del error  # what is missing shows when the answer is read
        if not self.ended.done():
            self.ended.set_result(None)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer: tokens by the server's own count, and the time of each event with tokens."""

    began: float
    tokens: int
    events: tuple[float, ...]
    text: str = ""
    timings: Mapping[str, Any] = field(default_factory=dict)  # what llama-server says of it


def request(
    port: int, prompt: list[int], output_tokens: int, model: str = "model", **more: Any
) -> bytes:
    """Return the bytes of a request that cannot end before all tokens are generated."""
    body = json.dumps(
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **more,
        }
    ).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def read(stream: Stream) -> Answer:
    """Parse the answer of a stream that has ended."""
    whole = b"".join(data for _, data in stream.parts)
    head, _, body = whole.partition(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0] + b" ":
        raise ClientError(f"the server refused: {whole[:500]!r}")
    begin = len(whole) - len(body)
    chunks = [(begin, body)]
    if b"transfer-encoding: chunked" in head.lower():
        chunks = list(_chunks(whole, begin))
    text = b"\n" + b"".join(chunk for _, chunk in chunks)
    if b"data: [DONE]" not in text:
        raise ClientError(f"the stream broke off: {text[-300:]!r}")
    events, texts, usage = [], [], None
    timings: dict[str, Any] = {}
    clock = _Clock(stream.parts, chunks)
    at = text.find(MARK)
    while at >= 0:
        event: dict[str, Any] = json.loads(text[at + len(MARK) - 1 :].partition(b"\n")[0])
        usage = event.get("usage") or usage
        timings = event.get("timings") or timings
        choices = event.get("choices")
        # An event without a choice has the usage; one that only ends the stream has no text.
        if choices and (choices[0].get("text") or not choices[0].get("finish_reason")):
            events.append(clock.time(at))
            texts.append(choices[0].get("text") or "")
        at = text.find(MARK, at + 1)
    if usage is None:
        raise ClientError("the server sent no usage")
    tokens = int(usage["completion_tokens"])
    return Answer(stream.began, tokens, tuple(events), "".join(texts), timings)


def _chunks(whole: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    """Yield the position of each chunk's content, and the content."""
    while True:
        end = whole.find(b"\r\n", at)
        size = int(whole[at:end], 16) if end >= 0 else -1
        if size < 0 or end + 4 + size > len(whole):
            raise ClientError("the response broke off")
        if not size:
            return
        yield end + 2, whole[end + 2 : end + 2 + size]
        at = end + 4 + size


class _Clock:
    """The arrival times of the bytes of a text."""

    def __init__(self, parts: list[tuple[float, bytes]], chunks: list[tuple[int, bytes]]) -> None:
        self._times = [at for at, _ in parts]
        self._ends = list(accumulate(len(data) for _, data in parts))
        self._raw = [start for start, _ in chunks]
        self._starts = [0, *accumulate(len(chunk) for _, chunk in chunks)]

    def time(self, position: int) -> float:
        chunk = bisect_right(self._starts, position) - 1
        raw = self._raw[chunk] + position - self._starts[chunk]
        return self._times[bisect_right(self._ends, raw)]


async def ask(
    port: int, prompts: list[list[int]], output_tokens: int, streams: int
) -> list[Answer]:
    """Send all prompts, `streams` at a time, and return the answers."""
    asked = [request(port, prompt, output_tokens) for prompt in prompts]
    return [read(stream) for stream in await send(port, asked, streams)]


async def send(port: int, requests: list[bytes], streams: int) -> list[Stream]:
    """Send requests, `streams` at a time, and return them when all have ended."""
    waiting = requests[::-1]
    done: list[Stream] = []

    async def one_after_another() -> None:
        loop = asyncio.get_running_loop()
        while waiting:
            asked = waiting.pop()
            ended = loop.create_future()
            made = partial(Stream, asked, ended)
            _, stream = await loop.create_connection(made, "127.0.0.1", port)
            done.append(stream)
            await ended

    async with asyncio.timeout(LIMIT_SECONDS):
        await asyncio.gather(*(one_after_another() for _ in range(streams)))
    return done


def figures(answers: list[Answer], output_tokens: int) -> dict[str, float]:
    """Compute tokens a second, and when clients saw the first and the next token."""
    for answer in answers:
        if answer.tokens != output_tokens or not answer.events:
            raise ClientError(f"{answer.tokens} tokens came of {output_tokens}")
    began = min(answer.began for answer in answers)
    ended = max(answer.events[-1] for answer in answers)
    first = [answer.events[0] - answer.began for answer in answers]
    between = [
        after - before
        for answer in answers
        for before, after in zip(answer.events, answer.events[1:], strict=False)
    ]
    tokens = sum(answer.tokens for answer in answers)
    return {
        "tok/s": tokens / (ended - began),
        "ttft_p50_ms": statistics.median(first) * 1e3,
        "ttft_p99_ms": percentile(first, 0.99) * 1e3,
        "itl_p50_ms": statistics.median(between) * 1e3 if between else 0.0,
        "itl_p99_ms": percentile(between, 0.99) * 1e3 if between else 0.0,
        "tokens_an_event": tokens / sum(len(answer.events) for answer in answers),
    }


def percentile(values: list[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]
