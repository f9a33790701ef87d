"""A world around the whole front end: clients that speak HTTP over ASGI, and faults.

The application, admission, generation, `AsyncLLM`, the process client and the engine without its
model are the real ones. Connections, readers, processes, the clock and the order of tasks are
simulated from a seed. Every client knows its right output.
"""

from __future__ import annotations

import asyncio
import json
import random
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from octavo import SamplingParams
from octavo.core.request import Request
from octavo.dialects.common.dialect import OPENAI
from octavo.options.server import ServerSettings
from octavo.server.admin.routes import ADMIN_ROUTES
from octavo.server.application import application
from octavo.server.lifecycle import ServerLifecycle
from octavo.server.site import OneModel
from octavo.serving.exchange import Exchange
from octavo.serving.server import Server
from tests.client.fake_engine import HARMLESS, POISON_TOKEN
from tests.sim.shell.connection import Connection
from tests.sim.shell.engine_side import STEP_SECONDS
from tests.sim.shell.shell_world import LIMIT_SECONDS, World, require
from tests.sim.truth import whole_output

MAX_ATTEMPTS = 100
STALL_SECONDS = 3.0
END_SECONDS = 2.5  # after the drain's own time, to write the last frames


@dataclass
class Wish:
    """The request of one client, its behaviour, and its right output."""

    index: int
    prompt: list[int]
    n: int
    max_tokens: int
    stop: list[int]
    is_stream: bool
    deadline_ms: int | None
    pace: float
    stalls_after: int | None
    hangs_up_after: float | None
    aborts_after: float | None
    body_delay: float
    whole: list[int] = field(default_factory=list)
    reason: str = ""

    @property
    def kills(self) -> bool:
        """True if it ends the engine that computes it."""
        return POISON_TOKEN in self.prompt and len(self.whole) > HARMLESS

    def body(self) -> bytes:
        """Return the body of the request as JSON."""
        fields: dict[str, Any] = {
            "prompt": self.prompt,
            "n": self.n,
            "max_tokens": self.max_tokens,
            "stop_token_ids": self.stop,
            "stream": self.is_stream,
            "seed": self.index + 1,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        if self.is_stream:
            fields["stream_options"] = {"include_usage": True}
        if self.deadline_ms is not None:
            fields["deadline_ms"] = self.deadline_ms
        return json.dumps(fields).encode()


@dataclass
class Answer:
    """The content of a response."""

    tokens: list[list[int]]
    text: list[str]
    reasons: list[str | None]
    error: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None


class ServerWorld(World):
    """The world of one seed."""

    def _run(self) -> None:
        self._start()
        self.num_calls = 0
        self.is_drained = False
        self.high_water = self.random.choice([20, 600])
        self.slow: set[str] = set()  # requests whose client reads slowly
        self.loop.run_until_complete(asyncio.wait_for(self._live(), LIMIT_SECONDS))
        self._check_the_end()

    async def _live(self) -> None:
        choose = self.random.choice
        config = ServerSettings(
            max_waiting_requests=choose([2, 5, 1000]),
            max_waiting_tokens=choose([10, 40, 4_000_000]),
            max_running_sequences=choose([None, 1, 3]),
            stall_seconds=STALL_SECONDS,
            status_seconds=choose([0.01, 1.0]),
            ping_seconds=choose([0.0, 0.05, 1.0]),
            drain_seconds=choose([0.01, 0.5, 30.0]),
        )
        self.engine.attach()
        self.server = Server(self.engine, config, self.loop.time)
        self.application = application(self.server)
        self.admin = application(self.server, ADMIN_ROUTES, checks_access=False)
        faults = asyncio.create_task(self._faults())
        callers = [asyncio.create_task(self._call(i)) for i in range(self.random.randint(2, 8))]
        end = self.random.random()
        if end < 0.1:  # the engine is closed while clients wait
            await asyncio.sleep(self.random.uniform(0, 4))
            self.is_over = True
            self.engine.close()
            self._count("closed")
        elif end < 0.35:
            await asyncio.sleep(self.random.uniform(0, 4))
            await self._end_in_order()
        elif end < 0.5:
            await asyncio.sleep(self.random.uniform(0, 4))
            await self._ask_admin("/drain")
            self._count("drained")
            await asyncio.sleep(self.random.uniform(0, 3))
            await self._ask_admin("/resume")
        await asyncio.gather(*callers)
        await self._end_faults(faults)
        if self.is_drained:  # the engine still has to drop aborted requests
            await self._wait_for(lambda: not len(self.client._journal))
        elif not self.is_over:
            await self._heal()
        await self.operator.settle()

    async def _end_in_order(self) -> None:
        """End the server as SIGTERM does, and perhaps as a second one does."""
        self._count("ended")
        life = ServerLifecycle(OneModel(self.server), handles_signals=False)
        began, slept = self.loop.time(), self.num_events.get("asleep", 0)
        self.is_drained = True
        life.end()
        if self.random.random() < 0.3:
            self.loop.call_later(self.random.random(), life.end)
        await life._drain()
        if self.num_events.get("asleep", 0) == slept:
            took = self.loop.time() - began
            require(took <= self.server.config.drain_seconds + END_SECONDS, f"drained {took:.1f} s")
        # A client that reads slowly, or not at all, may still have something to read.
        left = {flight.record.request_id for flight in self.server.active.values()} - self.slow
        require(not left, f"{left} are still open after the drain")

    async def _ask_admin(self, path: str, **fields: Any) -> int:
        connection = Connection("admin", "POST", path, json.dumps(fields).encode())
        reader = asyncio.ensure_future(connection.read(0.0))
        self.num_calls += 1
        await self.admin.answer(self._exchange(connection))
        await reader
        assert connection.status is not None
        return connection.status

    def _exchange(self, connection: Connection) -> Exchange:
        """Return the exchange of a request, as the server's own protocol has it made."""
        return Exchange(self.server, connection.head, connection, OPENAI, connection.receive)

    # clients

    def _wish(self, index: int, chance: random.Random) -> Wish:
        prompt = [chance.randrange(POISON_TOKEN) for _ in range(chance.randint(1, 30))]
        if chance.random() < 0.06:
            prompt[chance.randrange(len(prompt))] = POISON_TOKEN
            self.has_cause = True
        made = Wish(
            index=index,
            prompt=prompt,
            n=chance.choice([1, 1, 1, 3]),
            max_tokens=chance.randint(1, 25),
            stop=[chance.randrange(60)] if chance.random() < 0.3 else [],
            is_stream=chance.random() < 0.7,
            deadline_ms=chance.randint(1, 3000) if chance.random() < 0.1 else None,
            pace=chance.choice([0.0, 0.0, 0.3]),
            stalls_after=chance.randint(0, 2) if chance.random() < 0.1 else None,
            hangs_up_after=chance.uniform(0, 2) if chance.random() < 0.2 else None,
            aborts_after=chance.uniform(0, 2) if chance.random() < 0.08 else None,
            body_delay=chance.choice([0.0, 0.0, 0.5]),
        )
        sampling = SamplingParams(
            max_tokens=made.max_tokens, stop_token_ids=tuple(made.stop), ignore_eos=True
        )
        request = Request("", array("i", prompt), sampling, 0.0)
        whole, reason = whole_output(request, self.launcher.config.max_model_len)
        made.whole, made.reason = whole, reason
        return made

    async def _call(self, index: int) -> None:
        chance = random.Random(f"{self.seed}/{index}")
        await asyncio.sleep(chance.uniform(0, 3))
        wish = self._wish(index, chance)
        for attempt in range(MAX_ATTEMPTS):
            connection = await self._ask(wish, f"c{index}x{attempt}")
            seconds = self._check_response(wish, connection)
            if seconds is None:
                return
            self._count("retried")
            await asyncio.sleep(seconds)
        raise AssertionError(f"client {index} was rejected {MAX_ATTEMPTS} times")

    async def _ask(self, wish: Wish, name: str) -> Connection:
        """Send a request once, and wait until response and connection have ended."""
        connection = Connection(name, "POST", "/v1/completions", wish.body(), self.high_water)
        connection.pieces = [(wish.body_delay, piece) for _, piece in connection.pieces]
        was_drained = self.is_drained
        if wish.pace or wish.stalls_after is not None:
            self.slow.add(name)
        self.num_calls += 1
        answering = asyncio.ensure_future(self.application.answer(self._exchange(connection)))
        reader = asyncio.ensure_future(connection.read(wish.pace, wish.stalls_after))
        others = [asyncio.ensure_future(self._hang_up(wish, connection, name))]
        if wish.aborts_after is not None:
            others.append(asyncio.ensure_future(self._abort(wish.aborts_after, name)))
        await answering
        if wish.stalls_after is not None and not connection.is_closed:
            connection.close()
        await reader
        if others[0].done():
            await others[0]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if was_drained:
            require(connection.status in (503, None), f"{name} was admitted after the drain began")
        # Twice, since a ping is written without waiting.
        limit = connection.high_water + 2 * connection.largest_write
        require(
            connection.most_unread <= limit, f"{connection.most_unread} bytes are unread by {name}"
        )
        return connection

    async def _hang_up(self, wish: Wish, connection: Connection, name: str) -> None:
        """Close the connection, and check that server and engine have dropped the request."""
        if wish.hangs_up_after is None:
            return
        await asyncio.sleep(wish.hangs_up_after)
        entries = [each for each in self.client._journal if each.name.startswith(f"{name}-")]
        numbers = {str(each.number) for each in entries if each.number is not None}
        engine, launcher = self.launcher.engines[-1], self.launcher
        connection.close()
        self._count("hung up")
        await asyncio.sleep(2 * launcher.max_delay + 3 * STEP_SECONDS)
        names = [flight.record.request_id for flight in self.server.active.values()]
        require(name not in names, f"{name} has hung up, but the server still serves it")
        if not (engine.is_hung or engine.is_stopped or launcher.fullness) and engine.is_ready:
            left = numbers & set(engine.names())
            require(not left, f"{name} has hung up, but the engine still computes it")

    async def _abort(self, seconds: float, name: str) -> None:
        await asyncio.sleep(seconds)
        if await self._ask_admin("/abort_requests", request_ids=[name]) == 200:
            self._count("aborted")

    # the checks of each response

    def _check_response(self, wish: Wish, connection: Connection) -> float | None:
        """Check a response; return the seconds until a retry, or None if there is none."""
        name = f"client {wish.index}"
        if connection.is_closed:
            self._check_closed(wish, connection)
            return None
        require(connection.is_whole, f"{name} got an incomplete response")
        answer = self._parse(wish, connection)
        for tokens in answer.tokens:
            require(tokens == wish.whole[: len(tokens)], f"{name}: {tokens}, not {wish.whole}")
        if answer.error is None:
            self._check_served(wish, answer)
            return None
        return self._check_error(wish, connection, answer.error)

    def _check_closed(self, wish: Wish, connection: Connection) -> None:
        """Check a response that was cut off: the client closed it, or did not read."""
        if connection.was_cut:
            self._count("cut")
            is_slow = wish.stalls_after is not None or "asleep" in self.num_events
            require(is_slow, f"client {wish.index} reads, but was cut off")
        if wish.is_stream and connection.status == 200:
            answer = self._parse(wish, connection)
            for tokens in answer.tokens:
                require(tokens == wish.whole[: len(tokens)], f"client {wish.index}: {tokens}")

    def _parse(self, wish: Wish, connection: Connection) -> Answer:
        answer = Answer([[] for _ in range(wish.n)], [""] * wish.n, [None] * wish.n)
        if connection.status != 200:
            answer.error = json.loads(connection.received)["error"]
            return answer
        if not wish.is_stream:
            parts = [json.loads(connection.received)]
        else:
            parts, is_ended = connection.frames()
            require(is_ended or connection.is_closed, f"client {wish.index}: no end marker")
        for part in parts:
            require(answer.error is None, "a frame follows an error")
            answer.error = part.get("error")
            answer.usage = part.get("usage") or answer.usage
            for choice in part.get("choices", ()):
                index = choice["index"]
                require(answer.reasons[index] is None, "tokens follow a finish reason")
                answer.tokens[index] += choice.get("token_ids") or []
                answer.text[index] += choice["text"]
                answer.reasons[index] = choice["finish_reason"]
        return answer

    def _check_served(self, wish: Wish, answer: Answer) -> None:
        name = f"client {wish.index}"
        if "abort" in answer.reasons:
            require(wish.aborts_after is not None, f"{name} was aborted without a command")
            return
        require(not wish.kills, f"{name} should have ended the engine")
        require(all(tokens == wish.whole for tokens in answer.tokens), f"{name}: not all tokens")
        require(
            set(answer.reasons) == {wish.reason}, f"{name}: {answer.reasons}, not {wish.reason}"
        )
        shown = wish.whole[:-1] if wish.reason == "stop" else wish.whole
        text = self.engine.model.tokenizer.decode(shown, skip_special_tokens=True)
        require(all(each == text for each in answer.text), f"{name}: {answer.text}, not {text!r}")
        assert answer.usage is not None
        counted = answer.usage["prompt_tokens"], answer.usage["completion_tokens"]
        require(counted == (len(wish.prompt), wish.n * len(wish.whole)), f"{name}: {answer.usage}")
        self._count("served")

    def _check_error(
        self, wish: Wish, connection: Connection, error: dict[str, Any]
    ) -> float | None:
        name, code = f"client {wish.index}", error["code"]
        self._count(f"{code} in a stream" if connection.status == 200 else str(code))
        again = float(connection.headers.get("retry-after", "1"))
        is_late = wish.deadline_ms is not None or "asleep" in self.num_events
        match code:
            case "engine_error":
                require(wish.kills, f"{name} failed without a fault of its own")
                return None
            case "deadline_exceeded" | "deadline":
                require(is_late, f"{name} had no deadline: {error}")
                return None
            case "server_shutdown":
                has_header = "retry-after" in connection.headers or connection.status == 200
                require(has_header, f"{name} got no retry-after header")
                drained = self.is_drained or "drained" in self.num_events
                require(drained, f"{name} got server_shutdown without a drain")
                return None if self.is_drained else again
            case "engine_not_ready":
                return None if self.is_over else again
            case "aborted":
                require(wish.aborts_after is not None, f"{name} was aborted without a command")
                return None
            case "queue_full" | "tokens" | "bytes" | "engine_full":
                require(connection.status == 429, f"{name} was rejected after a status 200")
                return again
            case None if connection.status == 408:
                require("asleep" in self.num_events, f"{name}: {error}")
                return None
        raise AssertionError(f"{name}: {connection.status} {error}")

    # the end

    async def _heal(self) -> None:
        self.launcher.fullness = self.launcher.start_failures = 0.0
        await self._ask_admin("/resume")
        wish = self._wish(99, random.Random(0))
        for name in ("stalls_after", "hangs_up_after", "aborts_after", "deadline_ms"):
            setattr(wish, name, None)
        for attempt in range(MAX_ATTEMPTS):
            seconds = self._check_response(wish, await self._ask(wish, f"last{attempt}"))
            if seconds is None:
                break
            await asyncio.sleep(seconds)
        else:
            raise AssertionError("a request after the last fault was not served")
        await self._wait_for(lambda: not self.launcher.engines[-1].names())
        require(not self.launcher.engines[-1].names(), "the engine still has sequences")
        self._count("restarts", self.client.engines[0].supervisor.restarts.num_restarts)

    async def _wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait a while for a condition that sends no notification; the caller checks it."""
        for _ in range(2000):
            if condition():
                return
            await asyncio.sleep(0.05)

    def _check_the_end(self) -> None:
        queue, server = self.server.admission, self.server
        held = (queue.num_open, queue.num_waiting, queue.waiting_tokens, queue.waiting_bytes)
        require(held == (0, 0, 0, 0), f"the admission queue counts ended requests: {held}")
        require(queue.num_admitted == 0, f"{queue.num_admitted} sequences are still admitted")
        leaked = [key for key, each in queue._queues.items() if each.num_admitted]
        require(not leaked, f"keys with requests that are still admitted: {leaked}")
        require(not server.active, f"requests are still active: {list(server.active)}")
        answered = sum(server.metrics.responses._values.values())
        require(answered == self.num_calls, f"{answered} of {self.num_calls} calls were counted")
        super()._check_the_end()
