"""A dialect's writer whose events have ids, and which leaves out what the client knows.

Each token is written apart from the next, so that its events depend on nothing but the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from octavo.api.outputs import CompletionOutput, RequestOutput
from octavo.formats.deltas import TextDelta
from octavo.serving.bounds.turns import Turns
from octavo.serving.durable.positions import START, Position
from octavo.serving.operation import TURN, TokenCounts, Writer
from octavo.transport.errors import ApiError


@dataclass(slots=True)
class _Progress:
    """The place that one answer's stream has reached, and what its client knows of it."""

    known: Position
    at: Position = START  # behind the last event, whether it was written or left out

    def count(self) -> bool:
        """Count an event; return whether the client lacks it."""
        self.at = Position(self.at.tokens, self.at.events + 1)
        return self.at > self.known


class NumberedWriter:
    """A writer around a dialect's, for one request."""

    def __init__(
        self,
        inner: Writer,
        answers_per_prompt: int,
        known: Sequence[Position],
        add_id: Callable[[bytes, bytes], bytes],
        *,
        reports_prompt: bool = False,
    ) -> None:
        self._reports_prompt = reports_prompt
        self._add_id = add_id  # to a frame, as its dialect has it
        self._inner = inner
        self._per_prompt = answers_per_prompt
        self._answers = [_Progress(each) for each in known]
        self.gives_ids = False  # until the request is recorded

    def opening(self, counts: TokenCounts) -> Iterator[bytes]:
        """Yield the frames before the first token, as if they were the first answer's."""
        is_known = any(each.known.tokens for each in self._answers)
        for frame in self._inner.opening(counts):
            if self._answers[0].count() and not is_known:
                yield self._with_id(frame)

    def frames(
        self, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterator[bytes]:
        """Yield the frames for what is new, each with the position behind it."""
        if not self.gives_ids:
            yield from self._inner.frames(prompt_index, output, counts)
            return
        if self._reports_prompt:  # what is said of it depends on the time, so it has no position
            yield from self._inner.frames(prompt_index, replace(output, outputs=[]), counts)
        turns = Turns()
        for one in output.outputs:
            answer = self._answers[prompt_index * self._per_prompt + one.index]
            for piece in pieces_of(one, answer.known.tokens - answer.at.tokens):
                if turns.is_due():
                    yield TURN
                single = output
                if piece is not one or len(output.outputs) > 1:
                    single = replace(output, outputs=[piece])
                yield from self._frames(answer, prompt_index, single, counts)

    def closing(self, counts: TokenCounts, explanation: dict[str, Any] | None) -> Iterable[bytes]:
        """Return the frames after the last token, which have no position."""
        return self._inner.closing(counts, explanation)

    def failure(self, error: ApiError) -> bytes:
        """Return the frames of an error, which have no position."""
        return self._inner.failure(error)

    def whole(
        self,
        outputs: list[RequestOutput],
        counts: TokenCounts,
        explanation: dict[str, Any] | None,
    ) -> Iterable[bytes]:
        """Return the body of a response that is not streamed, in parts."""
        return self._inner.whole(outputs, counts, explanation)

    def _frames(
        self, answer: _Progress, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterator[bytes]:
        """Yield the frames for one piece of an answer.

        A frame waits for the next one, or for the end: the last has the position behind the piece.
        """
        (one,) = output.outputs
        behind = Position(answer.at.tokens + len(one.token_ids) + one.finished())
        pending = b""
        for frame in self._inner.frames(prompt_index, output, counts):
            if frame == TURN:
                yield TURN
                continue
            if pending:
                yield self._with_id(pending)
            pending = frame if answer.count() else b""
        answer.at = max(answer.at, behind)
        if pending:
            yield self._with_id(pending)

    def _with_id(self, frame: bytes) -> bytes:
        """Return a frame with an id: where the client's knowledge of each answer then ends."""
        if not self.gives_ids:
            return frame
        shown = [str(max(each.at, each.known)) for each in self._answers]
        return self._add_id(frame, ",".join(shown).encode())


def pieces_of(one: CompletionOutput, num_known: int) -> Iterator[CompletionOutput]:
    """Divide an output: the tokens that the client knows, and each of the others.

    The end is with the last token, unless it came alone or the client knows all tokens.
    """
    num_tokens = len(one.token_ids)
    known = min(max(0, num_known), num_tokens)
    ends = list(range(known or 1, num_tokens + 1))
    if one.finished() and num_known <= num_tokens and (known == num_tokens or _ends_alone(one)):
        ends.append(num_tokens)
    if len(ends) < 2:
        yield one
        return
    starts = [*one.starts] or [0] * num_tokens
    starts.append(len(one.deltas) - one.finished())  # of the end, if it has none yet
    for place, (begin, end) in enumerate(pairwise((0, *ends)), 1):
        is_last = place == len(ends)
        deltas = one.deltas[starts[begin] : None if is_last else starts[end]]
        yield replace(
            one,
            text="".join([each.text for each in deltas if isinstance(each, TextDelta)]),
            token_ids=one.token_ids[begin:end],
            logprobs=None if one.logprobs is None else one.logprobs[begin:end],
            deltas=deltas,
            num_reasoning_tokens=min(max(0, one.num_reasoning_tokens - begin), end - begin),
            starts=(),
            finish_reason=one.finish_reason if is_last else None,
            stop_reason=one.stop_reason if is_last else None,
        )


def _ends_alone(one: CompletionOutput) -> bool:
    return len(one.starts) > len(one.token_ids)
