"""A world whose engines are groups: ranks or stages that are late, die, or lose what is sent.

The front end with its journal, the engine's loop and core, the group's end (`ProcessGroup`) and
the code by which members exchange steps (csrc/runtime, csrc/step) are the real ones. A step's
tokens are what the group has found, so what goes wrong there reaches a caller as a wrong token.
"""

from __future__ import annotations

import asyncio
import ctypes
import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from octavo.client.journal.quarantine import CRASH_POINTS
from octavo.core.config import CoreConfig, KVGroup
from octavo.core.kv.manager import KVManager
from octavo.core.plan import StepPlan, StepResult
from octavo.wire.message_types import EngineFailed
from tests.client.fake_engine import POISON_TOKEN
from tests.sim.groups.group import (
    Row,
    Shape,
    SimGroup,
    Step,
    WaitsForeverError,
)
from tests.sim.kv.store import Store
from tests.sim.shell.engine_side import Inside, SimEngine, SimLauncher
from tests.sim.shell.handover.digests import DigestOracle
from tests.sim.shell.handover.handover_world import HandoverWorld
from tests.sim.shell.handover.inside import CheckedExecutor, Launcher
from tests.sim.shell.shell_world import Outcome, require
from tests.sim.truth import next_token

MOST_ENDING_SECONDS = 1.0  # from the end of a member to that of its engine
GROUP_FAULTS = ("member killed", "member dies at work", "member fails", "member stopped")


class _InFlight(NamedTuple):
    """A step that a group computes."""

    plan: StepPlan
    # Of each chunk that samples: the model's state, and what the group must find.
    expected: list[tuple[int, int] | None]


class GroupExecutor:
    """An executor of the worlds of the core whose tokens are drawn from what a group finds."""

    def __init__(self, inner: CheckedExecutor, group: SimGroup, engine: GroupEngine) -> None:
        self._inner, self._group, self._engine = inner, group, engine
        self._random = random.Random(f"{engine.epoch} copies")
        self._in_flight: deque[_InFlight] = deque()

    def submit(self, plan: StepPlan) -> None:
        self._inner.submit(plan)
        if not plan.slots:
            return
        self._check_that_tokens_are_known(plan)
        self._engine.note_step(self._group.begin(self._step_of(plan)))
        slots = self._inner.workers[0].slots
        expected: list[tuple[int, int] | None] = []
        for number, samples in zip(plan.slots, plan.samples, strict=True):
            if samples:
                slot = slots[number]
                expected.append((slot.states[-2], self._group.right_state(slot.tokens[:-1])))
            else:
                expected.append(None)
        self._in_flight.append(_InFlight(plan, expected))

    def collect(self, wait: bool) -> StepResult | None:
        result = self._inner.collect(wait)
        if result is None or not self._in_flight or self._in_flight[0].plan.step != result.step:
            return result
        step = self._in_flight.popleft()
        states, seconds = self._group.take()
        self._engine.note_step(seconds)
        found = iter(states)
        tokens = []
        for each in step.expected:
            if each is None:
                tokens.append(-1)
                continue
            state, right = each
            # A wrong state is another token; a right one is the model's own.
            tokens.append(next_token(state ^ next(found) ^ right))
        return result._replace(tokens=tuple(tokens))

    def _check_that_tokens_are_known(self, plan: StepPlan) -> None:
        """Note that stages would compute a token which another step in flight draws."""
        if not self._group.shape.has_stages:
            return
        opened = {new.slot for new in plan.opened}
        for step in self._in_flight:
            drawn = {
                slot
                for slot, samples in zip(step.plan.slots, step.plan.samples, strict=True)
                if samples
            }
            if (drawn - opened) & {*plan.slots}:
                self._group.slips.append("a step has a token that a step in flight draws")

    def _step_of(self, plan: StepPlan) -> Step:
        """Return the rows of a plan; one of its blocks is sometimes read from a copy."""
        slots = self._inner.workers[0].slots
        rows, tables, wanted = [], [], []
        num_rows = 0
        for number, start, count, samples in zip(
            plan.slots, plan.starts, plan.counts, plan.samples, strict=True
        ):
            slot = slots[number]
            rows.append([Row(slot.tokens[at], at) for at in range(start, start + count)])
            tables.append(list(slot.tables[0]))
            num_rows += count
            if samples:
                wanted.append(num_rows - 1)
        copies = [(source, destination) for source, destination, _ in plan.copies]
        whole = [at for at, start in enumerate(plan.starts) if start >= self._block_size]
        if whole and self._random.random() < 0.3:
            at = self._random.choice(whole)
            spare = self._group.shape.num_blocks - 1
            copies.append((tables[at][0], spare))
            tables[at][0] = spare
        return Step(rows, tables, wanted, copies)

    @property
    def _block_size(self) -> int:
        return self._group.shape.block_size


