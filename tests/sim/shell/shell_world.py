"""A world around the front end's asynchronous shell: callers, and what befalls their engine.

`AsyncLLM` and the process client are the real ones, and so is all that an engine consists of but
its model; the sockets, the processes, the clock and the order of tasks come from a seed. Every
caller knows what it must be told, for the fake model's text is settled by the prompt.
"""

from __future__ import annotations

import asyncio
import random
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from octavo import AsyncLLM, RequestOutputKind, SamplingParams
from octavo.api.outputs import EngineDeadError, RequestOutput
from octavo.api.requests import FailedRequestError
from octavo.client.process import ProcessClient
from octavo.client.restart_policy import Timing
from octavo.core.config import CoreConfig
from octavo.core.request import Request
from octavo.engine_arguments import EngineArguments
from tests.client.fake_engine import HARMLESS, POISON_TOKEN
from tests.sim.shell.engine_side import STEP_SECONDS, SimEngine, SimLauncher
from tests.sim.shell.virtual_loop import VirtualLoop
from tests.sim.truth import whole_output

LIMIT_SECONDS = 700.0  # virtual; whoever has not ended by then never will
TIMING = Timing(
    watchdog_seconds=3.0, silence_seconds=2.0, start_seconds=50.0, max_failed_engines=40
)


class WrongError(AssertionError):
    """Somebody was told something else than he should have been."""


def require(condition: bool, message: str) -> None:
    """Raise WrongError unless the condition holds."""
    if not condition:
        raise WrongError(message)


@dataclass
class Outcome:
    """What one caller has seen."""

    tokens: list[list[int]]
    text: list[str]
    reasons: list[str | None]
    ending: str = "left"  # or "finished", "failed", "dead"
    left_in: SimEngine | None = None  # the engine it was in when its caller left it …
    left_as: list[str] = field(default_factory=list)  # … and under which numbers


