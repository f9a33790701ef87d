"""Simulated engine processes: the real engine loop and core behind a simulated socket.

Frames are encoded and decoded as on the wire. They arrive in order, with a delay; frames of an
engine that has died may still arrive, or be lost.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from octavo.client.launcher import Incoming
from octavo.core.config import CoreConfig
from octavo.core.engine import EngineCore, Executor
from octavo.core.kv.transfers import KVIndex
from octavo.engine.process import EngineLoop
from octavo.engine.tensor_files import TensorFiles
from octavo.exec.inline import InlineExecutor
from octavo.exec.recording import RecordingExecutor, SuspectRecord
from octavo.options.engine import EngineArguments
from octavo.wire.channel import HEARTBEAT_SECONDS, StepProgress
from octavo.wire.facts import EngineFacts
from octavo.wire.message_types import (
    EngineFailed,
    EngineReady,
    FromEngine,
    FromEngineFrame,
    Heartbeat,
    ProcessStarted,
    StartEngine,
    ToEngine,
    WireError,
    decode_to_engine,
    encode,
    unpack,
)
from tests.client.fake_engine import FakeRunner
from tests.exec.at_once import AtOnce
from tests.sim.shell.virtual_loop import VirtualLoop
from tests.sim.truth import VOCABULARY

STEP_SECONDS = 0.01


class Box:
    """The crash record, without shared memory."""

    def __init__(self) -> None:
        self.numbers: tuple[int, ...] = ()

    def write(self, numbers: Sequence[int]) -> None:
        self.numbers = tuple(numbers)


class Inside(NamedTuple):
    """The parts of an engine beside its core and its loop."""

    executor: Executor
    kv_index: KVIndex | None = None  # of the KV that other places have
    files: TensorFiles | None = None  # that it can load while it runs


class SimEngine:
    """A simulated process, as `octavo.client.launcher.EngineProcess` describes it."""

    def __init__(self, world: SimLauncher, epoch: int, config: CoreConfig) -> None:
        self._world = world
        self._loop = world.loop
        self._random = world.random
        self.epoch = epoch
        self._config = config
        self._inbox: deque[bytes] = deque()
        self._last_arrival = 0.0
        self._is_resting = False
        self._num_taken = self._num_sent = self._num_pulses = 0
        self._box = Box()
        self._progress = StepProgress()
        self.core: EngineCore | None = None
        self._files: TensorFiles | None = None
        self._host: EngineLoop | None = None
        self._cache_key = b""
        self._ending: str | None = None
        self.ended_at: float | None = None
        self._was_killed = False
        self._on_end: Callable[[], None] | None = None
        self.is_stopped = False  # as by SIGSTOP
        self.is_hung = False  # in a step that never ends; its pulses continue
        self.is_mad = False  # it sends data that is no message
        self.is_unwanted = False  # it may be killed although it is healthy
        self.is_closed = False
        self._loop.call_later(self._random.uniform(0, 0.1), self._begin)

    # called by the client

    def send(self, data: bytes) -> bool:
        if self._ending is not None or self._random.random() < self._world.fullness:
            return False
        at = max(self._loop.time() + self._world.delay(), self._last_arrival + 1e-9)
        self._last_arrival = at
        self._loop.call_at(at, self._receive, data)
        return True

    def watch(self, on_exit: Callable[[], None]) -> None:
        self._on_end = on_exit
        if self._ending is not None:
            self._loop.call_soon(on_exit)

    def dump_stacks(self) -> None:
        self._world.num_dumps += 1

    def kill(self) -> None:
        is_faulty = self.is_stopped or self.is_hung or self.is_mad
        if self._ending is None and not (is_faulty or self.is_unwanted):
            self._world.errors.append(AssertionError("a healthy engine was killed"))
        self.end("its process was ended by SIGKILL")

    def exit_reason(self) -> str | None:
        return self._ending

    def was_killed(self) -> bool:
        return self._was_killed

    def last_step(self) -> tuple[int, ...]:
        return self._box.numbers

    def close(self) -> None:
        self.end("its process was ended by SIGKILL")
        self._on_end = None
        self.is_closed = True

    # called by the world

    @property
    def is_ready(self) -> bool:
        return self._host is not None and self._ending is None

    def names(self) -> list[str]:
        """Return the ids of the sequences in the core."""
        return [] if self.core is None else list(self.core.scheduler.sequences)

    def end(self, how: str, by_others: bool = False) -> None:
        """End the process; frames that it has sent may arrive, arrive late, or be lost."""
        if self._ending is not None:
            return
        self._ending, self._was_killed = how, by_others
        self.ended_at = self._loop.time()
        match self._random.randrange(3):
            case 0:
                self._world.lose_frames(self.epoch)
            case 1:
                self._world.hold_frames(self.epoch, self._random.uniform(0, 3))
        if self._on_end is not None:
            self._loop.call_later(self._random.uniform(0, 0.05), self._tell_end)

    def babble(self) -> None:
        """Send data that is no message."""
        self.is_mad = True
        self._world.carry(self.epoch, False, self._random.randbytes(20))

    # the process itself

    def _tell_end(self) -> None:
        if self._on_end is not None:
            self._on_end()

    def _begin(self) -> None:
        if self._ending is None:
            self._send(ProcessStarted())
            self._beat()

    def _receive(self, data: bytes) -> None:
        self._inbox.append(data)
        if self._host is None and self._ending is None:
            message = self.take()
            assert isinstance(message, StartEngine)
            self._cache_key = message.cache_key
            self._world.cache_keys[message.cache_key] = None
            self._world.arguments.append(unpack(message.arguments, EngineArguments))
            self._loop.call_later(self._random.uniform(0.1, 2.0), self._load)

    def _load(self) -> None:
        if self._ending is not None:
            return
        if self._random.random() < self._world.start_failures:
            self._send(EngineFailed("no memory for the weights"))
            self.end("its process ended with exit code 3")
            return
        record = SuspectRecord(self._box)
        clock = self._loop.time
        inside = self._world.make_inside(self)
        executor = RecordingExecutor(inside.executor, record, self._note_size)
        self.core = EngineCore(
            self._config, executor, clock, self._cache_key, index=inside.kv_index, check_interval=5
        )
        self._files = files = inside.files
        self._host = EngineLoop(
            self.core, _Channel(self), record, self._progress, clock, files=files
        )
        self._send(EngineReady(self._world.facts(self.core.longest_tokens)))
        self._work()

    def _note_size(self, num_tokens: int) -> None:
        self._progress.num_tokens = num_tokens

    def _work(self) -> None:
        if self._ending is not None:
            return
        self._loop.call_later(STEP_SECONDS * self._random.uniform(0.5, 1.5), self._work)
        if self.is_stopped or self.is_hung:
            return
        host = self._host
        assert host is not None
        try:
            is_loading = self._files is not None and self._files.num_loading > 0
            if self._inbox or is_loading or not host.is_idle:
                self._is_resting = False
                host.run_step()
                self._world.after_step(self)
            elif not self._is_resting:
                self._is_resting = True
                host.report_idle()
        except WireError as error:  # the front end sent something wrong
            self._world.errors.append(error)
            self.end("its process ended with exit code 4")
        except RuntimeError as error:  # a poisoned step
            self._send(EngineFailed(str(error)))
            self.end("its process ended with exit code 4")

    def _beat(self) -> None:
        if self._ending is not None:
            return
        self._loop.call_later(HEARTBEAT_SECONDS, self._beat)
        if self.is_stopped:
            return
        progress = self._progress
        since = progress.busy_since
        busy = 0.0 if since is None else self._loop.time() - since
        frame = FromEngineFrame(self.epoch, self._num_pulses, Heartbeat(progress.step, busy, 0))
        self._num_pulses += 1
        self._world.carry(self.epoch, True, encode(frame))

    def _send(self, message: FromEngine) -> None:
        self._world.carry(
            self.epoch, False, encode(FromEngineFrame(self.epoch, self._num_sent, message))
        )
        self._num_sent += 1

    def take(self) -> ToEngine | None:
        """Return the next message from the front end."""
        if not self._inbox:
            return None
        frame = decode_to_engine(self._inbox.popleft())
        if (frame.epoch, frame.number) != (self.epoch, self._num_taken):
            raise WireError(f"frame {frame.number} of epoch {frame.epoch} out of order")
        self._num_taken += 1
        return frame.message


class _Channel:
    """The engine's end of the simulated socket."""

    def __init__(self, engine: SimEngine) -> None:
        self._engine = engine

    def receive(self, seconds: float) -> ToEngine | None:
        assert not seconds, "the simulated loop must not block"
        return self._engine.take()

    def send(self, message: FromEngine) -> None:
        self._engine._send(message)