class GroupEngine(SimEngine):
    """A simulated engine's process, with the members of its group."""

    group: SimGroup | None = None
    _busy_until = 0.0
    _is_working = False

    def note_step(self, seconds: float) -> None:
        """Note that a step takes so long: what it gives is sent at its end."""
        self._busy_until = max(self._busy_until, self._loop.time()) + seconds

    def sends_from(self) -> float:
        """Return the time before which nothing of the step that runs is sent."""
        return self._busy_until

    def _work(self) -> None:
        wait = self._busy_until - self._loop.time()
        if wait > 0 and self._ending is None:
            self._loop.call_later(wait, self._work)
            return
        self._is_working = True
        try:
            super()._work()
        except WaitsForeverError:
            self.is_hung = True
        finally:
            self._is_working = False

    def on_group_end(self) -> None:
        """Fail as `_end_with` makes an engine fail that waits; a step fails by itself."""
        assert self.group is not None
        if not self._is_working and self._ending is None and not self.is_hung:
            self._send(EngineFailed(self.group.reason))
            self.end("its process ended with exit code 4")

    def end(self, how: str, by_others: bool = False) -> None:
        super().end(how, by_others)
        if self.group is not None:
            self.group.free()


class GroupLauncher(Launcher):
    """A launcher of engines that are groups of one shape."""

    def __init__(
        self, *given: Any, library: ctypes.CDLL, shape: Shape, on_fault: Callable[[], None]
    ) -> None:
        super().__init__(*given)
        self._library, self._shape, self._on_fault = library, shape, on_fault
        self.groups: dict[int, SimGroup] = {}  # by the engine's epoch

    def launch(self, epoch: int) -> SimEngine:
        for engine in self.engines:
            assert engine.is_closed, "two engines at once"
        self.engines.append(GroupEngine(self, epoch, self.config))
        return self.engines[-1]

    def make_inside(self, engine: SimEngine) -> Inside:
        assert isinstance(engine, GroupEngine)
        inside = super().make_inside(engine)
        assert isinstance(inside.executor, CheckedExecutor)
        group = SimGroup(
            self._library,
            self._shape,
            self.random.randrange(1 << 60),
            self.loop.time,
            self.loop.call_at,
            self._on_fault,
        )
        self.groups[engine.epoch] = engine.group = group
        group.call_at_end(engine.on_group_end)
        return inside._replace(executor=GroupExecutor(inside.executor, group, engine))

    def after_step(self, engine: SimEngine) -> None:
        super().after_step(engine)
        self.errors += [AssertionError(each) for each in self.groups[engine.epoch].slips]

    def carry(self, epoch: int, is_heartbeat: bool, data: bytes) -> None:
        engine = self.engines[-1]
        assert isinstance(engine, GroupEngine)
        if not is_heartbeat and engine.epoch == epoch:
            # What comes earlier than this would have been sent within the step.
            key = (epoch, False)
            self._latest[key] = max(self._latest.get(key, 0.0), engine.sends_from())
        super().carry(epoch, is_heartbeat, data)


