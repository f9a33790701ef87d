"""An engine without a model, for real processes: a token is a hash of all tokens before it.

Its runner keeps the tokens of every slot, so its output depends on the request alone, as it must.
The model's name sets its behaviour: `fake?step=0.01&poison=7&how=abort`.

    step      seconds that a step takes
    poison    a request with POISON_TOKEN in its prompt ends the engine at its third token …
    how       … by `abort`, `raise`, `exit`, `hang` (with Python's lock), `sleep`, `spin`, `kill`,
              `stop` or `bus`; or it fills memory (`fill`), tries to `escape`, or looks for `keys`,
              and ends only if that is possible
    gate      a file: while it exists, no step that produces a third token ends; a file beside it,
              `waiting`, gets a byte when such a step has begun
    clock     `jumps`: the system's time jumps by hours at each step, as this process sees it
    loading   a file: while it exists, no engine becomes ready
    fail      the engine's start fails with this text
    warn      a warning that the start logs, as the start of a real engine does
    crash     the engine's process ends at its start, as with `how`
    key       shown in the facts: the engine's name is a hash of its digests' key
    sums      it takes files of numbers (tests/client/sums.py)
    slots     sequences that run at once
    blocks    blocks of the KV cache
    vocabulary  tokens that prompts may contain; the model draws the first few only
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
import os
import signal
import socket
import subprocess
import tempfile
import time
from array import array
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from pathlib import Path
from urllib.parse import parse_qsl

from octavo import env
from octavo.core.config import CoreConfig
from octavo.core.plan import (
    NO_TOKEN,
    HiddenPayload,
    LogprobsPayload,
    NewSlot,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from octavo.engine.process import CoreAndFacts, Wrap
from octavo.options.engine import EngineArguments
from tests.client.sums import Sums
from tests.engine.over_runner import engine_over_runner
from tests.sim.extras import sampler_state
from tests.sim.truth import VOCABULARY, extend, hash_of, next_token

POISON_TOKEN = 60  # in a prompt; it has its effect where the engine has `poison`
_WALL_CLOCK = time.time
FILL_BYTES = 400 << 20
WAITING = "waiting"  # a file beside the gate, with a byte for each time that an engine waits there
HARMLESS = 2  # tokens that a poisoned request produces before it crashes; the gate lets pass


class _Slot:
    """A sequence in the fake runner."""

    def __init__(self, new: NewSlot) -> None:
        self.sampling = new.sampling
        self.tokens = list(new.tokens)
        self.num_prompt = new.num_prompt
        self.state = hash_of(self.tokens, new.lora)
        if new.sampler_state != self.sampler_state:
            self.state = extend(self.state, 0)  # another text

    @property
    def sampler_state(self) -> float | None:
        num_output = len(self.tokens) - self.num_prompt
        return sampler_state(self.state, self.sampling, num_output)


class FakeRunner:
    """A runner whose model is a hash."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._seconds = float(settings.get("step", "0"))
        self._poison = "poison" in settings
        self._how = settings.get("how", "abort")
        self._gate = Path(settings["gate"]) if "gate" in settings else None
        if self._gate is not None:  # it is opened before the process gives up its files
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._waiting = os.open(self._gate.with_name(WAITING), flags)
        self._slots: dict[int, _Slot] = {}
        self._clock_jumps = "clock" in settings

    def run(self, plan: StepPlan) -> StepResult:
        for number in plan.freed:
            del self._slots[number]
        for new in plan.opened:
            self._slots[new.slot] = _Slot(new)
        if self._clock_jumps:
            jump_clock(plan.step)
        if self._seconds:
            time.sleep(self._seconds)
        tokens, payloads, states = [], [], []
        for number, start, count, samples in zip(
            plan.slots, plan.starts, plan.counts, plan.samples, strict=True
        ):
            slot = self._slots[number]
            token = next_token(slot.state) if samples else NO_TOKEN
            if samples:
                slot.tokens.append(token)
                slot.state = extend(slot.state, token)
                if slot.sampler_state is not None:
                    states.append((number, slot.sampler_state))
                if len(slot.tokens) - slot.num_prompt > HARMLESS:
                    self._pass_traps(slot)
            tokens.append(token)
            payload = _payload(slot, start, start + count, samples)
            if payload is not None:
                payloads.append((number, payload))
        return StepResult(plan.step, tuple(tokens), payloads=tuple(payloads), states=tuple(states))

    def _pass_traps(self, slot: _Slot) -> None:
        """Wait while the gate is closed; then end the process if the request is poisoned."""
        if self._gate is not None and self._gate.exists():
            os.write(self._waiting, b".")
        while self._gate is not None and self._gate.exists():
            time.sleep(0.001)
        if self._poison and POISON_TOKEN in slot.tokens[: slot.num_prompt]:
            die(self._how)


