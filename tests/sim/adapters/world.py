"""A world in which the core's requests wait for adapters that the engine's loader loads.

The core, the loader and the worker's table of slots are the real ones; the loader's process and the
backend are simulated. The executor checks for each chunk that the slot of its adapter holds that
adapter in this step, and that a change takes only what is in memory.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.core.check import check_integrity
from octavo.core.config import CoreConfig
from octavo.core.engine import EngineCore
from octavo.core.plan import StepPlan
from octavo.core.request import Abort, Request, TokenEvent
from octavo.core.sampling_params import SamplingParams
from octavo.core.stats import ADAPTER
from octavo.engine.adapter_loader import KIND, AdapterLoader, Bounds, Packed
from octavo.engine.holds import Holds
from octavo.engine.tensor_files import TensorFiles
from octavo.loader.checkpoint import Checkpoint
from octavo.loader.errors import TensorMismatchError
from octavo.loader.metadata import Metadata
from octavo.loader_process.connection import TOO_MANY, FileError, TensorFile, Then
from octavo.loader_process.read import UNREADABLE
from octavo.runner.adapter_slots import AdapterSlots, split_id
from tests.sim.executor import Faults, SimExecutor
from tests.sim.kv.memory import require
from tests.sim.truth import right_output

TICK_SECONDS = 0.001
NUM_TICKS = 60
MOST_OVERTAKEN = 3
MOST_LOAD_TICKS = 12
FADING = "fadesx300"  # it can be read once
RIGHT = ("a", "b", "cx200", "d", "e", FADING)  # an x precedes an adapter's size
WRONG = ("unfit", "missing", "hugex9000")


class SimReader:
    """A loader's process: its answers take ticks, and come in any order."""

    def __init__(self, chance: random.Random) -> None:
        self._random = chance
        self._reading: list[tuple[int, int, Path, Then]] = []  # ticks left, number, path
        self._next_number = 0
        self._has_faded = False

    def request(
        self, path: str, then: Then, beside: Sequence[str] = (), names: Sequence[str] = ()
    ) -> int:
        """Begin to read a file."""
        if len(self._reading) >= 2:
            raise FileError(TOO_MANY, "too many files")
        number, self._next_number = self._next_number, self._next_number + 1
        ticks = self._random.choice((0, 2, MOST_LOAD_TICKS))
        self._reading.append((ticks, number, Path(path), then))
        return number

    def take(self) -> list[tuple[int, FileError]]:
        """Pass on what has been read by this tick; return what has failed."""
        ended = [each for each in self._reading if not each[0]]
        self._reading = [(each[0] - 1, *each[1:]) for each in self._reading if each[0]]
        self._random.shuffle(ended)
        failed = []
        for _, number, path, then in ended:
            if path.name == "missing" or (path.name == FADING and self._has_faded):
                failed.append((number, FileError(UNREADABLE, "there is no such file")))
                continue
            self._has_faded = self._has_faded or path.name == FADING
            checkpoint = Checkpoint(path, {}, Metadata.of_strings(path, {}))
            then(TensorFile(checkpoint, {}, 1000))
        return failed


class SimLoader(AdapterLoader):
    """A loader of adapters whose names say what they are."""

    def prepare(self, label: str, file: TensorFile) -> Packed:
        if label == "unfit":
            raise TensorMismatchError("a wrong shape")
        return Packed(label, int(label.partition("x")[2] or 100))


class CheckedExecutor(SimExecutor):
    """An executor that keeps what the slots of adapters hold, as a backend would."""

    def __init__(self, *parts: Any, loader: AdapterLoader) -> None:
        super().__init__(*parts)
        self._loader = loader
        self._slots = AdapterSlots(loader)
        self._held: dict[int, tuple[str | None, float]] = {}

    def submit(self, plan: StepPlan) -> None:
        changed, lost = self._slots.change(plan.opened)
        require(not lost, f"step {plan.step}: the adapters of {lost} are not in memory")
        for slot, value, factor in changed:
            self._held[slot] = value, factor
        super().submit(plan)
        worker = self.workers[0]
        for sequence in map(worker.slots.__getitem__, plan.slots):
            if sequence.lora is not None:
                wanted, held = split_id(sequence.lora), self._held.get(sequence.adapter)
                require(held == wanted, f"{sequence.request_id}: {held} computes, not {wanted}")


@dataclass
class Waiting:
    """A request that is held, and how many that came later went on before it."""

    digest: str
    num_overtaken: int = 0


