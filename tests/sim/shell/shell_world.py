"""A world around the front end's asynchronous API: callers, and the faults of their engine.

`AsyncLLM`, the process client and the engine without its model are the real ones. The sockets,
the processes, the clock and the order of tasks are simulated from a seed. Every caller knows its
right output, since the fake model's text depends only on the prompt.
"""

from __future__ import annotations

import asyncio
import random
from array import array
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo import AsyncLLM, RequestOutputKind, SamplingParams
from octavo.api.control import CommandFailedError
from octavo.api.outputs import EngineDeadError, RequestOutput
from octavo.api.requests import FailedRequestError
from octavo.client.commands import COMMAND_SECONDS
from octavo.client.journal.client import JournalClient
from octavo.client.journal.journal import Entry
from octavo.client.process import ProcessEngine, make_client
from octavo.client.restart_policy import Timing
from octavo.core.config import CoreConfig
from octavo.core.request import Request
from octavo.core.sampling_params import SamplerOptions
from octavo.options.engine import EngineArguments
from octavo.wire.commands import TIMED_OUT
from tests.client.fake_engine import HARMLESS, POISON_TOKEN
from tests.sim.shell.engine_side import STEP_SECONDS, SimEngine, SimLauncher
from tests.sim.shell.operator import Operator, echoing
from tests.sim.shell.virtual_loop import VirtualLoop
from tests.sim.truth import whole_output

LIMIT_SECONDS = 700.0  # virtual; a caller that has not ended by then never will
TIMING = Timing(
    watchdog_seconds=3.0, silence_seconds=2.0, start_seconds=50.0, max_failed_engines=40
)


class WrongError(AssertionError):
    """A caller received a wrong result, or the front end did not clean up."""


def require(condition: bool, message: str) -> None:
    """Raise WrongError unless the condition holds."""
    if not condition:
        raise WrongError(message)


@dataclass
class Outcome:
    """The output that one caller has received."""

    tokens: list[list[int]]
    text: list[str]
    reasons: list[str | None]
    ending: str = "left"  # or "finished", "failed", "dead"
    left_in: SimEngine | None = None  # the engine that ran the request when its caller left
    left_as: list[str] = field(default_factory=list)  # its numbers in that engine


