"""Measure what long prompts cost running streams: their pace against the prompts' throughput.

    python benchmarks/peers/frontier.py                     ours and its peers, five rounds
    python benchmarks/peers/frontier.py --peers octavo --goals 0,default,0.05    values of itl_goal
    python benchmarks/peers/frontier.py --quick             seconds of each: does it all start?

In each round each server runs some streams alone, then the same streams beside long prompts, which
are sent one after the other by several clients for as long as the window lasts. Every point of the
frontier is one server with one setting: the time between the streams' tokens, and the prompt tokens
a second. Rounds are interleaved, so that a drifting machine affects all servers; the table has
medians, and the smallest and the largest value. A peer that is not installed (make peers) is left
out and named. docs/performance.md says what the points should be. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))  # so that the program can be called by its path

from benchmarks import compare  # noqa: E402
from benchmarks.peers import http_client, rows  # noqa: E402
from benchmarks.peers.cases import CASES, Case  # noqa: E402
from benchmarks.peers.engines import EngineError  # noqa: E402
from benchmarks.peers.found import LENGTHS, Places, find  # noqa: E402
from benchmarks.peers.servers import ServerEngine  # noqa: E402
from octavo.observe.machine import num_cores  # noqa: E402

PEERS = ROOT / "build" / "peers"
SERVED = {"octavo": rows.SERVED[1], "llama": rows.LLAMA_SERVED[1], "vllm": rows.VLLM_SERVED[0]}
GOALS = ("0", "default")
POSITIONS = 8192
MOST_PROMPT_TOK_S = 200_000  # that any server here computes
STREAM_PROMPT = 64  # tokens of the prompt of a stream
EVENT = b"data: {"
FIGURES = ("alone_p50_ms", "itl_p50_ms", "itl_p99_ms", "prompt_tok_s")


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a measurement."""

    streams: int
    prompt_tokens: int
    prompters: int  # clients that send long prompts
    seconds: float  # of the streams alone, and again beside the prompts


@dataclass
class Point:
    """One server with one setting, and its figures in each round."""

    name: str
    server: ServerEngine
    rounds: list[dict[str, float]] = field(default_factory=list)

    def median(self, figure: str) -> float:
        """Return the median of a figure over the rounds; 0 if there is none."""
        return statistics.median([each[figure] for each in self.rounds] or [0.0])


class Watched(http_client.Stream):
    """A stream whose connection can be closed before its end."""

    transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def gaps(self, begin: float, end: float) -> list[float]:
        """Return the times between events of which the later one came in a window."""
        times = [at for at, data in self.parts for _ in range(data.count(EVENT))]
        return [
            after - before for before, after in itertools.pairwise(times) if begin <= after < end
        ]


async def opened(port: int, prompt: list[int], output_tokens: int) -> Watched:
    """Send a request, and return its stream."""
    loop = asyncio.get_running_loop()
    made = partial(Watched, http_client.request(port, prompt, output_tokens), loop.create_future())
    _, stream = await loop.create_connection(made, "127.0.0.1", port)
    return stream


async def first_event(stream: Watched) -> None:
    """Wait until a stream has its first token."""
    while not any(EVENT in data for _, data in stream.parts):
        if stream.ended.done():
            raise http_client.ClientError(f"a stream ended early: {stream.parts[:1]!r}")
        await asyncio.sleep(0.01)


