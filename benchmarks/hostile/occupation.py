"""Lets one key take all that it can get of the engine, while another asks for a single token."""

from __future__ import annotations

import asyncio
import contextlib
import json

from benchmarks.hostile.attack import ATTACK_KEY, COMPLETIONS, WATCH_KEY, Attack, Right, request
from benchmarks.hostile.client import Outcome, carry_out
from benchmarks.hostile.live.listeners import listen_too_often

RESPONSES = "/v1/responses"
NUM_STREAMS = 150  # more than the engine has slots
STREAM_TOKENS = 1000
NUM_RESPONSES = 1000
SENDERS = 16  # connections at once that begin responses in the background


async def occupy(port: int, num_responses: int = NUM_RESPONSES) -> list[str]:
    """Return the faults of a server, one of whose keys wants all of it."""
    faults = await listen_too_often(port)
    faults += await _beside_streams(port)
    return faults + await _beside_responses(port, num_responses)


async def _send(port: int, path: str, body: object, key: str = ATTACK_KEY) -> Outcome:
    data = json.dumps(body).encode()
    return await carry_out(Attack((request(path, data, key=key),), Right.SERVED), port)


async def _other_is_served(port: int) -> str | None:
    """Return what is wrong with the answer to another key; None if nothing is."""
    outcome = await _send(port, COMPLETIONS, {"prompt": [5, 6], "max_tokens": 1}, WATCH_KEY)
    statuses = [answer.status for answer in outcome.answers]
    return None if statuses == [200] else f"another key's request has status {statuses}"


async def _beside_streams(port: int) -> list[str]:
    """Ask with another key while one key's streams fill the engine and the queue."""
    body = {"prompt": [5], "max_tokens": STREAM_TOKENS, "ignore_eos": True, "stream": True}
    streams = [
        asyncio.ensure_future(_send(port, COMPLETIONS, body | {"seed": seed}))
        for seed in range(NUM_STREAMS)
    ]
    faults: list[str] = []
    try:
        await asyncio.sleep(1.0)  # most of them have begun
        wrong = await _other_is_served(port)
        faults += [] if wrong is None else [f"beside {NUM_STREAMS} streams, {wrong}"]
        if any(stream.done() and _is_whole(stream.result()) for stream in streams):
            faults.append("another key's request waited until a stream of 1,000 tokens had ended")
    finally:
        for stream in streams:
            stream.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*streams, return_exceptions=True)
    return faults


def _is_whole(outcome: Outcome) -> bool:
    return any(answer.status == 200 and answer.is_whole for answer in outcome.answers)


async def _beside_responses(port: int, num_responses: int) -> list[str]:
    """Ask with another key while one key has begun all the responses that it may."""
    body = {"input": "x", "background": True, "max_output_tokens": STREAM_TOKENS}
    names: list[str] = []
    numbers = iter(range(num_responses))

    async def begin() -> None:
        for _ in numbers:
            answers = (await _send(port, RESPONSES, body)).answers
            begun = [answer for answer in answers if answer.status == 200]
            names.extend(json.loads(bytes(answer.body))["id"] for answer in begun)

    await asyncio.gather(*(begin() for _ in range(SENDERS)))
    wrong = await _other_is_served(port)
    faults = [] if wrong is None else [f"beside {len(names)} responses in the background, {wrong}"]
    if not names:
        faults.append("no response in the background was accepted")
    for name in names:
        await _send(port, f"{RESPONSES}/{name}/cancel", {})
    return faults
