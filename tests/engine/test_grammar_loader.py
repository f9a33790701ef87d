"""A request waits for its own grammar, and no other request does."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from octavo.core.config import CoreConfig
from octavo.core.engine import EngineCore
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.engine.grammar_loader import GrammarLoader
from octavo.engine.process import EngineLoop
from octavo.engine.tensor_files import TensorFiles
from octavo.exec.recording import RecordingExecutor, SuspectRecord
from octavo.grammar.supply import GrammarSupply
from octavo.loader_process.connection import FileError
from octavo.loader_process.read import UNREADABLE
from octavo.wire.channel import StepProgress
from octavo.wire.codec import request_to_wire
from octavo.wire.commands import LoadFile
from octavo.wire.message_types import (
    AbortRequests,
    AddRequests,
    CommandReply,
    EngineCommand,
    StepOutput,
    WireEvent,
    pack,
)
from tests.engine.test_loop import EndlessWaitError, Messages, Record, Steps
from tests.grammar.toy import ToyEngine


class SlowLoader:
    """A loader of files that needs two looks until it has answered."""

    num_looks = 0

    def request(self, path: str, then: object, beside: Sequence[str], names: Sequence[str]) -> int:
        return 0

    def take(self) -> list[tuple[int, FileError]]:
        self.num_looks += 1
        return [(0, FileError(UNREADABLE, "no such file"))] if self.num_looks == 2 else []


class AnyKind:
    """A kind whose files are never read."""

    names = beside = ()
    bounds_itself = False


class Rig:
    """An engine's loop whose steps always draw the same token."""

    def __init__(self) -> None:
        self.record, self.channel, self.engine = Record(), Messages(), ToyEngine()
        suspects = SuspectRecord(self.record)
        config = CoreConfig(num_blocks=40, max_model_len=64)
        executor = RecordingExecutor(Steps(self.record), suspects)
        core = EngineCore(config, executor, time.monotonic, b"k" * 16)
        self.heap = 0
        self.supply = GrammarSupply(
            lambda: self.engine, limit_bytes=200, heap_bytes=lambda: self.heap
        )
        self.grammars = GrammarLoader(self.supply)
        kind: Any = AnyKind()
        loader: Any = SlowLoader()
        files = TensorFiles({"any": kind}, loader)
        self.loop = EngineLoop(
            core, self.channel, suspects, StepProgress(), grammars=self.grammars, files=files
        )

    def add(self, number: int, grammar: str, max_tokens: int = 2, key: str = "") -> None:
        """Send a request, and let the loop take it."""
        sampling = SamplingParams(max_tokens=max_tokens, seed=1, grammar=grammar)
        prompt = array("i", [1, 2, 3])
        request = Request(str(number), prompt, sampling, arrival=0.0, cache_scope=key)
        self.channel.inbox.append(AddRequests((request_to_wire(request, number, None),)))
        self.loop.run_step()

    def events(self) -> list[WireEvent]:
        """Return all events that were sent."""
        return [
            event
            for message in self.channel.sent
            if isinstance(message, StepOutput)
            for event in message.events
        ]

    def run(self) -> None:
        """Run the loop until it waits for a message without an end."""
        with suppress(EndlessWaitError):
            self.loop.serve()
        assert not self.grammars.num_held


def test_other_requests_go_on_while_a_grammar_is_compiled() -> None:
    rig = Rig()
    rig.engine.gate.clear()
    rig.add(1, "5 6")
    assert rig.record.numbers == (1,), "it is to blame if the compiler crashes"
    rig.add(2, "", max_tokens=3)
    assert set(rig.record.numbers) == {1, 2}
    for _ in range(4):
        rig.loop.run_step()
    assert [(event.number, len(event.tokens)) for event in rig.events()] == [(2, 1)] * 3
    rig.loop.report_idle()
    assert rig.record.numbers == (1,)
    rig.engine.gate.set()
    rig.run()
    assert [event.number for event in rig.events()] == [2, 2, 2, 1, 1]
    rig.loop.report_idle()
    assert not rig.record.numbers