@dataclass
class World:
    """The world of one seed."""

    seed: int
    num_events: dict[str, int] = field(default_factory=dict)  # counts by kind

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
        self.launchers = self._make_launchers(config)
        self.is_over = False
        self.has_cause = False  # a request or a fault may have ended an engine
        self.has_poison = False
        self.slips: list[str] = []  # errors in callbacks
        self.loop.set_exception_handler(lambda loop, context: self.slips.append(str(context)))

    @property
    def launcher(self) -> SimLauncher:
        """The launcher of the engine, or of the first of several."""
        return self.launchers[0]

    # A subclass overrides these methods for worlds with several engines.

    def _make_launchers(self, config: CoreConfig) -> list[SimLauncher]:
        return [SimLauncher(self.loop, self.seed + 1, config)]

    def _make_client(self, arguments: EngineArguments) -> JournalClient[Any]:
        client = make_client(arguments, self.launchers, TIMING, self.loop.time)
        client.start()
        return client

    def _engines(self) -> list[ProcessEngine]:
        return self.client.engines

    def _engine_of(self, entry: Entry) -> SimEngine:
        """Return the engine that has a request."""
        (index,) = [each.index for each in self.client.members if each.requests is entry.holder]
        return self.launchers[index].engines[-1]

    def _draw_prompt(self, chance: random.Random) -> list[int]:
        return [chance.randrange(POISON_TOKEN) for _ in range(chance.randint(1, 30))]

    def _may_be_blamed(self) -> bool:
        """Return whether the world's faults may make a harmless request fail."""
        return False

    # running

    def run(self) -> None:
        """Run the world; raise AssertionError if anything is wrong."""
        asyncio.set_event_loop(self.loop)
        try:
            with echoing():
                self._run()
        finally:
            self._tidy()
            asyncio.set_event_loop(None)
            self.loop.close()

    def _tidy(self) -> None:
        """Cancel the tasks that a failed world has left."""
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))

    def _start(self) -> None:
        """Start the engine, and choose how its launcher fails."""
        arguments = EngineArguments(model="simulated", seed=self.seed)
        self.client = client = self._make_client(arguments)
        self.engine = AsyncLLM.over(client, arguments)
        self._make_operators()
        for launcher in self.launchers:
            launcher.fullness = self.random.choice([0.0, 0.0, 0.3])
            launcher.start_failures = self.random.choice([0.0, 0.0, 0.3])

    def _make_operators(self) -> None:
        made = [self._make_operator(*each) for each in enumerate(self.launchers)]
        self.operators: Sequence[Operator] = made

    def _make_operator(self, index: int, launcher: SimLauncher) -> Operator:
        return Operator(
            self._engines()[index],
            launcher,
            self.random,
            self._count,
            num_sleeps=lambda: self.num_events.get("asleep", 0),
            is_over=lambda: self.is_over,
        )

    @property
    def operator(self) -> Operator:
        """The operator of the engine, or of the first of several."""
        return self.operators[0]

    def _run(self) -> None:
        self._start()
        self.loop.run_until_complete(asyncio.wait_for(self._live(), LIMIT_SECONDS))
        self._check_the_end()

    async def _live(self) -> None:
        faults = asyncio.create_task(self._faults())
        callers = [asyncio.create_task(self._call(i)) for i in range(self.random.randint(2, 8))]
        if self.random.random() < 0.15:  # the engine is closed while callers wait
            await asyncio.sleep(self.random.uniform(0, 4))
            self.engine.close()
            self.is_over = True
            self._count("closed")
        await asyncio.gather(*callers)
        await self._end_faults(faults)
        if not self.is_over:
            await self._heal()
        for operator in self.operators:
            await operator.settle()

    # callers

    async def _call(self, index: int) -> None:
        chance = random.Random(f"{self.seed}/{index}")
        await asyncio.sleep(chance.uniform(0, 3))
        is_poison = chance.random() < 0.08
        prompt = self._draw_prompt(chance)
        self.has_cause |= is_poison
        self.has_poison |= is_poison
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
            sampler_options=SamplerOptions(mirostat=2) if index % 3 == 0 else None,
        )
        outcome = Outcome([[] for _ in range(sampling.n)], [""] * sampling.n, [None] * sampling.n)
        leaves_after = chance.choice([None, None, None, chance.randint(0, 5)])
        pace = chance.choice([0.0, 0.0, 0.2])  # a slow reader
        reader = self._read(f"c{index}", prompt, sampling, outcome, leaves_after, pace)
        task = asyncio.ensure_future(reader)
        if chance.random() < 0.1:  # a connection that breaks at any moment
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
        """Check that the engine has dropped the request of a caller that left."""
        engine, delay = outcome.left_in, max(each.max_delay for each in self.launchers)
        await asyncio.sleep(2 * delay + 3 * STEP_SECONDS)
        is_full = any(launcher.fullness for launcher in self.launchers)
        if engine is None or engine.is_hung or engine.is_stopped or is_full:
            return
        left = set(outcome.left_as) & set(engine.names()) if engine.is_ready else set()
        require(not left, f"{name} has left, but the engine still computes it")

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
            require(self.is_over, f"{name} received EngineDeadError, but the engine lives")
            outcome.ending = "dead"
        finally:
            entries = [e for e in self.client._journal if e.name.startswith(f"{name}#")]
            entries = [e for e in entries if e.holder is not None]
            if entries:
                outcome.left_as = [str(e.number) for e in entries if e.holder is entries[0].holder]
                outcome.left_in = self._engine_of(entries[0])
            await stream.aclose()  # type: ignore[attr-defined]

    def _note(self, output: RequestOutput, sampling: SamplingParams, outcome: Outcome) -> None:
        for part in output.outputs:
            if sampling.output_kind is RequestOutputKind.DELTA:
                outcome.tokens[part.index] += part.token_ids
                outcome.text[part.index] += part.text
            else:
                before = outcome.tokens[part.index]
                require(
                    part.token_ids[: len(before)] == before, "tokens received earlier have changed"
                )
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
            require(tokens == whole[: len(tokens)], f"{name} received {tokens}, not {whole}")
        if outcome.ending == "finished":
            require(not kills, f"{name} should have ended the engine")
            require(all(tokens == whole for tokens in outcome.tokens), f"{name}: not all tokens")
            require(set(outcome.reasons) == {reason}, f"{name}: {outcome.reasons}, not {reason}")
            decode = self.engine.model.tokenizer.decode
            shown = whole[:-1] if reason == "stop" else whole
            text = decode(shown, skip_special_tokens=True)
            require(all(each == text for each in outcome.text), f"{name}: {outcome.text}")
        elif outcome.ending == "failed":
            has_fault = kills or self._may_be_blamed()
            require(has_fault, f"{name} failed without a fault of its own")
            self._count("failed")

    # faults of the engine

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
            others = ("paused", "commanded", "asleep")
            kind = self.random.choice([*kinds, *others])
            engine = self.launcher.engines[-1]
            if self.random.random() < 0.3:  # in flight when the fault comes
                self.operator.send()
            self._count(kind if engine.is_ready or kind in others else "died young")
            if kind == "paused":
                await self._operate(self.engine.pause)
                await asyncio.sleep(self.random.random())
                if not self.is_over:
                    await self._operate(self.engine.resume)
            elif kind == "commanded":
                self.operator.send()
            elif kind == "asleep":  # the whole machine slept: no engine is at fault
                self.loop.now += 100.0
            else:
                self.has_cause = True
                kinds[kind](engine)

    async def _end_faults(self, faults: asyncio.Task[None]) -> None:
        """End the task of faults; raise its error, if it had one."""
        faults.cancel()
        await asyncio.wait([faults])
        if not faults.cancelled() and (error := faults.exception()) is not None:
            raise error

    async def _operate(self, call: Callable[[], Awaitable[None]]) -> None:
        """Pause or resume; an engine that hangs without work may never reply."""
        began = self.loop.time()
        try:
            await call()
        except EngineDeadError:
            require(self.is_over, "a command received EngineDeadError, but the engine lives")
        except CommandFailedError as error:
            require(error.code == TIMED_OUT, f"a command failed: {error}")
            require(self.loop.time() >= began + COMMAND_SECONDS, "too little time was given")

    async def _heal(self) -> None:
        """End all faults; a last request must be served, and the others must be gone."""
        for launcher in self.launchers:
            launcher.fullness = launcher.start_failures = 0.0
        await self._operate(self.engine.resume)  # the last fault may have paused it
        self.operator.send()
        await self._serve("last")
        for _ in range(100):
            if not self._names_left():
                break
            await asyncio.sleep(0.05)
        require(not self._names_left(), "the engine still has sequences")
        restarts = [engine.supervisor.restarts for engine in self._engines()]
        num_restarts = sum(each.num_restarts for each in restarts)
        if not self.has_cause:
            require(num_restarts == 0, "an engine was ended without a fault")
        require(self.client.is_well(), "the client is not well after the last fault")
        self._count("late frames", sum(launcher.num_late for launcher in self.launchers))
        self._count("restarts", num_restarts)

    async def _serve(self, name: str) -> None:
        """Require that a request is served now."""
        sampling = SamplingParams(max_tokens=4, seed=1, ignore_eos=True)
        outcome = Outcome([[]], [""], [None])
        await self._read(name, [1, 2, 3], sampling, outcome, None, 0.0)
        require(outcome.ending == "finished", "a request after the last fault was not served")
        self._check(-1, [1, 2, 3], sampling, outcome, is_poison=False)

    def _names_left(self) -> list[str]:
        """Return the sequences that the living engines still have."""
        return [name for launcher in self.launchers for name in launcher.engines[-1].names()]

    def _check_the_end(self) -> None:
        require(not self.slips, f"errors in callbacks: {self.slips}")
        errors = [error for launcher in self.launchers for error in launcher.errors]
        require(not errors, f"errors between front end and engine: {errors}")
        if not self.is_over:
            require(len(self.client._journal) == 0, "the journal has entries without a request")
        keys = {key for launcher in self.launchers for key in launcher.cache_keys}
        require(len(keys) <= 1, "the engines name the same KV differently")
        require(not self.engine._sinks, "sinks are left behind")
        require(len(self.engine._table) == 0, "the request table is not empty")
        self.engine.close()
        for launcher in self.launchers:
            require(all(engine.is_closed for engine in launcher.engines), "engines left behind")
            require(launcher.is_closed, "the socket was left open")
        timers = [timer for engine in self._engines() for timer in engine.supervisor.timers]
        require(not timers, "timers left behind")
        tasks = [task for task in asyncio.all_tasks(self.loop) if not task.done()]
        require(not tasks, f"tasks left behind: {tasks}")

    def _count(self, what: str, times: int = 1) -> None:
        self.num_events[what] = self.num_events.get(what, 0) + times
