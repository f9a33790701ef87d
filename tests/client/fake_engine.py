"""An engine without a model, for real processes: tokens are a hash of all before them.

Its runner keeps every slot's tokens, so what it says depends on the request alone, as it must.
The model's name says what else it shall do: `fake?step=0.01&poison=7&how=abort`.

    step      seconds a step takes
    poison    a request with this priority ends the engine, when it has given two tokens …
    how       … by `abort`, `raise`, `exit`, `hang` (holding Python's lock) or `stop` (SIGSTOP)
    gate      a file: while it is there, no step that gives a third token ends
    fail      the engine's start fails with this text
    slots     sequences at once
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from array import array
from pathlib import Path
from urllib.parse import parse_qsl

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
from octavo.engine.process import HostedEngine, Wrap
from octavo.engine_arguments import EngineArguments
from tests.engine.hosted import hosted
from tests.sim.truth import VOCABULARY, extend, hash_of, next_token

POISON_TOKEN = 60  # in a prompt, where `poison` is asked for
HARMLESS = 2  # tokens that a poisoned request gives before it kills, any before the gate


class _Slot:
    """A sequence as the fake worker knows it."""

    def __init__(self, new: NewSlot) -> None:
        self.sampling = new.sampling
        self.tokens = list(new.tokens)
        self.num_prompt = new.num_prompt
        self.state = hash_of(self.tokens, new.lora)


class FakeRunner:
    """Runs plans as a model would, if a hash were one."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._seconds = float(settings.get("step", "0"))
        self._poison = "poison" in settings
        self._how = settings.get("how", "abort")
        self._gate = Path(settings["gate"]) if "gate" in settings else None
        self._slots: dict[int, _Slot] = {}

    def run(self, plan: StepPlan) -> StepResult:
        for number in plan.freed:
            del self._slots[number]
        for new in plan.opened:
            self._slots[new.slot] = _Slot(new)
        if self._seconds:
            time.sleep(self._seconds)
        tokens, payloads = [], []
        for number, start, count, samples in zip(
            plan.slots, plan.starts, plan.counts, plan.samples, strict=True
        ):
            slot = self._slots[number]
            token = next_token(slot.state) if samples else NO_TOKEN
            if samples:
                slot.tokens.append(token)
                slot.state = extend(slot.state, token)
                if len(slot.tokens) - slot.num_prompt > HARMLESS:
                    self._come_to(slot)
            tokens.append(token)
            payload = _payload(slot, start, start + count, samples)
            if payload is not None:
                payloads.append((number, payload))
        return StepResult(plan.step, tuple(tokens), payloads=tuple(payloads))

    def _come_to(self, slot: _Slot) -> None:
        """What a test has put behind the first tokens."""
        if self._poison and POISON_TOKEN in slot.tokens[: slot.num_prompt]:
            die(self._how)
        while self._gate is not None and self._gate.exists():
            time.sleep(0.001)


def die(how: str) -> None:
    """What a poisoned step does."""
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
            ctypes.PyDLL(None).sleep(1000)  # as a kernel that never ends: Python's lock is held
        case "sleep":
            time.sleep(1000)
        case _:
            os.abort()


def _payload(slot: _Slot, start: int, end: int, samples: bool) -> object:
    """Made-up log-probabilities and hidden states, of what was asked for, from the tokens alone."""
    sampling = slot.sampling
    if sampling.pooling is not None:
        return HiddenPayload(array("f", slot.tokens)) if samples else None
    sampled: tuple[TokenLogprobs, ...] = ()
    prompt: tuple[TokenLogprobs, ...] = ()
    if sampling.logprobs is not None and samples:
        sampled = (_told(slot.tokens, len(slot.tokens) - 1, sampling.logprobs),)
    first = max(1, start)
    if sampling.prompt_logprobs is not None:
        ends = range(first, min(end, slot.num_prompt))
        prompt = tuple(_told(slot.tokens, at, sampling.prompt_logprobs) for at in ends)
    payload = LogprobsPayload(sampled, first, prompt)
    return None if payload == LogprobsPayload((), first) else payload


def _told(tokens: list[int], position: int, count: int) -> TokenLogprobs:
    others = [(tokens[position] + index) % VOCABULARY for index in range(count)]
    values = [-(1 + position) / (1 + index) for index in range(count + 1)]
    return TokenLogprobs(array("i", [tokens[position], *others]), array("f", values), 1)


def make(arguments: EngineArguments, wrap: Wrap) -> HostedEngine:
    """The factory, for `octavo.engine.process`."""
    settings = dict(parse_qsl(arguments.model.partition("?")[2]))
    if "fail" in settings:
        raise ValueError(settings["fail"])
    if "crash" in settings:
        die(settings["crash"])
    config = CoreConfig(
        num_blocks=int(settings.get("blocks", "4000")),
        max_model_len=4096,
        block_size=4,
        max_num_batched_tokens=512,
        max_num_seqs=int(settings.get("slots", "64")),
    )
    return hosted(arguments.model, arguments, wrap, FakeRunner(settings), config, VOCABULARY)