class GroupWorld(HandoverWorld):
    """The world of one seed: one or two engines, each of which is a group."""

    def __init__(self, seed: int, library: ctypes.CDLL) -> None:
        self._library = library
        super().__init__(seed)

    def _make_launchers(self, config: CoreConfig) -> list[SimLauncher]:
        chance = random.Random(f"{self.seed} groups")
        config = replace(config, num_blocks=100_000, groups=(KVGroup(),))
        has_stages, members = chance.random() < 0.5, chance.choice([2, 2, 3, 4])
        kind, nodes = ("stages" if has_stages else "ranks"), 1
        if not has_stages and (layout := self._draw_nodes()) is not None:
            kind, (members, nodes) = "sums", layout
        config = replace(config, pipeline_depth=chance.choice([1, 1, 2]))
        if has_stages:
            num_stages = chance.choice([1, members, members])
            config = replace(config, pipeline_depth=num_stages, num_stages=num_stages)
            sequences, tokens = chance.choice([1, 2, 8]), chance.choice([4, 64])
            config = replace(config, stage_sequences=sequences, stage_prompt_tokens=tokens)
        needed = KVManager(replace(config, num_blocks=2), b"").peak_pages(config.max_model_len - 1)
        config = replace(config, num_blocks=1 + needed + chance.choice([0, 4, 20]))
        self.families = [
            [chance.randrange(POISON_TOKEN) for _ in range(chance.randint(8, 30))] for _ in range(2)
        ]
        self.oracle = DigestOracle()
        self.outcomes: dict[str, Outcome] = {}
        self.most_points = 0
        self.store = Store(self.seed, "none")
        self.restarts_often = False
        shape = Shape(
            kind,
            members=members,
            nodes=nodes,
            num_blocks=config.num_blocks + 1,  # the last is no sequence's
            block_size=config.block_size,
            chances=(
                chance.choice([0.0, 0.0005, 0.005]),
                *(chance.choice([0.0, 0.0, 0.002]) if kind != "ranks" else 0.0 for _ in range(3)),
                chance.choice([0.0001, 0.01, 0.1]),
                # Longer than until the next step begins, so that several are in one stage.
                chance.choice([0.02, 0.2] if config.num_stages > 1 else [0.0, 0.0001, 0.02]),
            ),
        )
        self._group_launchers = [
            GroupLauncher(
                *(self.loop, seed, config, self.store, self._look),
                library=self._library,
                shape=shape,
                on_fault=lambda: self._note_fault(CRASH_POINTS),
            )
            for seed in [self.seed + 1 + 1_000_000 * i for i in range(chance.choice([1, 2]))]
        ]
        self._file_launchers = [*self._group_launchers]
        self._count(kind)
        if config.num_stages > 1:
            self._count("steps in several stages")
        return list(self._group_launchers)

    def _draw_nodes(self) -> tuple[int, int] | None:
        """Draw the ranks and nodes of ranks that add up over links; None if they do not."""
        chance = random.Random(f"{self.seed} nodes")
        return chance.choice([(2, 2), (3, 3), (4, 2), (4, 2)]) if chance.random() < 0.4 else None

    async def _faults(self) -> None:
        self.engine.attach()  # the end of an engine is not noticed before
        for _ in range(self.random.randint(1, 8)):
            await asyncio.sleep(self.random.choice([0.05, 0.3, 3.0]) * self.random.random())
            if self.is_over:
                return
            index = self._draw_engine()
            engine = self.launchers[index].engines[-1]
            assert isinstance(engine, GroupEngine)
            kind = self.random.choice([*GROUP_FAULTS, "killed", "drained"])
            group = engine.group
            if group is None or not engine.is_ready:
                kind = "died young"
            self._count(kind)
            if kind == "killed":
                self._note_fault(CRASH_POINTS)
                engine.end("its process was ended by SIGSEGV")
            elif kind == "drained":
                await self._restart(index)
            elif group is not None and kind in GROUP_FAULTS:
                self._harm(kind, group)

    def _harm(self, kind: str, group: SimGroup) -> None:
        if kind == "member killed":
            group.kill(0)
        elif kind == "member dies at work":
            group.kill(self.random.randint(1, 2000))
        elif kind == "member fails":
            group.fail()
        else:
            group.stop()

    async def _check_gone(self, name: str, outcome: Outcome) -> None:
        engine = outcome.left_in
        await asyncio.sleep(2 * max(each.max_delay for each in self.launchers))
        for _ in range(200):  # a step takes as long as its slowest member
            if engine is None or not (engine._inbox or {*outcome.left_as} & {*engine.names()}):
                break
            await asyncio.sleep(0.05)
        await super()._check_gone(name, outcome)

    async def _heal(self) -> None:
        self._check_endings()
        await super()._heal()

    def _check_endings(self) -> None:
        """Require that no engine has outlived a member for long."""
        for launcher in self._group_launchers:
            for epoch, group in launcher.groups.items():
                engine = launcher.engines[epoch - 1]
                if group.ended_at is None or engine.is_hung:
                    continue
                ended = self.loop.time() if engine.ended_at is None else engine.ended_at
                require(
                    ended - group.ended_at <= MOST_ENDING_SECONDS,
                    f"an engine has outlived a member by {ended - group.ended_at:.3f} s",
                )

    def _check_sizes(self) -> None:
        if len(self.launchers) > 1:
            super()._check_sizes()

    def _check_the_end(self) -> None:
        super()._check_the_end()
        self._check_endings()
        for launcher in self._group_launchers:
            for group in launcher.groups.values():
                require(not group.slips, f"{group.slips}")