class SimLauncher:
    """A launcher of simulated processes, as `octavo.client.launcher.Launcher` describes it."""

    def __init__(self, loop: VirtualLoop, seed: int, config: CoreConfig) -> None:
        self.loop = loop
        self.random = random.Random(seed)
        self.config = config
        self.fullness = 0.0  # the chance that the socket is full
        self.start_failures = 0.0
        self.max_delay = self.random.choice([0.0, 0.001, 0.05])
        self.engines: list[SimEngine] = []
        self.errors: list[Exception] = []
        self.num_dumps = 0
        self.num_late = 0  # frames of an engine that arrived after its successor's start
        self.is_closed = False
        self.cache_keys: dict[bytes, None] = {}  # that engines have been given
        self.arguments: list[EngineArguments] = []  # likewise, in order
        self._arrived: deque[Incoming] = deque()
        self._travelling: list[Incoming] = []
        self._latest: dict[tuple[int, bool], float] = {}
        self._on_frame: Callable[[], None] | None = None

    # A subclass overrides these methods to give its engines more.

    def make_inside(self, engine: SimEngine) -> Inside:
        """Return what an engine that starts has inside."""
        runner = FakeRunner({"poison": "1", "how": "raise"})
        return Inside(InlineExecutor(AtOnce(runner.run)))

    def after_step(self, engine: SimEngine) -> None:
        """Look at an engine after one of its steps."""

    # as a launcher

    def launch(self, epoch: int) -> SimEngine:
        for engine in self.engines:
            assert engine.is_closed, "two engines at once"
        self.engines.append(SimEngine(self, epoch, self.config))
        return self.engines[-1]

    def receive(self) -> Incoming | None:
        return self._arrived.popleft() if self._arrived else None

    def wait(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def attach(self, on_frame: Callable[[], None]) -> None:
        self._on_frame = on_frame

    def close(self) -> None:
        self.is_closed = True
        self._on_frame = None

    def delay(self) -> float:
        """Return the delay of a frame."""
        return self.random.uniform(0, self.max_delay)

    def carry(self, epoch: int, is_heartbeat: bool, data: bytes) -> None:
        """Send a frame to the front end; the frames of one socket arrive in order."""
        incoming = Incoming(epoch, is_heartbeat, data)
        key = (epoch, is_heartbeat)
        at = max(self.loop.time() + self.delay(), self._latest.get(key, 0.0) + 1e-9)
        self._latest[key] = at
        self._travelling.append(incoming)
        self.loop.call_at(at, self._arrive, incoming)

    def lose_frames(self, epoch: int) -> None:
        """Drop the frames of this engine that have not arrived yet."""
        self._travelling = [each for each in self._travelling if each.epoch != epoch]

    def hold_frames(self, epoch: int, seconds: float) -> None:
        """Delay the frames of this engine that have not arrived yet."""
        held = [each for each in self._travelling if each.epoch == epoch]
        self.lose_frames(epoch)
        for incoming in held:
            self.loop.call_later(seconds, self._hand_over, incoming)

    def _arrive(self, incoming: Incoming) -> None:
        if not any(each is incoming for each in self._travelling):
            return
        self._travelling = [each for each in self._travelling if each is not incoming]
        self._hand_over(incoming)

    def _hand_over(self, incoming: Incoming) -> None:
        self.num_late += incoming.epoch < self.engines[-1].epoch and not incoming.is_heartbeat
        self._arrived.append(incoming)
        if self._on_frame is not None:
            self.loop.call_soon(self._on_frame)

    def facts(self, longest_tokens: int) -> EngineFacts:
        """Return the facts that an engine of this world reports."""
        config = self.config
        return EngineFacts(
            name="simulated",
            architecture="FakeForCausalLM",
            directory="",
            weights=("model.safetensors",),
            vocabulary=VOCABULARY,
            max_model_len=config.max_model_len,
            longest_tokens=longest_tokens,
            block_size=config.block_size,
            num_blocks=config.num_blocks,
            max_num_seqs=config.max_num_seqs,
            max_num_waiting=config.max_num_waiting,
            max_waiting_tokens=config.max_waiting_tokens,
            dtype="float32",
            fair_share=config.fair_share,
        )
