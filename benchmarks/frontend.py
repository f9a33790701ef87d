"""What the HTTP front end alone can carry: streamed chunks a second, the first byte's way, memory.

The engine is a stand-in that puts tokens straight into the real desk (detokeniser, stop strings,
deltas), so that what is measured is the front end: desk, JSON, events, sockets. Clients are a
process of their own, pinned to another core.

    python benchmarks/frontend.py --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from octavo.core.request import TokenEvent
from octavo.core.sampling_params import SamplingParams
from octavo.frontend.desk import PLAIN, Desk, Model, Options
from octavo.frontend.inputs import Input
from octavo.frontend.outputs import RequestOutput
from octavo.frontend.preparer import load_tokenizer_at
from octavo.server.config import ServerConfig
from octavo.server.engine import Command, Health, ModelFacts
from octavo.server.lifecycle import Lifecycle
from octavo.server.state import Server
from tests.frontend.tiny import make_tokenizer_files

VOCABULARY = 300


class Metronome:
    """An engine that gives every open request a token at each tick, and computes nothing."""

    def __init__(self, directory: Path, tick_seconds: float) -> None:
        tokenizer = load_tokenizer_at(directory)
        self.facts = ModelFacts(
            *("metronome", str(directory), tokenizer, VOCABULARY, 1 << 20, SamplingParams()),
            max_num_seqs=4096,
        )
        self._desk = Desk(Model(tokenizer, VOCABULARY, 1 << 20, 1 << 20, (1,), 20), seed=0)
        self._tick_seconds = tick_seconds
        self._waiting: dict[str, asyncio.Queue[RequestOutput]] = {}
        self._open: dict[str, tuple[str, int, int]] = {}  # the core's name, given, wanted
        self._task: asyncio.Task[None] | None = None
        self.first_given: dict[str, float] = {}

    async def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        options: Options = PLAIN,
    ) -> AsyncIterator[RequestOutput]:
        """One token a tick."""
        assert sampling_params is not None
        assert request_id is not None
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        ids = array("i", prompt["prompt_token_ids"])
        (request,) = self._desk.open(request_id, Input("", ids), sampling_params, 0.0, options)
        queue = self._waiting[request_id] = asyncio.Queue(1024)
        self._open[request_id] = (request.request_id, 0, sampling_params.max_tokens)
        try:
            while True:
                output = await queue.get()
                yield output
                if output.finished:
                    return
        finally:
            self._open.pop(request_id, None)
            del self._waiting[request_id]
            self._desk.close(request_id)

    async def _run(self) -> None:
        while True:
            began = time.monotonic()
            token = 40 + int(began * 1e6) % 50
            for request_id, (name, given, wanted) in list(self._open.items()):
                queue = self._waiting[request_id]
                if queue.full():
                    continue
                is_last = given + 1 == wanted
                event = TokenEvent(name, given, (token,), "length" if is_last else None)
                output, _ = self._desk.receive(event)
                assert output is not None
                self._open[request_id] = (name, given + 1, wanted)
                if is_last:
                    del self._open[request_id]
                if not given:
                    self.first_given[request_id.rpartition("-")[0]] = time.monotonic()
                queue.put_nowait(output)
            await asyncio.sleep(max(0.0, self._tick_seconds - (time.monotonic() - began)))

    async def abort(self, request_id: str) -> None:
        """Nothing computes."""

    async def command(self, command: Command) -> None:
        """Nothing computes."""

    def health(self) -> Health:
        """Always."""
        return Health(True)

    def snapshot(self) -> None:
        """Nothing computes."""


async def serve(tick_seconds: float) -> None:
    """The process that is measured."""
    with tempfile.TemporaryDirectory() as name:
        engine = Metronome(make_tokenizer_files(Path(name)), tick_seconds)
        server = Server(engine, ServerConfig(port=0, max_connections_per_client=4096))

        def ready(life: Lifecycle) -> None:
            print(life.port, resident_mib(), flush=True)

        await Lifecycle(server).run(ready)
        print(
            json.dumps(
                {
                    "resident_mib": resident_mib(),
                    "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                    "cpu_seconds": time.process_time(),
                    "chunks": server.metrics.generated_tokens.value(),
                    "first_byte_ms": first_byte_ms(server, engine.first_given),
                }
            ),
            flush=True,
        )


def first_byte_ms(server: Server, given: dict[str, float]) -> float:
    """Median, from the engine's first token to the first chunk written to the socket."""
    times = []
    for request_id, then in given.items():
        record = server.recent.find(request_id, "")
        if record is not None and record.first_byte_at is not None:
            times.append(record.first_byte_at - then)
    return 1000 * sorted(times)[len(times) // 2]


def resident_mib() -> float:
    """Of this process, now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def load(port: int, num_streams: int, num_tokens: int) -> dict[str, float]:
    """Many streams at once, read as they come."""
    counts = 0

    async def one() -> None:
        nonlocal counts
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        sent = {"messages": [{"role": "user", "content": "x"}], "max_tokens": num_tokens}
        body = json.dumps({**sent, "stream": True}).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        while part := await reader.read(1 << 16):
            counts += part.count(b'"content":')
        writer.close()

    began = time.monotonic()
    await asyncio.gather(*(one() for _ in range(num_streams)))
    seconds = time.monotonic() - began
    return {"seconds": seconds, "chunks": counts, "chunks_a_second": counts / seconds}


def measure(num_streams: int, num_tokens: int, tick_seconds: float) -> dict[str, Any]:
    """Start a server, load it, end it."""
    command = [sys.executable, __file__, "--serve", str(tick_seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(process.pid, {cores[0]})
        os.sched_setaffinity(0, set(cores[1:]))
    port, resident = process.stdout.readline().split()
    asyncio.run(load(int(port), 8, 50))  # warm
    loaded = asyncio.run(load(int(port), num_streams, num_tokens))
    process.terminate()
    told = json.loads(process.stdout.readlines()[-1])
    process.wait()
    os.sched_setaffinity(0, set(cores))
    told["chunks_a_cpu_second"] = told["chunks"] / told["cpu_seconds"]
    return {**loaded, "resident_at_start_mib": float(resident), **told}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serve", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.serve is not None:
        import uvloop

        uvloop.run(serve(options.serve))
        return
    results = {
        "saturated": measure(options.streams, options.tokens, 0.0),
        "unhurried": measure(8, 100, 0.02),
    }
    if options.json:
        print(json.dumps(results, indent=2))
        return
    full, calm = results["saturated"], results["unhurried"]
    print(f"{full['chunks_a_second']:.0f} chunks/s with {options.streams} streams on one core")
    print(f"first byte {calm['first_byte_ms']:.2f} ms after the engine's token, with 8 streams")
    print(f"{full['resident_at_start_mib']:.0f} MiB at start, {full['peak_mib']:.0f} at the peak")


if __name__ == "__main__":
    main()
