"""A world with several engines behind `AsyncLLM`: what one has begun another continues.

The front end, the keeper of requests (the journal, the quarantines, the choice of an engine), the
engines' supervisors and commands in flight, the engine loop, the core and the loading of files are
the real ones. An engine dies, or is restarted although it lives, with commands in flight; every
caller knows its right output, and gets each token once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from octavo.api.control import CommandFailedError
from octavo.api.outputs import EngineDeadError
from octavo.client.journal.client import JournalClient
from octavo.client.journal.journal import Entry
from octavo.client.journal.member import Member
from octavo.client.journal.quarantine import CRASH_POINTS, FAILURE_POINTS, KILL_POINTS
from octavo.core.config import CoreConfig, KVGroup
from octavo.core.engine import EngineCore
from octavo.core.kv.manager import KVManager
from octavo.options.engine import EngineArguments
from octavo.routing import GRAIN_TOKENS
from octavo.wire.commands import Pause, Resume
from tests.client.fake_engine import POISON_TOKEN
from tests.sim.kv.store import Store
from tests.sim.shell.engine_side import SimEngine, SimLauncher
from tests.sim.shell.handover.digests import DigestOracle
from tests.sim.shell.handover.file_operator import FileOperator
from tests.sim.shell.handover.inside import Launcher
from tests.sim.shell.shell_world import LIMIT_SECONDS, Outcome, World, require

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
    """The world of one seed, with two or three engines for one front end."""

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
        self.restarts_often = chance.random() < 0.5
        seeds = [self.seed + 1 + 1_000_000 * index for index in range(chance.choice([2, 2, 3]))]
        self._file_launchers = [
            Launcher(self.loop, seed, config, self.store, self._look) for seed in seeds
        ]
        return list(self._file_launchers)

    def _look(self, core: EngineCore) -> None:
        """Check what holds between any two steps of any engine."""
        self.oracle.look(core)
        if hasattr(self, "client"):
            check_set(self.client)
            self._check_views()

    def _make_client(self, arguments: EngineArguments) -> JournalClient[Any]:
        client = super()._make_client(arguments)
        restart = client.restart

        def watched(index: int) -> None:
            self._note_restart(index)
            restart(index)

        client.restart = watched  # type: ignore[method-assign]
        choose = client._choose

        def chosen(entry: Entry) -> Member[Any] | None:
            member = choose(entry)
            if member is not None and self.client._journal.parent_of(entry) is None:
                check_choice(member, client.members)
            return member

        client._choose = chosen  # type: ignore[method-assign]
        return client

    def _check_views(self) -> None:
        """Require that what is believed of an engine's cache is bounded, and of that engine."""
        for member, launcher in zip(self.client.members, self.launchers, strict=True):
            known, engine = member._known, launcher.engines[-1]
            if known is None:
                continue
            most = max(1, member.engine.facts.kv_tokens // GRAIN_TOKENS)
            require(len(known) <= most, "more is known of an engine than it can have")
            is_new = engine.core is None and not engine.is_closed
            require(not (is_new and len(known)), "a new engine is believed to have KV")

    def _note_restart(self, index: int) -> None:
        """Note that an engine is about to be restarted, which may have requests."""
        self.launchers[index].engines[-1].is_unwanted = True
        self.has_cause = True
        has_others = any(member.is_open for member in self.client.members if member.index != index)
        self._count("restarted", 1)
        self._count("moved" if has_others else "no other", len(self.client.members[index].requests))

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
            for engine, launcher in zip(self._engines(), self._file_launchers, strict=True)
        ]
        for operator, launcher in zip(self.file_operators, self._file_launchers, strict=True):
            launcher.is_paused = operator.is_paused

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

    async def _restart(self, index: int) -> None:
        """Restart an engine with all that it has, and perhaps an abort on its way."""
        entries = [entry for entry in self.client._journal if entry.number is not None]
        if entries and self.random.random() < 0.3:
            name = self.random.choice(entries).name.rpartition("#")[0]
            self.outcomes[name].ending = "aborted"
            self._count("aborted on the way")
            await self.engine.abort(name)
        self.client.restart(index)

    async def _roll(self) -> None:
        """Restart one engine after the other, as an operator does."""
        restart = self.client.restart

        def watched(index: int) -> None:
            is_alone = all(engine.is_ready for engine in self.client.engines)
            require(is_alone, "an engine is restarted while another is not ready")
            restart(index)

        self.client.restart = watched  # type: ignore[method-assign]
        try:
            async with asyncio.timeout(LIMIT_SECONDS / 4):
                await self.engine.restart()
            self._count("rolled")
        except EngineDeadError:
            require(self.is_over, "no engine came back")
        finally:
            self.client.restart = restart  # type: ignore[method-assign]

    async def _pause_all(self) -> None:
        """Pause the engines, all of which have obeyed when the only reply comes."""
        ready = [member.index for member in self.client.members if member.engine.is_ready]
        engines = [self.launchers[index].engines[-1] for index in ready]
        try:
            await self.engine.pause()
        except (EngineDeadError, CommandFailedError):
            pass
        else:
            for index, engine in zip(ready, engines, strict=True):
                is_same = self.launchers[index].engines[-1] is engine and engine.is_ready
                if is_same and engine.core is not None and not engine.is_mad:
                    require(engine.core.scheduler.paused, "an engine was not paused with all")
            self._count("all paused")
        await asyncio.sleep(self.random.random())
        if not self.is_over:
            await self._operate(self.engine.resume)

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
            *("commanded", "asleep", "drained", "rolled", "all paused"),
            *("paused", "paused and drained", "paused and killed"),
        )
        for _ in range(self.random.randint(1, 8)):
            await asyncio.sleep(self.random.choice([0.05, 0.3, 2.0]) * self.random.random())
            if self.is_over:
                return
            kind = self.random.choice([*kinds, *others])
            index = self._draw_engine()
            engine, operator = self.launchers[index].engines[-1], self.file_operators[index]
            if self.random.random() < 0.5:  # in flight when it happens
                operator.send()
            self._count(kind if engine.is_ready or kind in others else "died young")
            if kind in kinds:
                self._note_fault(KILL_POINTS if kind == "killed" else CRASH_POINTS)
                kinds[kind](engine)
            elif kind == "asleep":  # the whole machine slept: no engine is at fault
                self.loop.now += 100.0
                await asyncio.sleep(NOTICED_SECONDS)
            else:
                await self._command(kind, index, operator, engine)
            if self.restarts_often and self.random.random() < 0.5 and not self.is_over:
                await self._restart(self._draw_engine())

    def _draw_engine(self) -> int:
        """Return the index of an engine, most often of one that has requests."""
        busy = [member.index for member in self.client.members if len(member.requests)]
        if busy and self.random.random() < 0.7:
            return self.random.choice(busy)
        return self.random.randrange(len(self.launchers))

    def _note_fault(self, points: int) -> None:
        """Note that an engine ends, and how much its requests are blamed for it at most."""
        self.has_cause = True
        self.most_points += points

    async def _command(
        self, kind: str, index: int, operator: FileOperator, engine: SimEngine
    ) -> None:
        """Carry out what an operator wants."""
        if kind == "commanded":
            operator.send()
        elif kind == "drained":
            await self._restart(index)
        elif kind == "rolled":
            await self._roll()
        elif kind == "all paused":
            await self._pause_all()
        else:  # one of the engines
            operator.give(Pause())
            if kind == "paused and drained":
                await asyncio.sleep(self.random.choice([0.0, 0.02]))
                if not self.is_over:
                    await self._restart(index)
            elif kind == "paused and killed":  # the next engine must be paused too
                await asyncio.sleep(self.random.choice([0.0, 0.02]))
                self._note_fault(KILL_POINTS)
                engine.end("its process was ended by SIGKILL", by_others=True)
                await asyncio.sleep(3 * self.random.random())
                if not self.is_over:
                    await self._restart(index)
            await asyncio.sleep(self.random.random())
            if not self.is_over:
                operator.give(Resume())

    # the end

    async def _heal(self) -> None:
        await super()._heal()
        for index in range(len(self.launchers)):  # one that hangs without work is not noticed
            await self._wait_for_engines()
            self.client.restart(index)
            await self._serve(f"last {index}")
        await self._wait_for_engines()
        require(not super()._names_left(), "an engine still has sequences")
        self._count("same names", self.oracle.num_agreed)
        self._count("loaded", sum(launcher.num_loaded() for launcher in self._file_launchers))
        for operator in self.file_operators:
            operator.send()  # to engines without a fault, which must reply
            operator.send()
            await operator.check_files()

    async def _wait_for_engines(self) -> None:
        for _ in range(1000):
            if all(engine.is_ready for engine in self.client.engines):
                return
            await asyncio.sleep(0.1)
        raise AssertionError("an engine does not become ready")

    def _check_the_end(self) -> None:
        super()._check_the_end()
        self._check_sizes()

    def _check_sizes(self) -> None:
        """Require that all engines have the size of the first one."""
        sizes = [each for launcher in self.launchers for each in launcher.arguments]
        blocks = {each.num_gpu_blocks_override for each in sizes[1:]}
        require(blocks == {self.launcher.config.num_blocks}, f"engines of other sizes: {blocks}")


def check_choice(member: Member[Any], members: Sequence[Member[Any]]) -> None:
    """Require that an engine without a recent sign of life gets nothing where another has one."""
    others = [each for each in members if each.is_open and each.engine.is_well()]
    require(not others or member.engine.is_well(), "a silent engine was given a request")


def check_set(client: JournalClient[Any]) -> None:
    """Require that each request is in one engine, or waits because it can be in none."""
    members = client.members
    is_open = any(member.is_open for member in members)
    for entry in client._journal:
        if entry.holder is None:
            is_suspect = any(member.quarantine.has(entry) for member in members)
            require(is_suspect or not is_open, f"{entry.name} waits, and an engine is ready")
    for member in members:
        entries = member.requests._by_number
        for number, entry in entries.items():
            is_here = entry.holder is member.requests and entry.number == number
            require(is_here, f"{entry.name} is in two engines")
        num_waiting = sum(entry.num_to_compute for entry in entries.values())
        require(num_waiting == member.requests.num_waiting_tokens, "the tokens that wait")
        isolated = member.quarantine.isolated
        require(isolated is None or len(entries) <= 1, "a suspect does not run alone")
