"""Clients for the soak test: requests of many kinds, responses, and ways to misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

HEAD = (
    "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n"
)
HOLD_SECONDS = 5.0  # how long a client that never reads keeps its connection
LIMIT_SECONDS = 600.0  # a request that has not ended by then is lost


class LostError(Exception):
    """The response to a request is missing or incomplete."""


class LeftError(Exception):
    """The client closed the connection on purpose."""


@dataclass(frozen=True)
class Manner:
    """A client's way of reading."""

    pace: float = 0.0  # seconds between reads
    leaves_after: int | None = None  # reads
    never_reads: bool = False


@dataclass
class Answer:
    """A response after parsing."""

    status: int
    retry_seconds: float
    parts: list[Any]  # the payloads of a stream, or the one body
    is_ended: bool

    def said(self) -> list[Any]:
        """Return what must equal from run to run: each choice's tokens, text and end."""
        choices: dict[int, list[Any]] = {}
        for part in self.parts:
            for choice in part.get("choices", ()):
                kept = choices.setdefault(choice["index"], [[], "", None])
                kept[0] += choice.get("token_ids") or []
                kept[1] += choice["text"]
                kept[2] = choice["finish_reason"]
        return [choices[index] for index in sorted(choices)]

    def error(self) -> dict[str, Any] | None:
        """Return the error, wherever it stands."""
        return next((part["error"] for part in self.parts if part.get("error")), None)


async def ask(
    port: int,
    body: dict[str, Any],
    manner: Manner = Manner(),
    hear: Callable[[int], object] = lambda num_bytes: None,
) -> Answer:
    """Send a request over its own connection; call `hear` with the size of each read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
    try:
        data = json.dumps(body).encode()
        writer.write(HEAD.format(path="/v1/completions", size=len(data)).encode() + data)
        async with asyncio.timeout(LIMIT_SECONDS):
            received = await _read(reader, manner, hear)
    except TimeoutError:
        raise LostError("no end came") from None
    finally:
        writer.close()
    return parse(received)


async def _read(
    reader: asyncio.StreamReader, manner: Manner, hear: Callable[[int], object]
) -> bytes:
    received, num_reads = bytearray(), 0
    if manner.never_reads:
        await asyncio.sleep(HOLD_SECONDS)
        raise LeftError
    while part := await reader.read(1 << 12 if manner.pace else 1 << 16):
        received += part
        hear(len(part))
        num_reads += 1
        if num_reads == manner.leaves_after:
            raise LeftError
        if manner.pace:
            await asyncio.sleep(manner.pace)
    return bytes(received)


def parse(received: bytes) -> Answer:
    """Parse a response; raise LostError if it is incomplete."""
    head, _, body = received.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    if not body:
        raise LostError(f"the connection was closed: {received[:80]!r}")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    if headers.get("transfer-encoding") == "chunked":
        body = _unchunked(body)
    status = int(lines[0].split()[1])
    retry_seconds = float(headers.get("retry-after", "1"))
    if "text/event-stream" not in headers["content-type"]:
        return Answer(status, retry_seconds, [json.loads(body)], is_ended=True)
    frames = [each for each in body.decode().split("\n\n") if each.startswith("data: ")]
    is_ended = bool(frames) and frames.pop() == "data: [DONE]"
    return Answer(status, retry_seconds, [json.loads(each[6:]) for each in frames], is_ended)


def _unchunked(body: bytes) -> bytes:
    parts: list[bytes] = []
    at = 0
    while True:
        end = body.find(b"\r\n", at)
        size = int(body[at:end], 16) if end >= 0 else -1
        if size < 0 or end + 4 + size > len(body):
            raise LostError("the response broke off")
        if not size:
            return b"".join(parts)
        parts.append(body[end + 2 : end + 2 + size])
        at = end + 4 + size


def catalogue(vocabulary: int, size: int, chance: random.Random) -> list[dict[str, Any]]:
    """Make requests of many kinds, whose responses depend on nothing but themselves."""
    most = min(vocabulary, 60) - 3
    shared = [3 + chance.randrange(most) for _ in range(80)]
    made = []
    for index in range(size):
        own = [3 + chance.randrange(most) for _ in range(chance.choice([1, 5, 40, 200]))]
        body: dict[str, Any] = {
            "prompt": shared + own if chance.random() < 0.4 else own,
            "max_tokens": chance.choice([1, 8, 30, 80]),
            "n": chance.choice([1, 1, 1, 2]),
            "temperature": chance.choice([0.0, 0.0, 0.8]),
            "seed": index,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": chance.random() < 0.7,
        }
        if body["n"] > 1:  # at temperature 0 both would be the same
            body["temperature"] = 0.8
        if chance.random() < 0.1:
            body["logprobs"] = 5
        made.append(body)
    return made


class Served:
    """A server process, seen from outside."""

    def __init__(self, settings: dict[str, Any], log: IO[str] | None = None) -> None:
        program = Path(__file__).with_name("server.py")
        command = [sys.executable, str(program), json.dumps(settings)]
        self.key: str | None = next(iter(settings["server"].get("api_keys", ())), None)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.start = self._line()
        self.port = int(self.start["port"])

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise LostError("the server has ended")
        report: dict[str, Any] = json.loads(line)
        return report

    def held(self) -> dict[str, Any]:
        """Return the resources that it reports to hold now."""
        self.process.send_signal(signal.SIGUSR1)
        return self._line()

    def engine(self) -> int | None:
        """Return the engine's process, if there is one."""
        for number in self.children():
            with contextlib.suppress(OSError):  # it has just ended
                if b"octavo.engine.process" in Path(f"/proc/{number}/cmdline").read_bytes():
                    return number
        return None

    def children(self) -> list[int]:
        """Return the processes that it has started."""
        found: list[int] = []
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            with contextlib.suppress(OSError):  # a thread that has just ended
                found += map(int, (task / "children").read_text().split())
        return found

    def outside(self) -> dict[str, int]:
        """Return the resources that it holds according to the system."""
        base = Path(f"/proc/{self.process.pid}")
        threads = next(x for x in (base / "status").read_text().split("\n") if "Threads" in x)
        children = self.children()
        num_ended = sum(map(has_ended, children))
        return {
            "threads": int(threads.split()[1]),
            "descriptors": len(list((base / "fd").iterdir())),
            "children": len(children) - num_ended,
            "ended_children": num_ended,
        }

    def resident_mib(self) -> float:
        """Return the resident memory of the front end."""
        return resident_mib(self.process.pid)

    def end(self) -> int:
        """Terminate it; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=300)
        return self.process.returncode


def has_ended(number: int) -> bool:
    """Return whether a process has ended, reaped or not."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def resident_mib(number: int) -> float:
    """Return the resident memory of a process."""
    status = Path(f"/proc/{number}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def peak_mib(number: int) -> float:
    """Return the largest resident memory that a process had."""
    status = Path(f"/proc/{number}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


async def metric(served: Served, name: str) -> float:
    """Return the value of one of the server's metrics."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    key = f"Authorization: Bearer {served.key}\r\n" if served.key else ""
    head = f"GET /metrics HTTP/1.1\r\nHost: localhost\r\n{key}Connection: close\r\n\r\n"
    writer.write(head.encode())
    text = (await reader.read()).decode()
    writer.close()
    lines = [line for line in text.split("\n") if line.startswith(f"octavo:{name}")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)
