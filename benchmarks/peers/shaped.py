"""Compare texts in the shape of a JSON schema with the servers of peers: same weights, in turns.

    make peers                              install them (once)
    python -m benchmarks.peers.shaped       llama-server on the same file, vLLM on the same bf16
    python -m benchmarks.peers.shaped --rounds 3 --streams 1,32 --peers llama

Every server writes persons of the schema of 20 fields from benchmarks/shaped.py, without streaming,
by its own way of asking for a schema. The figures are output tokens and whole texts a second: texts
too, because servers put different numbers of tokens and spaces into a text. A text that is cut at
the most tokens counts with its tokens, not as a text.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.peers import rows
from benchmarks.peers.cases import Case
from benchmarks.peers.found import Places, find
from benchmarks.peers.servers import ServerEngine
from benchmarks.shaped import PERSON, PROMPT, TWENTY
from octavo.observe.machine import num_cores, processor

ROOT = Path(__file__).resolve().parent.parent.parent
PEERS = ROOT / "build" / "peers"
MOST_TOKENS = 500  # a person takes 200 to 350
TEXTS = {1: 4, 8: 16, 32: 32}  # by streams
LIMIT_SECONDS = 600
# Ours, the peer, and how many times its speed ours must be.
PAIRS = ((rows.SERVED[0], rows.LLAMA_SERVED[0], 2.0), (rows.SERVED[1], rows.VLLM_SERVED[0], 1.5))


def body_of(engine: str, seed: int) -> dict[str, Any]:
    """Return a request for one person, in the words of the engine."""
    asked: dict[str, Any] = {
        "model": "model",
        "prompt": PROMPT,
        "max_tokens": MOST_TOKENS,
        "temperature": 0.8,
        "seed": seed,
    }
    if engine in rows.LLAMA_SERVED:
        return {**asked, "json_schema": PERSON}
    return {**asked, "structured_outputs": {"json": PERSON}}


def answer(port: int, body: dict[str, Any]) -> tuple[int, bool]:
    """Return the tokens of one text and whether it is whole; raise ValueError for a wrong one."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_SECONDS)
    try:
        connection.request(
            "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        reply = json.loads(response.read())
        if response.status != 200:
            raise ValueError(f"the server refused: {reply}")
    finally:
        connection.close()
    choice = reply["choices"][0]
    is_whole = choice["finish_reason"] != "length"
    if is_whole and set(person := json.loads(choice["text"])) != set(TWENTY):
        raise ValueError(f"not a person: {person}")
    return int(reply["usage"]["completion_tokens"]), is_whole


def measure(engine: ServerEngine, streams: int, number: int) -> dict[str, float]:
    """Return the tokens and the texts a second of one engine, whose server is started first."""
    count = TEXTS.get(streams, streams)
    case = Case("shaped", "shaped", "http", count, 64, MOST_TOKENS, 0, max(TEXTS))
    with engine.serving(case) as port, ThreadPoolExecutor(streams) as pool:
        answer(port, body_of(engine.name, 10_000 + number))  # the schema is compiled
        bodies = [body_of(engine.name, number * count + each) for each in range(count)]
        began = time.perf_counter()
        tokens, whole = zip(*pool.map(lambda body: answer(port, body), bodies), strict=True)
        seconds = time.perf_counter() - began
    return {"tok/s": sum(tokens) / seconds, "texts/s": sum(whole) / seconds}


def main() -> None:
    """Measure in rounds, and print the ratios of each round's figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", default="1,32")
    parser.add_argument("--peers", default="llama,vllm")
    parser.add_argument("--installed", type=Path, default=PEERS)
    parser.add_argument("--models", type=Path, default=ROOT / "build" / "models")
    asked = parser.parse_args()
    kinds, streams = asked.peers.split(","), [int(each) for each in asked.streams.split(",")]
    log = ROOT / "build" / "shaped.log"
    log.parent.mkdir(exist_ok=True)
    places = Places.installed_in(asked.installed.absolute(), asked.models, log, num_cores()[0])
    names = {name for pair in PAIRS for name in pair[:2]}
    engines = {each.name: each for each in find(places, ["octavo", *kinds], names)}
    found: dict[tuple[str, int, str], list[float]] = {}
    try:
        for number in range(asked.rounds):
            for count in streams:
                for name, engine in engines.items():
                    assert isinstance(engine, ServerEngine)
                    engine.kept = True  # each keeps its schema compiled, and is stopped in between
                    figures = measure(engine, count, number)
                    print(number + 1, count, name, figures, file=sys.stderr, flush=True)
                    for figure, value in figures.items():
                        found.setdefault((name, count, figure), []).append(value)
    finally:
        for engine in engines.values():
            engine.close()
    print(f"{processor()[0]}, {places.threads} threads, {asked.rounds} rounds")
    for ours, peer, least in PAIRS:
        for count in streams:
            for figure in ("tok/s", "texts/s"):
                mine, beside = found.get((ours, count, figure)), found.get((peer, count, figure))
                if mine and beside and all(beside):
                    named = f"{count:3} streams, {figure:7}: {ours} {statistics.median(mine):.1f}"
                    print(f"{named}, {peer} {statistics.median(beside):.1f}, {ratio(mine, beside)}")
            print(f"the ratio must be {least}")


def ratio(mine: list[float], beside: list[float]) -> str:
    """Return the median and the range of the rounds' ratios."""
    each = [a / b for a, b in zip(mine, beside, strict=True)]
    return f"ratio {statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})"


if __name__ == "__main__":
    main()
