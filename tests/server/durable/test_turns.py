"""A durable stream has positions on its events, and takes the turns of its dialect's writer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from octavo.api.outputs import CompletionOutput, RequestOutput
from octavo.server.durable.positions import NumberedWriter
from octavo.server.operation import TURN, TokenCounts


class SlowWriter:
    """A writer that needs several turns for each output."""

    def __init__(self) -> None:
        self.num_made = 0

    def frames(self, *arguments: Any) -> Iterator[bytes]:
        for frame in (TURN, b"one\n\n", TURN, TURN, b"two\n\n", TURN):
            self.num_made += frame != TURN
            yield frame


def output(*numbers: int) -> RequestOutput:
    answers = [CompletionOutput(number, token_ids=[5, 6]) for number in numbers]
    return RequestOutput("r", None, [1], answers)


def test_turns_are_taken_while_the_frames_are_made() -> None:
    inner: Any = SlowWriter()
    writer = NumberedWriter(inner, 1, [0])
    writer.gives_ids = True
    frames = writer.frames(0, output(0), TokenCounts(1))
    assert next(iter(frames)) == TURN
    assert inner.num_made == 0
    assert list(filter(None, frames)) == [b"one\n\n", b"id: 2\ntwo\n\n"]


def test_the_last_frame_of_each_answer_has_its_position() -> None:
    inner: Any = SlowWriter()
    writer = NumberedWriter(inner, 2, [0, 0])
    writer.gives_ids = True
    frames = list(filter(None, writer.frames(0, output(0, 1), TokenCounts(1))))
    assert frames == [b"one\n\n", b"id: 2,0\ntwo\n\n", b"one\n\n", b"id: 2,2\ntwo\n\n"]
