"""A world with two engines behind `AsyncLLM`: what one has begun the other continues.

The front end, the keeper of requests (the journal, the quarantine), both engines' supervisors and
commands in flight, the engine loop, the core and the loading of files are the real ones. An engine
dies, or hands its requests over although it lives, with commands in flight; every caller knows its
right output, and gets each token once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from octavo.client.journal.client import JournalClient
from octavo.client.journal.quarantine import CRASH_POINTS, FAILURE_POINTS, KILL_POINTS
from octavo.client.process import ProcessEngine
from octavo.core.config import CoreConfig, KVGroup
from octavo.core.kv.manager import KVManager
from octavo.options.engine import EngineArguments
from octavo.wire.commands import Pause, Resume
from tests.client.fake_engine import POISON_TOKEN
from tests.sim.kv.store import Store
from tests.sim.shell.engine_side import SimEngine, SimLauncher
from tests.sim.shell.handover.digests import DigestOracle
from tests.sim.shell.handover.file_operator import FileOperator
from tests.sim.shell.handover.inside import Launcher
from tests.sim.shell.handover.pair import Pair
from tests.sim.shell.shell_world import TIMING, Outcome, World, require

KEY_BYTES = 32
NOTICED_SECONDS = 0.1  # in which the end of a process is noticed, behind a sleep of the machine
# Of the models of these worlds: what their layers keep, with the sizes of their blocks.
LAYOUTS = (
    (KVGroup(),),
    (KVGroup(), KVGroup(window=9)),
    (KVGroup(kind="latent", block_bytes=2), KVGroup(window=5, block_bytes=3)),
    (KVGroup(), KVGroup(kind="state", block_bytes=4, checkpoint_blocks=2)),
    (KVGroup(block_bytes=2), KVGroup(owner="drafter")),
)


class HandoverWorld(World):
    """The world of one seed, with two engines for one front end."""

    def _make_launchers(self, config: CoreConfig) -> list[SimLauncher]:
        chance = random.Random(f"{self.seed} handover")
        config = replace(
            config,
            num_blocks=100_000,
            groups=chance.choice(LAYOUTS),
            pipeline_depth=chance.choice([1, 1, 2, 3]),
            max_drafts=chance.choice([0, 0, 3]),
        )
        needed = KVManager(replace(config, num_blocks=2), b"").peak_pages(config.max_model_len - 1)
        config = replace(config, num_blocks=1 + needed + chance.choice([0, 4, 20, 200]))
        self.families = [
            [chance.randrange(POISON_TOKEN) for _ in range(chance.randint(8, 30))] for _ in range(2)
        ]
        self.oracle = DigestOracle()
        self.outcomes: dict[str, Outcome] = {}
        self.most_points = 0  # that faults can have given one request
        self.store = Store(self.seed, chance.choice(["none", "good", "bad"]))
        self.hands_over_often = chance.random() < 0.5
        seeds = (self.seed + 1, self.seed + 1_000_001)
        self._pair_launchers = [
            Launcher(self.loop, seed, config, self.store, self.oracle.look) for seed in seeds
        ]
        return list(self._pair_launchers)

    def _make_client(self, arguments: EngineArguments) -> JournalClient[Any]:
        key = random.Random(f"{self.seed} key").randbytes(KEY_BYTES)
        engines = [
            ProcessEngine(arguments, launcher, TIMING, self.loop.time, key)
            for launcher in self.launchers
        ]
        self.pair = Pair(*engines)
        client = JournalClient(self.pair, self.loop.time)
        for engine in engines:
            engine.start()
        return client

    def _make_operators(self) -> None:
        self.operators = self.file_operators = [
            FileOperator(
                engine,
                launcher,
                self.random,
                self._count,
                num_sleeps=lambda: self.num_events.get("asleep", 0),
                is_over=lambda: self.is_over,
            )
            for engine, launcher in zip(self._engines(), self._pair_launchers, strict=True)
        ]
        for operator, launcher in zip(self.file_operators, self._pair_launchers, strict=True):
            launcher.is_paused = operator.is_paused

    def _engines(self) -> list[ProcessEngine]:
        return list(self.pair.engines)

    def _engine_now(self) -> SimEngine:
        return self.launchers[self.pair.chosen].engines[-1]

    def _draw_prompt(self, chance: random.Random) -> list[int]:
        if chance.random() < 0.4:
            return super()._draw_prompt(chance)
        family = chance.choice(self.families)
        return family[: chance.randint(1, len(family))]

    async def _read(self, name: str, *others: Any) -> None:
        self.outcomes[name] = next(each for each in others if isinstance(each, Outcome))
        await super()._read(name, *others)

    def _names_left(self) -> list[str]:
        """Return the sequences of engines that can end them: one that hangs is not noticed yet."""
        engines = [launcher.engines[-1] for launcher in self.launchers]
        able = [each for each in engines if not (each.is_hung or each.is_stopped or each.is_mad)]
        return [name for engine in able for name in engine.names()]

    def _may_be_blamed(self) -> bool:
        """Return whether a harmless request may have been in so many steps that ended engines."""
        by_poison = 2 * CRASH_POINTS if self.has_poison else 0
        return self.most_points + by_poison >= FAILURE_POINTS

    # faults and commands

    async def _hand_over(self) -> None:
        """Let the other engine continue all requests, although this one lives."""
        entries = [entry for entry in self.client._journal if entry.number is not None]
        if entries and self.random.random() < 0.3:  # an abort is on its way
            name = self.random.choice(entries).name.rpartition("#")[0]
            self.outcomes[name].ending = "aborted"
            await self.engine.abort(name)
        aborted = [entry for entry in entries if entry.is_abort_requested]
        has_handed_over = self.pair.hand_over([entry.number or 0 for entry in entries])
        self._count("handed over" if has_handed_over else "no other")
        if has_handed_over:
            self._count("continued", len(entries) - len(aborted))
            self._count("aborted on the way", len(aborted))
            kept = [entry.name for entry in aborted if entry in list(self.client._journal)]
            require(not kept, f"{kept}: aborted, and continued by the other engine")

    async def _faults(self) -> None:
        kinds: dict[str, Callable[[SimEngine], Any]] = {
            "killed": lambda engine: engine.end("its process was ended by SIGKILL", by_others=True),
            "crashed": lambda engine: engine.end("its process was ended by SIGSEGV"),
            "stopped": lambda engine: setattr(engine, "is_stopped", True),
            "hung": lambda engine: setattr(engine, "is_hung", True),
            "babbled": lambda engine: engine.babble(),
        }
        self.engine.attach()  # the end of an engine is not noticed before
        others = (
            *("commanded", "asleep", "drained", "drained"),
            *("paused", "paused and drained", "paused and killed"),
        )
        for _ in range(self.random.randint(1, 8)):
            await asyncio.sleep(self.random.choice([0.05, 0.3, 2.0]) * self.random.random())
            if self.is_over:
                return
            kind = self.random.choice([*kinds, *others])
            # Most often something happens to the engine that has the requests.
            side = self.pair.chosen ^ (self.random.random() < 0.3)
            engine, operator = self.launchers[side].engines[-1], self.file_operators[side]
            if self.random.random() < 0.5:  # in flight when it happens
                operator.send()
            self._count(kind if engine.is_ready or kind in others else "died young")
            if kind in kinds:
                self.has_cause = True
                self.most_points += KILL_POINTS if kind == "killed" else CRASH_POINTS
                kinds[kind](engine)
            elif kind == "asleep":  # the whole machine slept: no engine is at fault
                self.loop.now += 100.0
                await asyncio.sleep(NOTICED_SECONDS)
            else:
                await self._command(kind, operator, engine)
            if self.hands_over_often and self.random.random() < 0.5 and not self.is_over:
                await self._hand_over()

    async def _command(self, kind: str, operator: FileOperator, engine: SimEngine) -> None:
        """Carry out what an operator wants."""
        if kind == "commanded":
            operator.send()
        elif kind == "drained":
            await self._hand_over()
        else:  # one of the engines
            operator.give(Pause())
            if kind == "paused and drained":
                await asyncio.sleep(self.random.choice([0.0, 0.02]))
                if not self.is_over:
                    await self._hand_over()
            elif kind == "paused and killed":  # the next engine must be paused too
                await asyncio.sleep(self.random.choice([0.0, 0.02]))
                self.has_cause = True
                self.most_points += KILL_POINTS
                engine.end("its process was ended by SIGKILL", by_others=True)
                await asyncio.sleep(3 * self.random.random())
                if not self.is_over:
                    await self._hand_over()
            await asyncio.sleep(self.random.random())
            if not self.is_over:
                operator.give(Resume())

    # the end

    async def _heal(self) -> None:
        await super()._heal()
        for index in range(len(self.pair.engines)):  # one that hangs is noticed if it has work
            await self._wait_for_engines()
            before = self.pair.chosen
            await self._hand_over()
            require(self.pair.chosen != before, "it could not hand over")
            await self._serve(f"last {index}")
        await self._wait_for_engines()
        require(not super()._names_left(), "an engine still has sequences")
        self._count("died for the other", self.pair.num_deaths)
        self._count("same names", self.oracle.num_agreed)
        self._count("loaded", sum(launcher.num_loaded() for launcher in self._pair_launchers))
        for operator in self.file_operators:
            await operator.check_files()

    async def _wait_for_engines(self) -> None:
        for _ in range(1000):
            if all(engine.is_ready for engine in self.pair.engines):
                return
            await asyncio.sleep(0.1)
        raise AssertionError("an engine does not become ready")