def die(how: str) -> None:
    """End this process, or stop its work, in one of several ways."""
    match how:
        case "raise":
            raise RuntimeError("the fake model was poisoned")
        case "exit":
            os._exit(7)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "hang":
            ctypes.PyDLL(None).sleep(1000)  # holds the GIL, like a native call without end
        case "sleep":
            time.sleep(1000)
        case "spin":
            while True:
                pass
        case "bus":
            ctypes.string_at(_cut_mapping(), 1)
        case "fill":  # memory, more than a control group allows; elsewhere it does no harm
            bytearray(FILL_BYTES)[:: mmap.PAGESIZE] = bytes(FILL_BYTES // mmap.PAGESIZE)
        case "escape":
            _try_to_escape()
        case "keys":
            assert not env.api_keys()
            assert not env.foreign_api_keys()[1]
        case _:
            os.abort()


@cache
def _mapping() -> tuple[mmap.mmap, int]:
    """Map a file, as weights are mapped; the process must not be confined yet."""
    file = tempfile.TemporaryFile()  # noqa: SIM115  (kept until the process ends)
    file.truncate(mmap.PAGESIZE)
    return mmap.mmap(file.fileno(), mmap.PAGESIZE), os.dup(file.fileno())


def _cut_mapping() -> int:
    """Truncate the mapped file; return the address of its lost page."""
    mapping, descriptor = _mapping()
    os.ftruncate(descriptor, 0)
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))


def _try_to_escape() -> None:
    """Try what a confined process must not; raise AssertionError if anything succeeds."""
    attempts: tuple[Callable[[], object], ...] = (
        lambda: Path(__file__).read_bytes(),
        lambda: Path(__file__).with_suffix(".new").touch(),
        lambda: Path(__file__).with_suffix(".gone").mkdir(),
        socket.socket,
        lambda: socket.socket(socket.AF_UNIX),
        lambda: subprocess.run(["true"], check=False),
        os.fork,
        lambda: os.kill(os.getppid(), 0),
        lambda: os.memfd_create("new"),
    )
    for attempt in attempts:
        with contextlib.suppress(PermissionError):
            attempt()
            raise AssertionError("the engine is not confined")


def jump_clock(turn: int) -> None:
    """Set this process's wall clock an hour ahead or, every other time, two hours back."""
    jumped = _WALL_CLOCK() + (3600.0 if turn % 2 else -7200.0)
    time.time = lambda: jumped
    time.time_ns = lambda: int(jumped * 1e9)


def _payload(slot: _Slot, start: int, end: int, samples: bool) -> object:
    """Derive the requested log-probabilities or hidden states from the tokens alone."""
    sampling = slot.sampling
    if sampling.pooling is not None:
        return HiddenPayload(array("f", slot.tokens[: slot.num_prompt])) if samples else None
    sampled: tuple[TokenLogprobs, ...] = ()
    prompt: tuple[TokenLogprobs, ...] = ()
    if sampling.logprobs is not None and samples:
        sampled = (_logprobs(slot.tokens, len(slot.tokens) - 1, sampling.logprobs),)
    first = max(1, start)
    if sampling.prompt_logprobs is not None:
        ends = range(first, min(end, slot.num_prompt))
        prompt = tuple(_logprobs(slot.tokens, at, sampling.prompt_logprobs) for at in ends)
    payload = LogprobsPayload(sampled, first, prompt)
    return None if payload == LogprobsPayload((), first) else payload


def _logprobs(tokens: list[int], position: int, count: int) -> TokenLogprobs:
    others = [(tokens[position] + index) % VOCABULARY for index in range(count)]
    values = [-(1 + position) / (1 + index) for index in range(count + 1)]
    return TokenLogprobs(array("i", [tokens[position], *others]), array("f", values), 1)


def make(arguments: EngineArguments, wrap: Wrap, cache_key: bytes) -> CoreAndFacts:
    """Build the fake engine: a factory for `octavo.engine.process`."""
    settings = dict(parse_qsl(arguments.model.partition("?")[2]))
    if "warn" in settings:
        logging.getLogger("octavo.engine.build").warning("%s", settings["warn"])
    if "fail" in settings:
        raise ValueError(settings["fail"])
    while "loading" in settings and Path(settings["loading"]).exists():
        time.sleep(0.001)
    if settings.get("how") == "bus":
        _mapping()
    if "crash" in settings:
        die(settings["crash"])
    config = CoreConfig(
        num_blocks=int(settings.get("blocks", "4000")),
        max_model_len=4096,
        block_size=4,
        max_num_batched_tokens=512,
        max_num_seqs=int(settings.get("slots", "64")),
        logs_cache=arguments.kv_events_config is not None,
    )
    runner = FakeRunner(settings)
    vocabulary = int(settings.get("vocabulary", VOCABULARY))
    name = arguments.model
    if "key" in settings:
        name = blake2b(cache_key, digest_size=8).hexdigest()
    parts = name, arguments, wrap, cache_key, runner.run, config, vocabulary
    kinds = {"sums": Sums()} if "sums" in settings else {}
    return engine_over_runner(*parts)._replace(file_kinds=kinds)