class AdapterWorld:
    """A run of one world."""

    def __init__(self, seed: int, loader: type[AdapterLoader] = SimLoader) -> None:
        self._random = chance = random.Random(seed)
        self.config = CoreConfig(
            num_blocks=chance.choice((30, 200)),
            max_model_len=60,
            block_size=4,
            max_num_batched_tokens=chance.choice((16, 64)),
            max_num_seqs=chance.choice((2, 6)),
            pipeline_depth=chance.choice((1, 2)),
            max_loras=chance.choice((1, 2, 3)),
            hold_seconds=TICK_SECONDS,  # loads take longer, and so do texts that keep others out
            untimed_holds=(ADAPTER,),
        )
        self.bounds = Bounds(
            self.config.max_loras + chance.randrange(3), chance.choice((300, 500, 5000))
        )
        nothing: Any = None
        self.loader = loader(nothing, nothing, self.bounds, "/adapters", MOST_OVERTAKEN)
        reader = SimReader(chance)
        self.files = TensorFiles({KIND: self.loader}, reader)
        self.loader.attach(self.files)
        self.holds = Holds([self.loader], None)
        self.requests: dict[str, Request] = {}
        self.outputs: dict[str, list[int]] = {}
        self.ends: dict[str, TokenEvent] = {}
        self.waiting: dict[str, Waiting] = {}
        self._now = 0.0
        self._num_ticks = 0
        executor = CheckedExecutor(
            self.config,
            self.requests.__getitem__,
            lambda: chance.random() < 0.3,
            Faults(),
            lambda plan: None,
            loader=self.loader,
        )
        self.core = EngineCore(self.config, executor, lambda: self._now, b"key")
        self._wrong_rate = chance.choice((0.0, 0.2))
        self._undo_rate = chance.choice((0.0, 0.1))

    def run(self) -> None:
        """Run the world; raise an error if anything is wrong."""
        while self._num_ticks < NUM_TICKS:
            for _ in range(self._random.choice((0, 0, 1, 3))):
                self._arrive()
            if self.requests and self._random.random() < 0.1:
                self.core.on_event(Abort(self._random.choice([*self.requests])))
            if self._random.random() < self._undo_rate:
                self._undo()
            self._tick()
        most = self._num_ticks + 30 * len(self.requests) + 100
        while self.requests.keys() - self.ends.keys():
            living = self.requests.keys() - self.ends.keys()
            require(self._num_ticks < most, f"these do not end: {living}")
            self._tick()
        require(not self.holds.num_held, "something is still held")
        for name, end in self.ends.items():
            self._check_end(name, end)

    def _arrive(self) -> None:
        chance, name = self._random, f"{len(self.requests)}"
        wrong = chance.random() < self._wrong_rate
        lora: str | None = chance.choice(WRONG if wrong else RIGHT)
        if chance.random() < 0.2:
            lora = None
        elif chance.random() < 0.2:
            lora = f"{lora}*0.5"
        sampling = SamplingParams(max_tokens=chance.randrange(1, 12))
        prompt = array("i", [chance.randrange(8) for _ in range(chance.randrange(1, 20))])
        request = Request(name, prompt, sampling, arrival=self._now, lora=lora)
        self.requests[name], self.outputs[name] = request, []
        num_held = self.holds.num_held
        self.holds.add(self.core, request)
        if self.holds.num_held > num_held:
            assert lora is not None
            self.waiting[name] = Waiting(split_id(lora)[0])
        elif lora is not None:
            self._overtake(split_id(lora)[0])

    def _overtake(self, digest: str) -> None:
        """Count a request that need not wait; it overtakes those that wait for room."""
        for waiting in self.waiting.values():
            is_for_room = waiting.digest == self.loader.first_waiting
            waiting.num_overtaken += is_for_room and waiting.digest != digest
            require(
                waiting.num_overtaken <= MOST_OVERTAKEN,
                f"{waiting.num_overtaken} overtake what waits for {waiting.digest}",
            )

    def _undo(self) -> None:
        """Give up an adapter, as a command does, whatever waits for it or uses it."""
        loaded = [digest for digest in RIGHT if self.files.is_loaded(KIND, digest)]
        if loaded:
            self.files.give_up(KIND, self._random.choice(loaded))

    def _tick(self) -> None:
        self._now += TICK_SECONDS
        self._num_ticks += 1
        self.files.take()
        self.holds.take(self.core)
        events = self.core.step(wait=self._random.random() < 0.7)
        self.holds.leave(events)
        for event in events:
            name = event.request_id
            require(name not in self.ends, f"{name}: an event after its end")
            self.outputs[name].extend(event.tokens)
            if event.finish_reason:
                self.ends[name] = event
                self.waiting.pop(name, None)
        held = self.core.scheduler.queue.held
        for name in [name for name in self.waiting if name not in held]:
            del self.waiting[name]
        check_integrity(self.core.scheduler)
        self._check_memory()

    def _check_memory(self) -> None:
        packed = self.loader.in_memory
        require(len(packed) <= self.bounds.adapters, f"{len(packed)} adapters are in memory")
        num_bytes = sum(each.num_bytes for each in packed.values())
        require(num_bytes <= self.bounds.num_bytes, f"adapters take {num_bytes} bytes")

    def _check_end(self, name: str, end: TokenEvent) -> None:
        request = self.requests[name]
        right, reason = right_output(request, self.config.max_model_len, False)
        digest = split_id(request.lora)[0] if request.lora else ""
        failed = {"unfit": "impossible", "hugex9000": "impossible", "missing": "error"}
        if end.finish_reason == "abort":
            require(self.outputs[name] == right[: len(self.outputs[name])], f"{name}: wrong")
            return
        if digest in failed:
            require(end.finish_reason == failed[digest], f"{name}: {end}")
            return
        if digest == FADING and end.finish_reason == "error":
            require(not self.outputs[name], f"{name}: an error after tokens")
            return
        require(end.finish_reason == reason, f"{name}: {end}")
        require(self.outputs[name] == right, f"{name}: wrong tokens")
