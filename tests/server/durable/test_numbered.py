"""A durable stream has a position on each event, behind which any later connection continues.

The writer here makes several events of an output, as dialects with blocks do: one ends the last
block, one begins the next, one has its content. Tokens go with the last event.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.api.outputs import CompletionOutput, RequestOutput
from octavo.dialects.anthropic.messages import MessagesWriter
from octavo.dialects.cohere.writer import CohereWriter
from octavo.dialects.common.dialect import OPENAI
from octavo.formats.deltas import Delta, FinishDelta, ReasoningDelta, TextDelta, ToolCallDelta
from octavo.serving.durable.numbered import NumberedWriter
from octavo.serving.durable.positions import START, Position
from octavo.serving.operation import TURN, TokenCounts, Writer
from tests.server.durable.make import Received, received

Event = tuple[Any, ...]


class BlockWriter:
    """A writer with an event for the beginning and the end of each block."""

    def __init__(self, num_answers: int) -> None:
        self.num_answers = num_answers
        self.open: dict[int, str] = {}
        self.num_made = 0

    def opening(self, counts: TokenCounts) -> Iterator[bytes]:
        for answer in range(self.num_answers):
            yield frame("role", answer)
            yield frame("echo", answer)

    def frames(
        self, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterator[bytes]:
        for one in output.outputs:
            answer = prompt_index * 2 + one.index
            events = list(self._events(answer, one.deltas))
            if one.token_ids and not events:
                events.append(("tokens", answer))
            for number, event in enumerate(events):
                yield TURN
                self.num_made += 1
                is_last = number == len(events) - 1
                yield frame(*event, ids=one.token_ids if is_last else [])
            yield TURN

    def _events(self, answer: int, deltas: Sequence[Delta]) -> Iterator[Event]:
        for number, delta in enumerate(deltas):
            if isinstance(delta, FinishDelta):
                if self.open.get(answer) != "TextDelta":
                    yield "stop", answer
                    yield "finish", answer, delta.reason
                elif not number:
                    yield "more", answer, "", delta.reason
                continue
            block = type(delta).__name__
            if isinstance(delta, ToolCallDelta):
                block = f"call {delta.index}"
            if block != self.open.get(answer):
                if answer in self.open:
                    yield "stop", answer
                self.open[answer] = block
                yield "start", answer, block
            if not isinstance(delta, ToolCallDelta):
                end = deltas[number + 1 :]
                finish = end[0].reason if end and isinstance(end[0], FinishDelta) else None
                is_text = isinstance(delta, TextDelta)
                yield "more", answer, delta.text, finish if is_text else None
                continue
            if delta.name is not None:
                yield "name", answer, delta.name
            if delta.arguments:
                yield "more", answer, delta.arguments, None


def numbered(inner: Any, known: Sequence[Position]) -> NumberedWriter:
    """Return a writer of ids around another."""
    writer = NumberedWriter(inner, 2, known, OPENAI.with_id)
    writer.gives_ids = True
    return writer


def frame(*event: Any, ids: Sequence[int] = ()) -> bytes:
    return json.dumps([event, list(ids)]).encode()


@dataclass
class Heard:
    """The whole events of a stream that a client has, and the last id."""

    last_id: str = "0"
    events: list[tuple[Event, list[int]]] = field(default_factory=list)

    def hear(self, frame: bytes) -> None:
        number, _, data = frame.partition(b"\n")
        assert number.startswith(b"id: ")
        self.last_id = number.removeprefix(b"id: ").decode()
        event, ids = json.loads(data)
        self.events.append((tuple(event), ids))

    @property
    def known(self) -> list[Position]:
        """The positions in the last id."""
        return [Position(*map(int, each.split("-"))) for each in self.last_id.split(",")]

    def said(self, answer: int) -> tuple[list[Event], list[int]]:
        """Return what the events say of one answer, however its text is divided."""
        said: list[Event] = []
        tokens: list[int] = []
        for event, ids in self.events:
            if event[1] != answer:
                continue
            tokens += ids
            if event[0] == "more" and said and said[-1][0] == "more":
                said[-1] = ("more", answer, said[-1][2] + event[2], said[-1][3] or event[3])
            elif event[0] != "tokens":
                said.append(event)
        return said, tokens


Script = list[list[Delta]]  # what each token adds


def script_of(chance: random.Random) -> Script:
    """Return an answer in which tokens add nothing, one delta or several."""
    num_calls = 0
    script: Script = []
    for _ in range(chance.randint(1, 9)):
        added: list[Delta] = []
        for _ in range(chance.choice((0, 1, 1, 2, 3))):
            kind = chance.randrange(5)
            if kind < 2:
                added.append((TextDelta, ReasoningDelta)[kind](chance.choice("abcdef")))
            elif kind == 2 or not num_calls:
                arguments = chance.choice(("", "{"))
                added.append(ToolCallDelta(num_calls, arguments, "f", f"c{num_calls}"))
                num_calls += 1
            else:
                added.append(ToolCallDelta(num_calls - 1, chance.choice("123")))
        script.append(added)
    return script


def outputs_of(script: Script, index: int, chance: random.Random) -> Iterator[CompletionOutput]:
    """Yield an answer in random pieces; its end is with the last token, or comes alone."""
    at, end, ends_alone = 0, len(script), len(script) % 2 == 0
    while at < end:
        until = chance.randint(at + 1, end)
        deltas = [delta for added in script[at:until] for delta in added]
        starts = [sum(map(len, script[at:each])) for each in range(at, until)]
        one = CompletionOutput(
            index, token_ids=list(range(at, until)), deltas=deltas, starts=starts
        )
        if until == end and ends_alone:
            if chance.random() < 0.5:
                yield one
                one = CompletionOutput(index)
            one.starts = [*one.starts, len(one.deltas)]
        if until == end:
            one.deltas = [*one.deltas, FinishDelta("stop")]
            one.finish_reason = "stop"
        yield one
        at = until


def stream(scripts: list[Script], heard: Heard, chance: random.Random) -> Iterator[bytes]:
    """Yield the frames of one connection, the outputs of the answers in any order."""
    known = heard.known if heard.events else [START] * len(scripts)
    writer = numbered(BlockWriter(len(scripts)), known)
    counts = TokenCounts(1)
    is_open = chance.random() < 0.5  # or only before the first frames, behind what is skipped
    if is_open:
        yield from filter(None, writer.opening(counts))
    answers = [outputs_of(script, index, chance) for index, script in enumerate(scripts)]
    while answers:
        answer = chance.choice(answers)
        one = next(answer, None)
        if one is None:
            answers.remove(answer)
            continue
        output = RequestOutput("r", None, [1], [one])
        if not is_open:
            is_open = True
            yield from filter(None, writer.opening(counts))
        yield from filter(None, writer.frames(0, output, counts))


@pytest.mark.parametrize("seed", range(24))
def test_any_number_of_connections_cut_anywhere_hear_the_same(seed: int) -> None:
    chance = random.Random(seed)
    scripts = [script_of(chance) for _ in range(chance.randint(1, 2))]
    whole = Heard()
    for each in stream(scripts, whole, chance):
        whole.hear(each)
    for cut in range(len(whole.events) + 1):
        heard, num_left = Heard(), cut
        for connection in range(4):
            frames = stream(scripts, heard, chance)
            for number, each in enumerate(frames):
                if connection < 3 and number >= num_left:
                    break
                heard.hear(each)
            num_left = chance.randint(0, 3)
        for answer in range(len(scripts)):
            assert heard.said(answer) == whole.said(answer), cut


def messages_writer() -> MessagesWriter:
    exchange: Any = SimpleNamespace(request_id="r", model_name="m")
    prepared: Any = None
    return MessagesWriter(exchange, prepared)


def cohere_writer() -> CohereWriter:
    exchange: Any = SimpleNamespace(request_id="r")
    prepared: Any = None
    return CohereWriter(False, exchange, prepared)


def connected(
    make: Callable[[], Writer], script: Script, last_id: str, chance: random.Random
) -> Received:
    """Return what one connection receives behind an event, or from the start behind 0."""
    known = Position(*map(int, last_id.split("-")))
    writer, counts = numbered(make(), [known]), TokenCounts(1)
    frames = [*writer.opening(counts)]
    for one in outputs_of(script, 0, chance):
        frames += writer.frames(0, RequestOutput("r", None, [1], [one]), counts)
    return received(b"".join([*frames, *writer.closing(counts, None)]).decode())


_TEXTS = re.compile(r'"(?:text|thinking|partial_json|arguments)": "([^"]*)"')


def together(events: list[tuple[str | None, Any]]) -> list[tuple[str, str]]:
    """Return events and their texts; neighbours that differ in their texts alone are one."""
    made: list[tuple[str, str]] = []
    for value in (json.dumps(each) for _, each in events):
        event, text = _TEXTS.sub("", value), "".join(_TEXTS.findall(value))
        if made and made[-1][0] == event:
            text = made.pop()[1] + text
        made.append((event, text))
    return made


@pytest.mark.parametrize("make", [messages_writer, cohere_writer])
@pytest.mark.parametrize("seed", range(40))
def test_the_streams_of_dialects_with_blocks_may_be_cut_anywhere(
    make: Callable[[], Writer], seed: int
) -> None:
    """Outputs are divided by time: a slow reader gets many tokens at once."""
    chance = random.Random(seed)
    script: Script = [*script_of(chance), [TextDelta("y")], [TextDelta("z")]]
    whole = connected(make, script, "0", chance)
    for place, (number, _) in enumerate(whole.events):
        if number is not None:
            rest = connected(make, script, number, chance)
            heard = [*whole.events[: place + 1], *rest.events]
            assert together(heard) == together(whole.events), number
            assert rest.is_ended == whole.is_ended


def test_turns_are_taken_while_the_frames_are_made() -> None:
    inner = BlockWriter(1)
    writer = numbered(inner, [START])
    deltas: list[Delta] = [TextDelta("a"), ReasoningDelta("b")]
    one = CompletionOutput(0, token_ids=[5, 6], deltas=deltas, starts=[0, 1])
    output = RequestOutput("r", None, [1], [one])
    frames = writer.frames(0, output, TokenCounts(1))
    assert next(iter(frames)) == TURN
    assert inner.num_made == 0
    ids = [each.partition(b"\n")[0] for each in frames if each]
    assert ids == [b"id: 0-1", b"id: 1", b"id: 1-1", b"id: 1-2", b"id: 2"]


def test_each_id_has_the_positions_of_all_answers() -> None:
    """An answer that is still repeated keeps what its client knows already."""
    writer = numbered(BlockWriter(2), [START, Position(7)])
    one = CompletionOutput(0, token_ids=[5], deltas=[TextDelta("a")])
    frames = writer.frames(0, RequestOutput("r", None, [1], [one]), TokenCounts(1))
    ids = [each.partition(b"\n")[0] for each in frames if each]
    assert ids == [b"id: 0-1,7", b"id: 1,7"]
