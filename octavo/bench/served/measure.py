"""Sends the requests of a measurement in time, and collects what was seen of their answers."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.bench.load.asked import Asked
from octavo.bench.served.answer import Answer, Reader
from octavo.bench.served.arrivals import AT_ONCE, Pace, arrivals
from octavo.bench.served.client import Client
from octavo.core.config import ConfigError
from octavo.route.client import UpstreamError

REQUEST_SECONDS = 6 * 3600.0  # for one request, as vLLM's command has it
_MOST_WORDS = 2.0  # in a token, whatever a server says
_FIRST_WAIT = 0.1  # between two attempts to reach a server that starts


class NoServerError(ConnectionError):
    """A server that cannot be reached, or does not answer as it must."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The way in which requests are sent, and what all of them have."""

    endpoint: str
    fields: dict[str, Any]  # of each body, beside the prompt and the tokens
    pace: Pace = AT_ONCE
    most_at_once: int | None = None
    seconds: float = REQUEST_SECONDS

    def body(self, asked: Asked) -> bytes:
        """Return the body of a request."""
        fields = {**self.fields, "stream": True, "stream_options": {"include_usage": True}}
        if asked.model:
            fields["model"] = asked.model
        if self.endpoint.endswith("/chat/completions"):
            whole = isinstance(asked.prompt, str)
            messages = [{"role": "user", "content": asked.prompt}] if whole else asked.prompt
            fields |= {"messages": messages, "max_tokens": asked.max_tokens}
        else:
            fields |= {"prompt": asked.prompt, "max_tokens": asked.max_tokens}
        return json.dumps(fields).encode()


@dataclass(slots=True)
class Run:
    """A measurement: its answers so far, and how many requests are open."""

    began: float
    answers: list[Answer] = field(default_factory=list)
    num_open: int = 0
    ended: float = math.nan

    @property
    def num_tokens(self) -> int:
        """The tokens of the answers that are complete."""
        return sum(each.tokens for each in self.answers)


async def measure(
    client: Client,
    plan: Plan,
    asked: Sequence[Asked],
    chance: random.Random,
    watch: Callable[[Run], None] = lambda run: None,
) -> Run:
    """Send all requests, and return the run when the last answer has ended.

    When this is cancelled, the answers that were complete are kept.
    """
    times = arrivals(asked, plan.pace, chance)
    places = asyncio.Semaphore(plan.most_at_once or len(asked))
    run = Run(time.perf_counter())

    async def one(request: Asked, at: float) -> None:
        await asyncio.sleep(run.began + at - time.perf_counter())
        async with places:
            run.num_open += 1
            try:
                run.answers.append(await ask(client, plan, request))
            finally:
                run.num_open -= 1
        watch(run)

    tasks = [asyncio.ensure_future(one(*each)) for each in zip(asked, times, strict=True)]
    try:
        await asyncio.gather(*tasks)
    except asyncio.CancelledError:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    run.ended = time.perf_counter()
    return run


async def ask(client: Client, plan: Plan, asked: Asked) -> Answer:
    """Send one request, and return what was seen of its answer, or its error."""
    answer = Answer(time.perf_counter())
    reader = Reader(answer)
    try:
        async with asyncio.timeout(plan.seconds):
            status = await client.send("POST", plan.endpoint, plan.body(asked), reader.take)
    except TimeoutError:
        answer.error = f"no whole answer within {plan.seconds:g} s"
    except (OSError, UpstreamError) as error:
        answer.error = str(error) or type(error).__name__
    else:
        reader.end(status, time.perf_counter())
    if answer.error:
        answer.ended = time.perf_counter()
    return answer


async def reach(client: Client, seconds: float) -> list[str]:
    """Return the names of the server's models, for which to wait at most so long."""
    end, wait = time.monotonic() + seconds, _FIRST_WAIT
    while True:
        try:
            status, body = await client.read("GET", "/v1/models")
            if status == 200:
                return [str(each["id"]) for each in json.loads(body)["data"]]
            why = f"/v1/models has the status {status}"
        except (OSError, UpstreamError) as error:
            why = str(error)
        except (ValueError, KeyError, TypeError, RecursionError):
            why = "its /v1/models is not as OpenAI's"
        if time.monotonic() + wait > end:
            raise NoServerError(why)
        await asyncio.sleep(wait)
        wait = min(2 * wait, 2.0)


async def words_per_token(client: Client, model: str, words: Sequence[str]) -> float:
    """Return how many of these words a token is in the mean; 1 if the server does not count."""
    text = " ".join(words)
    for name in ("prompt", "content"):  # as vLLM and as llama-server have it
        body = json.dumps({"model": model, name: text}).encode()
        try:
            status, told = await client.read("POST", "/tokenize", body)
            if status == 200 and (tokens := json.loads(told)["tokens"]):
                return min(len(words) / len(tokens), _MOST_WORDS)
        except (OSError, UpstreamError, ValueError, KeyError, TypeError, RecursionError):
            break
    return 1.0


def check_chat(asked: Sequence[Asked], endpoint: str) -> None:
    """Raise ConfigError if conversations were to be sent as plain prompts."""
    is_chat = endpoint.endswith("/chat/completions")
    if not is_chat and any(not isinstance(each.prompt, str) for each in asked):
        raise ConfigError(
            "the prompts have `messages`, which only a chat takes: backend=openai-chat"
        )