async def measure(port: int, load: Load, seed: int) -> dict[str, float]:
    """Return the figures of a server under a load."""
    case = case_of(load)
    short = replace(case, prompt_tokens=STREAM_PROMPT, requests=load.streams)
    prompts = case.prompts(seed + 1_000_000)  # now: making them keeps the streams from being read
    streams = [await opened(port, each, POSITIONS // 2) for each in short.prompts(seed)]
    try:
        for stream in streams:
            await first_event(stream)
        begin = time.perf_counter()
        await asyncio.sleep(load.seconds)
        middle = time.perf_counter()
        num_tokens = await prompts_for(port, load, prompts, middle)
        end = middle + load.seconds
        if any(stream.ended.done() for stream in streams):
            raise http_client.ClientError("a stream ended within the window: shorten --seconds")
    finally:
        for stream in streams:
            if stream.transport is not None:
                stream.transport.abort()
    alone = [gap for stream in streams for gap in stream.gaps(begin, middle)]
    beside = [gap for stream in streams for gap in stream.gaps(middle, end)]
    if not (alone and beside):
        raise http_client.ClientError("the streams gave no tokens in the window")
    return {
        "alone_p50_ms": statistics.median(alone) * 1e3,
        "itl_p50_ms": statistics.median(beside) * 1e3,
        "itl_p99_ms": http_client.percentile(beside, 0.99) * 1e3,
        "prompt_tok_s": num_tokens / load.seconds,
    }


async def prompts_for(port: int, load: Load, prompts: list[list[int]], began: float) -> float:
    """Send prompts until the window is over; return how many of their tokens were computed in it.

    Of a prompt that is not finished then, the share of its time within the window counts.
    """
    end = began + load.seconds
    waiting = list(reversed(prompts))
    num_tokens = 0.0

    async def one_after_another() -> None:
        nonlocal num_tokens
        while time.perf_counter() < end:
            sent = time.perf_counter()
            stream = await opened(port, waiting.pop(), 1)
            await first_event(stream)
            took = time.perf_counter() - sent
            num_tokens += load.prompt_tokens * min(1.0, (end - sent) / took)
            await stream.ended

    async with asyncio.timeout(http_client.LIMIT_SECONDS):
        await asyncio.gather(*(one_after_another() for _ in range(load.prompters)))
    return num_tokens


def case_of(load: Load) -> Case:
    """Return a case with the load's prompts, enough for any window."""
    requests = max(64, int(load.seconds * MOST_PROMPT_TOK_S / load.prompt_tokens))
    return replace(
        CASES["http8"],
        requests=requests,
        prompt_tokens=load.prompt_tokens,
        shared_tokens=0,
        output_tokens=64,
        streams=load.streams + load.prompters,
    )


def points_of(server: ServerEngine, goals: list[str]) -> Iterator[Point]:
    """Yield the points of one server: of ours, one for each goal."""
    words = [
        str(POSITIONS) if word == str(LENGTHS["max_model_len"]) else word for word in server.command
    ]
    if server.name != SERVED["octavo"]:
        yield Point(server.name, replace(server, command=tuple(words)))
        return
    for goal in goals:
        flags = [] if goal == "default" else ["--itl-goal", goal]
        name = "unbounded" if goal == "0" else f"itl_goal {goal}"
        yield Point(f"octavo, {name}", replace(server, command=(*words, *flags)))


def run_round(points: list[Point], load: Load, index: int) -> None:
    """Measure every point once; one that fails is left out of this round and named."""
    turn = index % len(points)
    for point in points[turn:] + points[:turn]:
        try:
            with point.server.serving(case_of(load)) as port:
                warm = replace(case_of(load), requests=load.prompters + 1).prompts(-index - 1)
                asyncio.run(http_client.ask(port, warm, 4, 1))
                figures = asyncio.run(measure(port, load, index))
        except (EngineError, http_client.ClientError, OSError, TimeoutError) as error:
            print(f"{point.name} failed: {error}", file=sys.stderr)
            point.server.close()
            continue
        point.rounds.append(figures)
        shown = ", ".join(f"{name} {value:.1f}" for name, value in figures.items())
        print(f"{index + 1}  {point.name}: {shown}", file=sys.stderr, flush=True)


def table(points: list[Point]) -> str:
    """Format the points of the frontier as a Markdown table."""
    most = next((p.median("prompt_tok_s") for p in points if p.name.endswith("unbounded")), 0.0)
    lines = [
        (
            "| server | ITL alone, p50 | ITL, p50 | ITL, p99 | p99 / p50 | p99 / alone | "
            "prompt tok/s | of unbounded |"
        ),
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for point in points:
        if not point.rounds:
            lines.append(f"| {point.name} | failed | | | | | | |")
            continue
        alone, middle, worst, speed = [point.median(figure) for figure in FIGURES]
        cells = [_spread(point, figure) for figure in FIGURES]
        share = f"{speed / most:.2f}" if most else ""
        ratios = [f"{worst / each:.2f}" if each else "" for each in (middle, alone)]
        lines.append("| " + " | ".join([point.name, *cells[:3], *ratios, cells[3], share]) + " |")
    return "\n".join(lines)


def _spread(point: Point, figure: str) -> str:
    values = [each[figure] for each in point.rounds]
    return f"{point.median(figure):.1f} ({min(values):.1f}–{max(values):.1f})"


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peers", type=compare.listed([*SERVED]), default=[*SERVED])
    parser.add_argument("--goals", type=lambda text: text.split(","), default=[*GOALS])
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=6000)
    parser.add_argument("--prompters", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="to see it all start")
    parser.add_argument("--threads", type=int, default=num_cores()[0])
    parser.add_argument("--models", type=Path, default=ROOT / "build" / "models")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "frontier.json")
    return parser.parse_args()


def places_of(asked: argparse.Namespace) -> Places:
    """Return the places of the peers, as `make peers` installs them."""
    log = asked.out.absolute().with_suffix(".log")
    return Places.installed_in(PEERS, asked.models, log, asked.threads)


def main() -> None:
    """Measure the frontier and print it."""
    asked = arguments()
    load = Load(asked.streams, asked.prompt_tokens, asked.prompters, asked.seconds)
    if asked.quick:
        load, asked.rounds = Load(2, 600, 1, 2.0), 1
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    names = {SERVED[kind] for kind in asked.peers}
    servers = [
        each
        for each in find(places_of(asked), asked.peers, names)
        if isinstance(each, ServerEngine)
    ]
    points = [point for server in servers for point in points_of(server, asked.goals)]
    try:
        for index in range(asked.rounds):
            run_round(points, load, index)
    finally:
        for point in points:
            point.server.close()
        written = {
            "about": compare.about(asked),
            "load": {name: getattr(load, name) for name in Load.__slots__},
            "points": {point.name: point.rounds for point in points},
        }
        asked.out.write_text(json.dumps(written, indent=2) + "\n")
        print(table(points))


if __name__ == "__main__":
    main()
