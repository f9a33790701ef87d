"""Measures how much of its prompts a router finds cached: by the text, and by KV events.

    python -m benchmarks.served.routed_hits

Two real servers of a tiny model stand behind `octavo route`, each with KV for half of 64
conversations of 8 turns, 16 at once. The share of prompt tokens that servers find in their caches
is their own count. Behind one router each turn passes the same one; of two routers, as behind a
balancer, each sees a random half of the turns. `--known-tokens` is the size of a server's cache.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import httpx

from benchmarks.served.command import port_of, running
from tests.api.tiny import make_model

NUM_CONVERSATIONS, NUM_TURNS, AT_ONCE = 64, 8, 16
FIRST_WORDS, TURN_WORDS, ANSWER_TOKENS = 12, 10, 16
BLOCK_TOKENS = 16
LIMIT_SECONDS = 600.0
WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "day", "town", "month")


class Conversation:
    """One client, which sends all that was said with each turn."""

    def __init__(self, number: int) -> None:
        self._random = random.Random(number)
        self.text = f"{number} " + self._words(FIRST_WORDS)

    def _words(self, count: int) -> str:
        return " ".join(self._random.choice(WORDS) for _ in range(count))

    async def run(self, clients: Sequence[httpx.AsyncClient]) -> None:
        for _ in range(NUM_TURNS):
            client = self._random.choice(clients)
            body = {"prompt": self.text, "max_tokens": ANSWER_TOKENS, "ignore_eos": True}
            answer = await client.post("/v1/completions", json={**body, "temperature": 0})
            answer.raise_for_status()
            self.text += answer.json()["choices"][0]["text"] + " " + self._words(TURN_WORDS)


async def converse(urls: Sequence[str]) -> int:
    """Run all conversations; return the tokens of them all at their ends."""
    conversations = [Conversation(number) for number in range(NUM_CONVERSATIONS)]
    free = asyncio.Semaphore(AT_ONCE)
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                httpx.AsyncClient(base_url=url, timeout=LIMIT_SECONDS, trust_env=False)
            )
            for url in urls
        ]

        async def one(conversation: Conversation) -> None:
            async with free:
                await conversation.run(clients)

        await asyncio.gather(*map(one, conversations))
        sizes = [
            (await clients[0].post("/tokenize", json={"prompt": each.text})).json()["count"]
            for each in conversations
        ]
    return sum(sizes)


def counted(url: str, name: str) -> float:
    lines = httpx.get(f"{url}/metrics", trust_env=False, timeout=LIMIT_SECONDS).text.splitlines()
    found = [line for line in lines if f":{name}_total{{" in line]
    return sum(float(line.rpartition(" ")[2]) for line in found)


def measure(
    model: Path, num_blocks: int, num_servers: int, num_routers: int, known: int, *, events: bool
) -> tuple[float, int]:
    """Return the share of prompt tokens that servers find, and the tokens of all texts."""
    with ExitStack() as stack:
        log = stack.enter_context((model / "log").open("w"))
        sockets = stack.enter_context(tempfile.TemporaryDirectory())

        def start(*words: str) -> str:
            process = stack.enter_context(running(*words, log=log.fileno(), environment={}))
            return f"http://127.0.0.1:{port_of(process)}"

        urls, flags = [], ["--known-tokens", str(known)]
        for number in range(num_servers):
            events_at, replays_at = f"ipc://{sockets}/{number}", f"ipc://{sockets}/{number}r"
            config = {"enable_kv_cache_events": True, "endpoint": events_at}
            words = ["serve", str(model), "--port", "0", "--num-threads", "1"]
            words += ["--block-size", str(BLOCK_TOKENS), "--max-num-seqs", str(AT_ONCE)]
            words += ["--num-gpu-blocks-override", str(num_blocks), "--kv-events-config"]
            urls.append(start(*words, json.dumps({**config, "replay_endpoint": replays_at})))
            if events:
                flags += ["--kv-events", f"{urls[-1]}={events_at},{replays_at}"]
        for url in urls:
            while httpx.get(f"{url}/health", trust_env=False).status_code != 200:
                pass
        routers = [start("route", *urls, "--port", "0", *flags) for _ in range(num_routers)]
        size = asyncio.run(converse(routers))
        hits = sum(counted(url, "prefix_cache_hits") for url in urls)
        return hits / sum(counted(url, "prefix_cache_queries") for url in urls), size


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        model = make_model(Path(name))
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}))
        whole, size = measure(model, 20_000, 1, 1, 1_000_000, events=False)
        print(f"one server with room for all {size} tokens: {whole:.3f}", flush=True)
        num_blocks = size // 2 // BLOCK_TOKENS + 1
        for num_routers in (1, 2):
            for events in (False, True):
                found, _ = measure(model, num_blocks, 2, num_routers, size // 2, events=events)
                kind = "KV events" if events else "the text"
                share = f"{found:.3f}, {found / whole:.3f} of one server"
                print(f"routers: {num_routers}, by {kind}: {share}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
