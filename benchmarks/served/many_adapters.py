"""Measures adapters (LoRA) in a real server: many on disk and few in memory, and a swap of one.

    python -m benchmarks.served.many_adapters zipf               SmolLM2, 200 adapters, 16 slots
    python -m benchmarks.served.many_adapters swap --model 1b    random weights of a 1B shape

The adapters are of all projections, with random weights, in a directory of their own.

zipf: 32 clients send requests whose adapters are drawn by Zipf's law, so that some are asked for
again and again and most of them rarely. Each round sends as many requests for one adapter alone,
in turn with these; the figure is the rounds' ratio of output tokens a second. A request without a
whole answer is lost.

swap: fewer adapters fit in memory than requests name, so that each of these loads one, whose files
are in the page cache; an equal request for an adapter in memory follows it. The figure is how much
later the first token of the former comes, first on an idle server, and then beside streams: these
show too how long the longest gap between two of their tokens is while a request begins.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.peers import http_client
from benchmarks.peers.cases import Case
from benchmarks.peers.models import make_random_1b
from benchmarks.peers.servers import ServerEngine
from benchmarks.served.adapters import DTYPES, AdapterMaker, spec_of
from octavo.observe.machine import num_cores, processor

ROOT = Path(__file__).resolve().parents[2]
LARGE = "1b"
SWAPPED = 4  # adapters that take turns …
IN_MEMORY = 2  # … in a memory that has room for so many
SWAP_PROMPT, SWAP_SECONDS = 8, 0.4  # tokens; between two requests beside streams
STREAM_PROMPT, STREAM_TOKENS = 32, 150


@dataclass(frozen=True, slots=True)
class Seen:
    """The gaps of the streams while requests began, in milliseconds."""

    first_token: list[float]
    longest_gap: list[float]


def prompts(count: int, tokens: int, chance: random.Random) -> list[list[int]]:
    """Return random token ids, which no cache has."""
    return [[chance.randrange(10, 290) for _ in range(tokens)] for _ in range(count)]


def zipf_names(count: int, adapters: int, exponent: float, chance: random.Random) -> list[str]:
    """Draw the adapters of requests: number k is as probable as 1 / (k + 1) ** exponent."""
    weights = [(number + 1) ** -exponent for number in range(adapters)]
    return [f"a{number}" for number in chance.choices(range(adapters), weights, k=count)]


@contextmanager
def served(asked: argparse.Namespace, adapters: int, settings: Iterable[str]) -> Iterator[int]:
    """Start a server with so many adapters; yield its port."""
    model = asked.model
    if model == LARGE:
        model = str(ROOT / "build" / "models" / "random-1b")
        make_random_1b(Path(model))
    with tempfile.TemporaryDirectory(dir=asked.directory, prefix="adapters-") as name:
        maker = AdapterMaker(spec_of(model), asked.rank, asked.dtype)
        modules = [
            f"a{each}={maker.write(Path(name, str(each)), each)}" for each in range(adapters)
        ]
        log = asked.log or Path(name, "log")
        command = (
            *(sys.executable, "-m", "octavo", "serve", model, "--port", "{port}"),
            *("--served-model-name", "model", "--max-lora-rank", str(asked.rank), *settings),
            *("--lora-modules", *modules),
        )
        server = ServerEngine("octavo", command, {"PYTHONPATH": str(ROOT)}, log)
        print(f"{adapters} adapters of {maker.num_bytes / 1e6:.1f} MB, {asked.dtype}")
        try:
            with server.serving(Case("adapters", "adapters", "http", 1, 1, 1)) as port:
                yield port
        finally:
            server.close()
            if asked.log is None and log.exists():
                sys.stderr.write(log.read_text("utf-8", "replace")[-2000:])


# ---- many adapters ----


def speed_of(port: int, requests: list[bytes], streams: int, tokens: int) -> tuple[float, int]:
    """Return the output tokens a second, and how many requests were lost."""
    streamed = asyncio.run(http_client.send(port, requests, streams))
    answers, lost = [], 0
    for each in streamed:
        try:
            answers.append(http_client.read(each))
        except http_client.ClientError as error:
            lost += 1
            print(error, file=sys.stderr)
    whole = [answer for answer in answers if answer.tokens == tokens]
    seconds = max(each.parts[-1][0] for each in streamed) - min(each.began for each in streamed)
    return sum(each.tokens for each in whole) / seconds, lost + len(answers) - len(whole)


def measure_zipf(asked: argparse.Namespace, port: int) -> Iterator[str]:
    """Send requests for many adapters and for one, in turns; yield the lines."""
    ratios, speeds, lost = [], dict[str, list[float]](), 0
    for round_ in range(asked.rounds + 1):  # the first one fills the caches and is not counted
        chance = random.Random(round_)
        drawn = zipf_names(asked.requests, asked.adapters, asked.exponent, chance)
        found = {}
        for kind, names in (("one", ["a0"] * asked.requests), ("many", drawn)):
            made = prompts(asked.requests, asked.prompt, chance)
            sent = [
                http_client.request(port, prompt, asked.output, name)
                for prompt, name in zip(made, names, strict=True)
            ]
            found[kind], more = speed_of(port, sent, asked.streams, asked.output)
            lost += more
        print(f"round {round_}: {found}, {len(set(drawn))} adapters", file=sys.stderr, flush=True)
        if round_:
            ratios.append(found["many"] / found["one"])
            for kind, speed in found.items():
                speeds.setdefault(kind, []).append(speed)
    for kind, several in speeds.items():
        yield f"{kind:6} {spread(several)} output tokens/s"
    yield f"many relative to one: {spread(ratios)}; lost requests: {lost}"


# ---- the swap of one ----


async def first_token_ms(port: int, model: str, chance: random.Random) -> tuple[float, float]:
    """Return when a request was sent, and the milliseconds until its only token has come."""
    (prompt,) = prompts(1, SWAP_PROMPT, chance)
    (stream,) = await http_client.send(port, [http_client.request(port, prompt, 1, model)], 1)
    http_client.read(stream)
    return stream.began, 1000 * (stream.parts[-1][0] - stream.began)


def measure_idle(port: int, swaps: int) -> Iterator[str]:
    """Let single requests load an adapter each; yield the lines."""
    chance, found = random.Random(1), dict[str, list[float]]()
    for number in range(swaps + SWAPPED):
        name = f"a{number % SWAPPED}"
        swapped, there = [
            asyncio.run(first_token_ms(port, name, chance))[1] for _ in ("swapped", "there")
        ]
        if number >= SWAPPED:
            found.setdefault("swapped", []).append(swapped)
            found.setdefault("in memory", []).append(there)
            found.setdefault("the swap", []).append(swapped - there)
    for name, several in found.items():
        yield f"idle, {name:10} {spread(several)} ms"


async def beside_streams(port: int, names: list[str], streams: int) -> Seen:
    """Send a request now and then beside streams of the model itself."""
    chance = random.Random(f"{names}")
    sent = [
        # With its ids, each token is sent, also one that has no text of its own.
        http_client.request(port, each, STREAM_TOKENS, return_token_ids=True)
        for each in prompts(streams, STREAM_PROMPT, chance)
    ]
    running = asyncio.ensure_future(http_client.send(port, sent, streams))
    begun = []
    await asyncio.sleep(2 * SWAP_SECONDS)
    for name in names:
        if not running.done():
            begun.append(await first_token_ms(port, name, chance))
            await asyncio.sleep(SWAP_SECONDS)
    events = [http_client.read(stream).events for stream in await running]
    last = min(each[-1] for each in events)
    begun = [(at, ms) for at, ms in begun if at + ms / 1000 < last]
    gaps = [max(longest_gap(each, at, at + ms / 1000) for each in events) for at, ms in begun]
    return Seen([ms for _, ms in begun], [1000 * gap for gap in gaps])


def longest_gap(events: tuple[float, ...], began: float, ended: float) -> float:
    """Return the longest time between two tokens of a stream that touches a span of time."""
    pairs = pairwise(events)
    return max([b - a for a, b in pairs if b > began and a < ended], default=0.0)


def measure_beside(asked: argparse.Namespace, port: int) -> Iterator[str]:
    """Let requests beside streams load an adapter each; yield the lines."""
    found = {"in memory": Seen([], []), "swapped": Seen([], [])}
    for round_ in range(asked.rounds + 1):
        swapped = [f"a{number % SWAPPED}" for number in range(asked.swaps)]
        for kind, names in (("in memory", ["a0"] * asked.swaps), ("swapped", swapped)):
            seen = asyncio.run(beside_streams(port, names, asked.beside))
            if round_:
                found[kind].first_token.extend(seen.first_token[1:])
                found[kind].longest_gap.extend(seen.longest_gap[1:])
    for kind, seen in found.items():
        yield f"{asked.beside} streams, {kind:10} {spread(seen.first_token)} ms to the first token"
        yield f"{asked.beside} streams, {kind:10} {spread(seen.longest_gap)} ms the longest gap"
    ours, other = (statistics.median(found[kind].longest_gap) for kind in ("swapped", "in memory"))
    yield f"the longest gap, swapped relative to in memory: {ours / other:.2f}"


# ---- the program ----


def spread(values: list[float]) -> str:
    """Return the median of values, and their range."""
    low, high = min(values), max(values)
    return f"{statistics.median(values):8.3f} ({low:.3f} to {high:.3f}, of {len(values)})"


def main() -> None:
    """Measure, and print the lines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("zipf", "swap"))
    parser.add_argument("--model", default="smollm2", help=f"or {LARGE}: random, of a 1B shape")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="bfloat16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="for the adapters, which are removed")
    parser.add_argument("--log", type=Path, help="where to keep the server's log")
    parser.add_argument("--adapters", type=int, default=200, help="zipf: on disk")
    parser.add_argument("--slots", type=int, default=16, help="zipf: adapters in a step")
    parser.add_argument("--exponent", type=float, default=1.0, help="zipf: of the law")
    parser.add_argument("--requests", type=int, default=128, help="zipf: of each kind in a round")
    parser.add_argument("--streams", type=int, default=32, help="zipf: clients")
    parser.add_argument("--prompt", type=int, default=128, help="zipf: tokens")
    parser.add_argument("--output", type=int, default=128, help="zipf: tokens")
    parser.add_argument("--swaps", type=int, default=8, help="swap: in a round")
    parser.add_argument("--beside", type=int, default=4, help="swap: streams")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # runs `finally`
    print(f"{processor()[0]}, {num_cores()[0]} cores; {asked.model}, rank {asked.rank}")
    if asked.what == "zipf":
        with served(asked, asked.adapters, ("--max-loras", str(asked.slots))) as port:
            lines = list(measure_zipf(asked, port))
    else:
        room = ("--max-loras", str(IN_MEMORY), "--max-cpu-loras", str(IN_MEMORY))
        with served(asked, SWAPPED, room) as port:
            lines = [*measure_idle(port, asked.swaps), *measure_beside(asked, port)]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
