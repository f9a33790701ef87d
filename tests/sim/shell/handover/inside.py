"""The inside of an engine of two: an executor with real paged memory, shared KV, and files.

What an engine computes is checked as in the worlds of the core: each chunk reads its prefix back
through the tables. KV that one engine has saved the other may load, by the digests of its content.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from octavo.core.config import CoreConfig
from octavo.core.engine import EngineCore
from octavo.core.plan import StepPlan, StepResult
from octavo.core.request import Request
from octavo.engine.tensor_files import TensorFiles
from octavo.loader.checkpoint import Checkpoint
from octavo.loader.errors import TensorMismatchError
from octavo.loader.metadata import Metadata
from octavo.loader_process.connection import FileError, TensorFile, Then
from tests.client.fake_engine import HARMLESS, POISON_TOKEN
from tests.sim.executor import Faults, SimExecutor
from tests.sim.kv.memory import require
from tests.sim.kv.store import Store
from tests.sim.shell.engine_side import Inside, SimEngine, SimLauncher
from tests.sim.shell.virtual_loop import VirtualLoop
from tests.sim.truth import whole_output

KIND = "sums"  # of the files that these engines load
FILES = ("one", "two", "unfit", "missing")  # their paths; the last two cannot be loaded
UNREADABLE = "not_found"
MOST_LOAD_SECONDS = 0.5


class SharedStore(Store):
    """One engine's end of a store that both engines use."""

    def __init__(self, seed: int, kind: str, whole: Store) -> None:
        super().__init__(seed, kind)
        self.conditions, self._blocks, self._lost = whole.conditions, whole._blocks, whole._lost


class CheckedExecutor(SimExecutor):
    """An executor of the worlds of the core; a poisoned request ends it at its third token."""

    def submit(self, plan: StepPlan) -> None:
        super().submit(plan)
        worker = self.workers[0]
        for slot in map(worker.slots.__getitem__, plan.slots):
            request = worker.request_of(slot.request_id)
            if POISON_TOKEN not in request.prompt:
                continue
            # Tokens behind its end, of steps in flight and of drafts, are none.
            most = len(whole_output(request, worker.config.max_model_len)[0])
            if min(most, len(slot.tokens) - len(request.prompt)) > HARMLESS:
                raise RuntimeError("the model was poisoned")

    def _report(self, plan: StepPlan, result: StepResult) -> StepResult:
        return result


class Sums:
    """Implements `octavo.engine.tensor_files.TensorFileKind`: it counts the files."""

    names = beside = ()
    bounds_itself = False

    def __init__(self) -> None:
        self.loaded: dict[str, str] = {}  # label → the file's name
        self.num_loads: dict[str, int] = {}
        self.num_unloads: dict[str, int] = {}

    def prepare(self, label: str, file: TensorFile) -> str:
        if file.checkpoint.path.name == "unfit":
            raise TensorMismatchError("it has other numbers")
        return file.checkpoint.path.name

    def load(self, label: str, prepared: str) -> None:
        require(label not in self.loaded, f"{label} is loaded twice")
        self.loaded[label] = prepared
        self.num_loads[label] = self.num_loads.get(label, 0) + 1

    def unload(self, label: str) -> None:
        require(label in self.loaded, f"{label} is not loaded, and unloaded")
        del self.loaded[label]
        self.num_unloads[label] = self.num_unloads.get(label, 0) + 1


class SimLoader:
    """A loader as its engine sees it, whose answers take a time drawn from the seed."""

    def __init__(self, loop: VirtualLoop, chance: random.Random) -> None:
        self._loop = loop
        self._random = chance
        self._reading: list[tuple[float, int, str, Then]] = []  # until when, number, path
        self._next_number = 0

    def request(self, path: str, then: Then, beside: object = (), names: object = ()) -> int:
        """Begin to read a file."""
        number, self._next_number = self._next_number, self._next_number + 1
        until = self._loop.time() + self._random.choice([0.0, MOST_LOAD_SECONDS])
        self._reading.append((until, number, path, then))
        return number

    def take(self) -> list[tuple[int, FileError]]:
        """Pass on what has been read by now, in any order; return what has failed."""
        now = self._loop.time()
        ended = [each for each in self._reading if each[0] <= now]
        self._reading = [each for each in self._reading if each[0] > now]
        self._random.shuffle(ended)
        failed = []
        for _, number, path, then in ended:
            if path == "missing":
                failed.append((number, FileError(UNREADABLE, "there is no such file")))
            else:
                then(_file(path))
        return failed


def size_of(path: str) -> int:
    """Return the size of a file of these worlds, each of another one."""
    return 1000 + FILES.index(path)


def _file(path: str) -> TensorFile:
    checkpoint = Checkpoint(Path(path), {}, Metadata.of_strings(Path(path), {}))
    return TensorFile(checkpoint, {}, size_of(path))


class Launcher(SimLauncher):
    """A launcher of one of the two engines, and of those that follow it."""

    def __init__(
        self,
        loop: VirtualLoop,
        seed: int,
        config: CoreConfig,
        store: Store,
        look: Callable[[EngineCore], None],
    ) -> None:
        super().__init__(loop, seed, config)
        self._store = store
        self._look = look
        self.sums: dict[int, Sums] = {}  # by the engine's epoch
        self._slowness = self.random.choice([0.0, 0.3])
        self._stores: list[SharedStore] = []
        self.is_paused: Callable[[], bool] = lambda: False
        self._was_paused = False
        self._num_tokens: dict[int, int] = {}  # that each engine has planned, by its epoch

    def make_inside(self, engine: SimEngine) -> Inside:
        store = SharedStore(self.random.randrange(1 << 30), self._store.kind, self._store)
        self._stores.append(store)
        executor = CheckedExecutor(
            self.config,
            lambda name: _request_of(engine, name),
            lambda: self.random.random() < self._slowness,
            Faults(),
            lambda plan: None,
            store,
        )
        self.sums[engine.epoch] = kind = Sums()
        loader: Any = SimLoader(self.loop, self.random)
        files = TensorFiles({KIND: kind}, loader)
        return Inside(executor, None if store.kind == "none" else store, files)

    def after_step(self, engine: SimEngine) -> None:
        assert engine.core is not None
        self._look(engine.core)
        num_tokens = engine.core.scheduler.stats.num_tokens
        before = self._num_tokens.get(engine.epoch, 0)
        self._num_tokens[engine.epoch] = num_tokens
        is_ending = engine.is_mad  # it is killed soon, and no command reaches it
        if self._was_paused and self.is_paused() and num_tokens > before and not is_ending:
            self.errors.append(AssertionError("an engine computes although it is paused"))
        self._was_paused = self.is_paused()

    def num_loaded(self) -> int:
        """Return how many blocks the engines have loaded from the store."""
        return sum(store.num_loaded for store in self._stores)


def _request_of(engine: SimEngine, name: str) -> Request:
    assert engine.core is not None
    return engine.core.scheduler.sequences[name].request
