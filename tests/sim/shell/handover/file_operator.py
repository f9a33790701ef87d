"""An operator who also loads and unloads files, and checks what each engine has of them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from octavo.engine.tensor_files import IN_USE, NOT_LOADED, UNFIT, UNKNOWN_KIND
from octavo.wire.commands import (
    NO_ENGINE,
    Command,
    LoadedFile,
    LoadFile,
    Pause,
    Reply,
    Resume,
    UnloadFile,
)
from tests.sim.shell.engine_side import SimEngine
from tests.sim.shell.handover.inside import (
    FILES,
    KIND,
    MOST_LOAD_SECONDS,
    UNREADABLE,
    Launcher,
    size_of,
)
from tests.sim.shell.operator import LONG_SECONDS, Operator

LABELS = ("a", "b", "c")
UNFIT_CODES = {"unfit": UNFIT, "missing": UNREADABLE}  # by path


class FileOperator(Operator):
    """An operator of one of two engines."""

    def __init__(self, target: Any, launcher: Launcher, *others: Any, **more: Any) -> None:
        super().__init__(target, launcher, *others, **more)
        self._files = launcher.sums
        self._num_pauses = 0  # and resumes, that were sent
        self._taken = 0  # the last of them, if the engine has taken it
        # By an engine's epoch, a label, and whether it was loaded: how often that succeeded.
        self._num_done: dict[tuple[int, str, bool], int] = {}

    def give(self, command: Command, seconds: float = LONG_SECONDS) -> asyncio.Future[Reply]:
        reply = super().give(command, seconds)
        if isinstance(command, Pause | Resume):
            self._num_pauses += 1
            self._taken = 0
            reply.add_done_callback(partial(self._note_pause, self._num_pauses))
        return reply

    def _note_pause(self, number: int, reply: asyncio.Future[Reply]) -> None:
        """Note that an engine has taken a pause; without an engine, the next one begins with it."""
        error = reply.result().error
        if number == self._num_pauses and (error is None or error.code == NO_ENGINE):
            self._taken = number

    def is_paused(self) -> bool:
        """Return whether the engine, or the one that has replaced it, must not compute."""
        return self._taken > 0 and self._target._is_paused

    def _draw(self) -> Command:
        chance = self._random
        match chance.randrange(5):
            case 0 | 1:
                kind = "other" if chance.random() < 0.1 else KIND
                return LoadFile(kind, chance.choice(LABELS), chance.choice(FILES))
            case 2:
                return UnloadFile(KIND, chance.choice(LABELS))
            case _:
                return super()._draw()

    def _check_result(self, command: Command, value: object, engine: SimEngine) -> None:
        if isinstance(command, LoadFile):
            assert isinstance(value, LoadedFile)
            assert value.num_bytes == size_of(command.path), "the reply to another load"
            assert command.kind == KIND
            assert command.path not in UNFIT_CODES
        elif not isinstance(command, UnloadFile):
            super()._check_result(command, value, engine)
            return
        done = (engine.epoch, command.label, isinstance(command, LoadFile))
        self._num_done[done] = self._num_done.get(done, 0) + 1
        kind = self._files[engine.epoch]
        if isinstance(command, LoadFile):  # which may have been loaded before
            num_unloads = self._num_done.get((engine.epoch, command.label, False), 0)
            is_true = kind.num_loads.get(command.label, 0) > num_unloads
        else:
            is_true = self._num_done[done] <= kind.num_unloads.get(command.label, 0)
        assert is_true, f"engine {engine.epoch} has not done this: {command}"

    def _is_expected(self, command: Command, code: str) -> bool:
        if isinstance(command, LoadFile):
            is_wrong = code == UNKNOWN_KIND and command.kind != KIND
            return is_wrong or code == IN_USE or code == UNFIT_CODES.get(command.path)
        return isinstance(command, UnloadFile) and code == NOT_LOADED

    async def check_files(self) -> None:
        """Require that the engine can still load and unload, and has what its replies said."""
        engine = self._launcher.engines[-1]
        kind = self._files[engine.epoch]
        await self.settle()
        await asyncio.sleep(MOST_LOAD_SECONDS + 1.0)  # a command that timed out may still load
        for label in LABELS:
            is_other = kind.loaded.get(label, "one") != "one"
            reply = await self.give(LoadFile(KIND, label, "one"), LONG_SECONDS)
            code = None if reply.error is None else reply.error.code
            assert code == (IN_USE if is_other else None), f"{label}: {code}"
            assert (await self.give(UnloadFile(KIND, label), LONG_SECONDS)).error is None
        assert not kind.loaded