def test_the_grammar_engine_is_made_while_there_is_no_work() -> None:
    rig = Rig()
    rig.add(1, "", max_tokens=3)
    rig.loop.run_step()
    assert not rig.grammars.is_prepared, "a text is being written, which would wait"
    rig.run()
    assert rig.grammars.is_prepared
    rig.grammars._thread.submit(int).result()
    assert rig.supply._engine is rig.engine


def test_a_file_is_taken_that_an_idle_engine_loads_before_its_grammar_engine_is_made() -> None:
    rig = Rig()
    load = LoadFile("any", "one", "/files/one")
    rig.channel.late.append(EngineCommand(1, load.name, pack(load)))
    rig.run()
    replies = [each for each in rig.channel.sent if isinstance(each, CommandReply)]
    assert [reply.error and reply.error.code for reply in replies] == [UNREADABLE]
    assert rig.grammars.is_prepared


def test_each_text_has_a_grammar_of_its_own() -> None:
    rig = Rig()
    rig.add(1, "5 6")
    rig.run()
    rig.engine.gate.clear()
    rig.add(2, "5 6")
    assert rig.grammars.num_held == 1
    rig.engine.gate.set()
    rig.run()
    assert rig.engine.compiled == ["5 6", "5 6"]


def test_a_grammar_that_cannot_be_compiled_fails_its_own_request() -> None:
    rig = Rig()
    rig.add(1, "!no grammar")
    rig.add(2, "5")
    rig.run()
    ends = {event.number: event.message for event in rig.events() if event.finish_reason}
    assert ends == {1: "the text cannot keep its shape: it begins with a mark", 2: None}


def test_a_request_may_be_aborted_while_it_waits() -> None:
    rig = Rig()
    rig.engine.gate.clear()
    rig.add(1, "5")
    rig.channel.inbox.append(AbortRequests((1,)))
    rig.loop.run_step()
    rig.engine.gate.set()
    rig.run()
    assert [event.finish_reason for event in rig.events()] == ["abort"]
    assert not rig.record.numbers


def test_the_grammar_of_a_request_that_has_left_is_not_compiled() -> None:
    rig = Rig()
    rig.engine.gate.clear()
    for number in range(1, 5):
        rig.add(number, f"5 {number}")
    assert rig.engine.called.acquire(timeout=300)
    rig.channel.inbox.append(AbortRequests((1, 2, 3)))
    rig.loop.run_step()
    assert rig.grammars.num_held == 1
    rig.engine.gate.set()
    rig.run()
    assert rig.engine.compiled == ["5 1", "5 4"], "the first was being compiled"


def test_keys_take_turns() -> None:
    rig = Rig()
    rig.engine.gate.clear()
    rig.add(1, "5 1", key="many")
    assert rig.engine.called.acquire(timeout=300)
    for number in range(2, 5):
        rig.add(number, f"5 {number}", key="many")
    rig.add(5, "5 5", key="few")
    rig.add(6, "5 6", key="few")
    rig.engine.gate.set()
    rig.run()
    assert rig.engine.compiled == ["5 1", "5 2", "5 5", "5 3", "5 6", "5 4"]


def test_a_shape_that_no_token_can_begin_fails_before_its_text_begins() -> None:
    rig = Rig()
    rig.add(1, "!nothing")
    rig.run()
    (event,) = rig.events()
    assert event.finish_reason == "impossible"
    assert event.message is not None
    assert "no token of the model" in event.message


def test_a_grammar_waits_for_memory_until_a_text_has_ended() -> None:
    rig = Rig()
    assert rig.supply.matcher("open", "5").num_accepted([5]) == 1
    rig.heap = 150
    rig.add(1, "5 6")
    rig.add(2, "5 7")
    rig.channel.inbox.append(AbortRequests((1,)))
    rig.loop.run_step()
    assert rig.engine.compiled == ["5"], "more than half of the memory is in use"
    rig.supply.release("open")
    rig.run()
    assert rig.engine.compiled == ["5", "5 7"]
    assert rig.supply.used_bytes == 0, "nothing is left of them"
