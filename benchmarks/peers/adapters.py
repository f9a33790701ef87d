"""Compare adapters (LoRA) with the servers of peers: same weights, adapters and prompts, in turns.

    make peers                               install them (once)
    python -m benchmarks.peers.adapters      llama-server with one adapter, vLLM with eight
    python -m benchmarks.peers.adapters --rounds 3 --streams 1,8,32 --peers llama

The base is SmolLM2-135M, in the published file of four bits and in bf16. The adapters are of rank
16, of all projections, with random weights. Beside llama-server every request has the one adapter
that it was started with; beside vLLM the requests name eight in turn. The figures are output tokens
a second of requests of 128 + 128 tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import statistics
import sys
import tempfile
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from benchmarks.peers import http_client, rows
from benchmarks.peers.cases import CASES
from benchmarks.peers.found import Places, find
from benchmarks.peers.models import smollm2_bf16
from benchmarks.peers.servers import ServerEngine
from benchmarks.peers.shaped import PEERS, ROOT, ratio
from benchmarks.served.adapters import AdapterMaker, spec_of
from octavo.observe.machine import num_cores, processor

RANK, NUM_ADAPTERS = 16, 8
REQUESTS = {1: 4, 8: 16, 32: 32}  # by streams


@dataclass(frozen=True, slots=True)
class Pair:
    """Ours, the peer, the adapters that requests have, and the ratio that there must be."""

    ours: str
    peer: str
    adapters: int
    must: float


PAIRS = (
    Pair(rows.SERVED[0], rows.LLAMA_SERVED[0], 1, 1.5),
    Pair(rows.SERVED[1], rows.LLAMA_SERVED[1], 1, 1.5),
    Pair(rows.SERVED[1], rows.VLLM_SERVED[0], NUM_ADAPTERS, 1.3),
)


def give_adapters(engines: dict[str, ServerEngine], directory: Path, place: Path) -> None:
    """Write the adapters of a model into a place, and let the servers be started with them."""
    maker = AdapterMaker(spec_of(str(directory)), RANK)
    named = [f"a{each}={maker.write(place / str(each), each)}" for each in range(NUM_ADAPTERS)]
    gguf = maker.write_gguf(place / "one.gguf", 0)
    several = ("--enable-lora", "--max-loras", str(NUM_ADAPTERS), "--lora-modules", *named)
    for name, engine in engines.items():
        if name in rows.LLAMA_SERVED:
            engine.command += ("--lora", str(gguf))
        elif name in rows.VLLM_SERVED:
            engine.command += ("--max-lora-rank", str(RANK), *several)
        else:
            engine.command += several
        engine.kept = True


def speed(engine: ServerEngine, adapters: int, streams: int, number: int) -> float:
    """Return the output tokens a second of one engine, which is started first."""
    case, count = CASES["http32"], REQUESTS.get(streams, streams)
    names = [f"a{each % adapters}" for each in range(count)]
    if engine.name in rows.LLAMA_SERVED:
        names = ["model"] * count
    with engine.serving(case) as port:
        warm = [http_client.request(port, case.prompts(-1)[0], 4, name) for name in set(names)]
        asyncio.run(http_client.send(port, warm, len(warm)))
        prompts = case.prompts(1000 * streams + number)[:count]
        sent = [
            http_client.request(port, prompt, case.output_tokens, name)
            for prompt, name in zip(prompts, names, strict=True)
        ]
        done = asyncio.run(http_client.send(port, sent, streams))
    return http_client.figures([http_client.read(each) for each in done], case.output_tokens)[
        "tok/s"
    ]


def main() -> None:
    """Measure in rounds, and print the ratios of each round's figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", default="1,8,32")
    parser.add_argument("--peers", default="llama,vllm")
    parser.add_argument("--installed", type=Path, default=PEERS)
    parser.add_argument("--models", type=Path, default=ROOT / "build" / "models")
    asked = parser.parse_args()
    kinds, streams = asked.peers.split(","), [int(each) for each in asked.streams.split(",")]
    log = ROOT / "build" / "adapters.log"
    log.parent.mkdir(exist_ok=True)
    places = Places.installed_in(asked.installed.absolute(), asked.models, log, num_cores()[0])
    names = {name for pair in PAIRS for name in (pair.ours, pair.peer)}
    engines = {
        each.name: each
        for each in find(places, ["octavo", *kinds], names)
        if isinstance(each, ServerEngine)
    }
    directory = smollm2_bf16(places.models, None).directory
    assert directory is not None
    pairs = [pair for pair in PAIRS if pair.peer in engines]
    found: dict[tuple[Pair, int, str], list[float]] = {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # runs `finally`
    with tempfile.TemporaryDirectory() as place:
        give_adapters(engines, directory, Path(place))
        try:
            for number in range(asked.rounds):
                for pair, count in product(pairs, streams):
                    for name in (pair.ours, pair.peer)[:: (-1) ** number]:
                        value = speed(engines[name], pair.adapters, count, number)
                        print(number + 1, count, name, f"{value:.1f}", file=sys.stderr, flush=True)
                        found.setdefault((pair, count, name), []).append(value)
        finally:
            for engine in engines.values():
                engine.close()
    print(f"{processor()[0]}, {places.threads} threads, {asked.rounds} rounds")
    for pair in pairs:
        for count in streams:
            mine, beside = (found[pair, count, name] for name in (pair.ours, pair.peer))
            named = f"{count:3} streams: {pair.ours} {statistics.median(mine):.1f}, {pair.peer} "
            print(
                f"{named}{statistics.median(beside):.1f}, {ratio(mine, beside)}, must {pair.must}"
            )


if __name__ == "__main__":
    main()