@dataclass
class World:
    """One seed's."""

    seed: int
    num_events: dict[str, int] = field(default_factory=dict)  # what has happened, how often

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.loop = VirtualLoop(self.seed)
        config = CoreConfig(
            num_blocks=self.random.choice([30, 60, 300]),
            max_model_len=64,
            block_size=4,
            max_num_batched_tokens=self.random.choice([8, 32, 128]),
            max_num_seqs=self.random.choice([2, 4, 16]),
        )
        self.launcher = SimLauncher(self.loop, self.seed + 1, config)
        self.is_over = False
        self.has_guilty = False  # somebody who may well end an engine
        self.slips: list[str] = []  # errors in callbacks, which nobody waits for
        self.loop.set_exception_handler(lambda loop, told: self.slips.append(str(told)))

    def run(self) -> None:
        """All of it; AssertionError if anything is wrong."""
        asyncio.set_event_loop(self.loop)
        try:
            self._run()
        finally:
            self._tidy()
            asyncio.set_event_loop(None)
            self.loop.close()

    def _tidy(self) -> None:
        """End what a world that went wrong has left."""
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))

    def _run(self) -> None:
        arguments = EngineArguments(model="simulated", seed=self.seed)
        client = ProcessClient(arguments, self.launcher, TIMING, self.loop.time)
        client.start()
        self.client = client
        self.engine = AsyncLLM.over(client, arguments)
        self.launcher.fullness = self.random.choice([0.0, 0.0, 0.3])
        self.launcher.start_failures = self.random.choice([0.0, 0.0, 0.3])
        self.loop.run_until_complete(asyncio.wait_for(self._live(), LIMIT_SECONDS))
        self._check_the_end()

    async def _live(self) -> None:
        faults = asyncio.create_task(self._faults())
        callers = [asyncio.create_task(self._call(i)) for i in range(self.random.randint(2, 8))]
        if self.random.random() < 0.15:  # the server is closed on all of them
            await asyncio.sleep(self.random.uniform(0, 4))
            self.engine.close()
            self.is_over = True
            self._count("closed")
        await asyncio.gather(*callers)
        faults.cancel()
        await asyncio.gather(faults, return_exceptions=True)
        if not self.is_over:
            await self._heal()

    # callers

    async def _call(self, index: int) -> None:
        chance = random.Random(f"{self.seed}/{index}")
        await asyncio.sleep(chance.uniform(0, 3))
        is_poison = chance.random() < 0.08
        prompt = [chance.randrange(POISON_TOKEN) for _ in range(chance.randint(1, 30))]
        self.has_guilty |= is_poison
        if is_poison:
            prompt[chance.randrange(len(prompt))] = POISON_TOKEN
        kind = chance.choice(list(RequestOutputKind))
        sampling = SamplingParams(
            n=chance.choice([1, 1, 1, 3]),
            max_tokens=chance.randint(1, 25),
            seed=index,
            ignore_eos=True,
            stop_token_ids=(chance.randrange(60),) if chance.random() < 0.3 else (),
            output_kind=kind,
        )
        outcome = Outcome([[] for _ in range(sampling.n)], [""] * sampling.n, [None] * sampling.n)
        leaves_after = chance.choice([None, None, None, chance.randint(0, 5)])
        pace = chance.choice([0.0, 0.0, 0.2])  # a slow reader
        reader = self._read(f"c{index}", prompt, sampling, outcome, leaves_after, pace)
        task = asyncio.ensure_future(reader)
        if chance.random() < 0.1:  # a connection that breaks, whenever
            await asyncio.wait([task], timeout=chance.uniform(0, 3))
            task.cancel()
            self._count("cancelled")
        if chance.random() < 0.1:
            await asyncio.wait([task], timeout=chance.uniform(0, 3))
            await self.engine.abort(f"c{index}")
            self._count("aborted")
            outcome.ending = "aborted"
        await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
        self._check(index, prompt, sampling, outcome, is_poison)
        await self._check_gone(f"c{index}", outcome)

    async def _check_gone(self, name: str, outcome: Outcome) -> None:
        """Whoever has left is not computed any further."""
        engine, launcher = outcome.left_in, self.launcher
        await asyncio.sleep(2 * launcher.max_delay + 3 * STEP_SECONDS)
        if engine is None or engine.is_hung or engine.is_stopped or launcher.fullness:
            return
        left = set(outcome.left_as) & set(engine.names()) if engine.is_ready else set()
        require(not left, f"{name} has left, and the engine goes on with it")

    async def _read(
        self,
        name: str,
        prompt: list[int],
        sampling: SamplingParams,
        outcome: Outcome,
        leaves_after: int | None,
        pace: float,
    ) -> None:
        stream = self.engine.generate(prompt, sampling, name)
        num_outputs = 0
        try:
            async for output in stream:
                self._note(output, sampling, outcome)
                num_outputs += 1
                if num_outputs == leaves_after:
                    self._count("left")
                    return
                if pace:
                    await asyncio.sleep(pace)
            if outcome.ending == "left":
                outcome.ending = "finished"
        except FailedRequestError as error:
            require("this request ended the engine" in str(error), f"{name}: {error}")
            outcome.ending = "failed"
        except EngineDeadError:
            require(self.is_over, f"{name} was told of a death, and the engine lives")
            outcome.ending = "dead"
        finally:
            entries = [e for e in self.client._journal if e.name.startswith(f"{name}#")]
            outcome.left_as = [str(e.number) for e in entries if e.number is not None]
            outcome.left_in = self.launcher.engines[-1]
            await stream.aclose()  # type: ignore[attr-defined]

    def _note(self, output: RequestOutput, sampling: SamplingParams, outcome: Outcome) -> None:
        for part in output.outputs:
            if sampling.output_kind is RequestOutputKind.DELTA:
                outcome.tokens[part.index] += part.token_ids
                outcome.text[part.index] += part.text
            else:
                before = outcome.tokens[part.index]
                require(part.token_ids[: len(before)] == before, "what was told has changed")
                outcome.tokens[part.index] = part.token_ids[:]
                outcome.text[part.index] = part.text
            outcome.reasons[part.index] = part.finish_reason

    def _check(
        self,
        index: int,
        prompt: list[int],
        sampling: SamplingParams,
        outcome: Outcome,
        is_poison: bool,
    ) -> None:
        whole, reason = whole_output(
            Request("", array("i", prompt), sampling, 0.0), self.launcher.config.max_model_len
        )
        kills = is_poison and len(whole) > HARMLESS
        name = f"caller {index}"
        for tokens in outcome.tokens:
            require(tokens == whole[: len(tokens)], f"{name} was told {tokens}, not {whole}")
        if outcome.ending == "finished":
            require(not kills, f"{name} should have killed")
            require(all(tokens == whole for tokens in outcome.tokens), f"{name}: not all of it")
            require(set(outcome.reasons) == {reason}, f"{name}: {outcome.reasons}, not {reason}")
            decode = self.engine.model.tokenizer.decode
            shown = whole[:-1] if reason == "stop" else whole
            text = decode(shown, skip_special_tokens=True)
            require(all(each == text for each in outcome.text), f"{name}: {outcome.text}")
        elif outcome.ending == "failed":
            require(kills, f"{name} has done nothing, and failed")
            self._count("condemned")

    # what befalls the engine

    async def _faults(self) -> None:
        kinds: dict[str, Callable[[SimEngine], Any]] = {
            "killed": lambda engine: engine.end("its process was ended by SIGKILL", by_others=True),
            "crashed": lambda engine: engine.end("its process was ended by SIGSEGV"),
            "stopped": lambda engine: setattr(engine, "is_stopped", True),
            "hung": lambda engine: setattr(engine, "is_hung", True),
            "babbled": lambda engine: engine.babble(),
        }
        for _ in range(self.random.randint(0, 5)):
            await asyncio.sleep(self.random.choice([0.05, 0.5, 3.0]) * self.random.random())
            if self.is_over:
                return
            kind = self.random.choice([*kinds, "paused", "asleep"])
            engine = self.launcher.engines[-1]
            self._count(kind if engine.is_ready or kind in ("paused", "asleep") else "died young")
            if kind == "paused":
                await self.engine.pause()
                await asyncio.sleep(self.random.random())
                if not self.is_over:
                    await self.engine.resume()
            elif kind == "asleep":  # the whole machine: nobody may be blamed
                self.loop.now += 100.0
            else:
                self.has_guilty = True
                kinds[kind](engine)

    async def _heal(self) -> None:
        """No more faults: a last request must be served, and nothing be left of the others."""
        self.launcher.fullness = self.launcher.start_failures = 0.0
        await self.engine.resume()  # it may have been paused by the last of them
        sampling = SamplingParams(max_tokens=4, seed=1, ignore_eos=True)
        outcome = Outcome([[]], [""], [None])
        await self._read("last", [1, 2, 3], sampling, outcome, None, 0.0)
        require(outcome.ending == "finished", "healed, and nobody is served")
        self._check(-1, [1, 2, 3], sampling, outcome, is_poison=False)
        for _ in range(100):
            if not self.launcher.engines[-1].names():
                break
            await asyncio.sleep(0.05)
        require(not self.launcher.engines[-1].names(), "the engine still has sequences")
        num_restarts = self.client.supervisor.restarts.num_restarts
        if not self.has_guilty:
            require(num_restarts == 0, "an engine was ended for nothing")
        require(self.client.is_well(), "healed, and not well")
        self._count("late frames", self.launcher.num_late)
        self._count("restarts", num_restarts)

    def _check_the_end(self) -> None:
        require(not self.slips, f"errors that nobody saw: {self.slips}")
        require(not self.launcher.errors, f"between the two: {self.launcher.errors}")
        if not self.is_over:
            require(len(self.client._journal) == 0, "the journal has entries of nobody")
        require(not self.engine._sinks, "callers that nobody waits for")
        require(len(self.engine._table) == 0, "the request table has entries without a caller")
        self.engine.close()
        require(all(engine.is_closed for engine in self.launcher.engines), "engines left behind")
        require(self.launcher.is_closed, "the socket was left open")
        require(not self.client.supervisor.timers, "timers left behind")
        tasks = [task for task in asyncio.all_tasks(self.loop) if not task.done()]
        require(not tasks, f"tasks left behind: {tasks}")

    def _count(self, what: str, times: int = 1) -> None:
        self.num_events[what] = self.num_events.get(what, 0) + times
