"""The capacity of the HTTP front end alone: chunks per second, time to first byte, memory.

The engine is a process of its own, as always, but has no model: each step gives every sequence one
token, and sleeps. The figures are therefore those of the whole front end: frames, journal, request
table, detokeniser, JSON, events, sockets. The clients run in another process, which is pinned with
the engine to another core.

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
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from octavo import AsyncLLM
from octavo.client.launcher import ProcessLauncher
from octavo.client.process import ProcessClient, make_client
from octavo.core.config import CoreConfig
from octavo.core.plan import NO_TOKEN, StepPlan, StepResult
from octavo.engine.process import CoreAndFacts, Wrap
from octavo.loader import ModelFiles
from octavo.observe.collection import settle_memory
from octavo.options.engine import EngineArguments
from octavo.options.server import ServerSettings
from octavo.server.lifecycle import ServerLifecycle
from octavo.server.site import OneModel
from octavo.serving.server import Server
from octavo.text.tokenizer_files import load_tokenizer_at
from tests.api.tiny import make_tokenizer_files
from tests.engine.over_runner import engine_over_runner

MAX_STREAMS = 4096
VOCABULARY = 300


class Metronome:
    """A runner without a model."""

    def __init__(self, step_seconds: float) -> None:
        self._step_seconds = step_seconds

    def run(self, plan: StepPlan) -> StepResult:
        """Return a letter for each sequence that samples in this step."""
        if self._step_seconds:
            time.sleep(self._step_seconds)
        token = 40 + plan.step % 50
        return StepResult(
            plan.step, tuple(token if samples else NO_TOKEN for samples in plan.samples)
        )


def make(arguments: EngineArguments, wrap: Wrap, cache_key: bytes) -> CoreAndFacts:
    """Make the engine; the model's name is the duration of a step in seconds."""
    config = CoreConfig(
        num_blocks=1 << 17,
        max_model_len=1 << 14,
        max_num_batched_tokens=1 << 14,
        max_num_seqs=MAX_STREAMS,
    )
    runner = Metronome(float(arguments.model))
    return engine_over_runner(
        "metronome", arguments, wrap, cache_key, runner.run, config, VOCABULARY
    )


async def serve(client: ProcessClient, arguments: EngineArguments, *, keeps_journal: bool) -> None:
    """Serve in the process that is measured, and print the figures at the end."""
    assert arguments.tokenizer is not None
    path = Path(arguments.tokenizer)
    source = ModelFiles("metronome", path, (path / "none.safetensors",))
    llm = AsyncLLM.over(client, arguments, load_tokenizer_at(path), source)
    config = ServerSettings(
        port=0,
        max_connections_per_client=MAX_STREAMS,
        journal=path / "journal" if keeps_journal else None,
    )
    server = Server(llm, config)
    settle_memory()

    def ready(life: ServerLifecycle) -> None:
        print(life.port, resident_mib(), engine_process(client), flush=True)

    await ServerLifecycle(OneModel(server)).run(ready)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    memory = {"resident_mib": resident_mib(), "peak_mib": peak}
    print(json.dumps({**memory, "first_byte_ms": first_byte_ms(server)}), flush=True)


def start(step_seconds: float, *, keeps_journal: bool) -> None:
    """Start the engine process and serve."""
    import uvloop

    with tempfile.TemporaryDirectory() as name:
        directory = str(make_tokenizer_files(Path(name)))
        arguments = EngineArguments(model=str(step_seconds), tokenizer=directory)
        client = make_client(arguments, [ProcessLauncher("benchmarks.frontend:make")])
        client.start()
        try:
            uvloop.run(serve(client, arguments, keeps_journal=keeps_journal))
        finally:
            client.close()


def engine_process(client: ProcessClient) -> int:
    """Return the id of the engine's process."""
    process: Any = client.engines[0].supervisor.run.process  # type: ignore[union-attr]
    return int(process.popen.pid)


def first_byte_ms(server: Server) -> float:
    """Return the median time from the engine's first token to the first chunk on the socket."""
    records = server.recent._records.values()
    times = [
        record.first_byte_at - record.stats.first_token_at
        for record in records
        if record.first_byte_at is not None
        and record.stats is not None
        and record.stats.first_token_at is not None
    ]
    return 1000 * sorted(times)[len(times) // 2]


def resident_mib() -> float:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def processor_seconds(number: int) -> float:
    """Return the processor time of all living threads of a process, to the nanosecond."""
    tasks = Path(f"/proc/{number}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


async def load(port: int, num_streams: int, num_tokens: int) -> dict[str, float]:
    """Read many streams at once; return the counts and the rates."""
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
    return {
        "seconds": seconds,
        "chunks": counts,
        "chunks_a_second": counts / seconds,
        "tokens_a_second": num_streams * num_tokens / seconds,
    }


def measure(
    num_streams: int, num_tokens: int, step_seconds: float, *, keeps_journal: bool
) -> dict[str, Any]:
    """Start a server, load it and stop it; return the figures."""
    command = [sys.executable, __file__, "--serve", str(step_seconds)]
    if keeps_journal:
        command.append("--journal")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port, resident, engine = process.stdout.readline().split()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        pin(process.pid, {cores[0]})
        pin(int(engine), set(cores[1:]))
        os.sched_setaffinity(0, set(cores[1:]))
    asyncio.run(load(int(port), 8, 50))  # warm
    numbers = {"front_end": process.pid, "engine": int(engine)}
    before = {name: processor_seconds(number) for name, number in numbers.items()}
    loaded = asyncio.run(load(int(port), num_streams, num_tokens))
    for name, number in numbers.items():
        taken = processor_seconds(number) - before[name]
        loaded[f"{name}_microseconds"] = 1e6 * taken / (num_streams * num_tokens)  # a token
    process.terminate()
    final = json.loads(process.stdout.readlines()[-1])
    process.wait()
    os.sched_setaffinity(0, set(cores))
    return {**loaded, "resident_at_start_mib": float(resident), **final}


def pin(number: int, cores: set[int]) -> None:
    """Pin all threads of a process to some cores."""
    for task in Path(f"/proc/{number}/task").iterdir():
        os.sched_setaffinity(int(task.name), cores)


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serve", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--journal", action="store_true", help="serve with a journal")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.serve is not None:
        start(options.serve, keeps_journal=options.journal)
        return
    loads = {
        "32 streams": (32, 0.02),
        "256 streams": (256, 0.03),
        f"{options.streams} streams without a pause": (options.streams, 0.0),
    }
    results = {
        name: measure(num_streams, options.tokens, seconds, keeps_journal=options.journal)
        for name, (num_streams, seconds) in loads.items()
    }
    if options.json:
        print(json.dumps(results, indent=2))
        return
    for name, found in results.items():
        print(
            f"{name}: {found['chunks_a_second']:.0f} chunks, {found['tokens_a_second']:.0f} tokens "
            f"a second; processor time a token: front end {found['front_end_microseconds']:.1f} µs,"
            f" engine {found['engine_microseconds']:.1f} µs; first byte after "
            f"{found['first_byte_ms']:.2f} ms; resident {found['resident_at_start_mib']:.0f} MiB "
            f"at the start, {found['peak_mib']:.0f} at the peak"
        )


if __name__ == "__main__":
    main()
