"""A dialect's writer whose events have ids, and which leaves out what the client knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from octavo.api.outputs import CompletionOutput, RequestOutput
from octavo.api.sinks import joined
from octavo.serving.durable.parts import Kind, kind_of, parts_of, tokens_alone, without_tokens
from octavo.serving.durable.positions import START, Position
from octavo.serving.operation import TURN, TokenCounts, Writer
from octavo.transport.errors import ApiError


@dataclass(slots=True)
class _Progress:
    """The place that one answer's stream has reached, and what its client knows of it."""

    known: Position
    num_tokens: int = 0  # of the outputs that have passed
    at: Position = START  # behind the last event, whether it was written or left out
    kind: Kind | None = None  # of the part that `at` is in
    held: RequestOutput | None = None  # tokens whose text the client knows already

    def behind(self, one: CompletionOutput) -> Position:
        """Return the position behind an output that follows."""
        num_held = 0 if self.held is None else len(self.held.outputs[0].token_ids)
        return Position(self.num_tokens + num_held + len(one.token_ids) + one.finished())

    def follow(self, one: CompletionOutput) -> None:
        """Pass to the position behind an output."""
        self.at, self.kind = self.behind(one), None
        self.num_tokens += len(one.token_ids)

    def enter(self, kind: Kind | None) -> None:
        """Pass to a part, which may continue the last one."""
        if kind is None or kind == self.kind:
            return
        self.end_part()
        self.kind = kind

    def end_part(self) -> None:
        """Pass to the position behind the part, if there is one."""
        if self.kind is not None:
            self.at, self.kind = Position(self.at.tokens, self.at.parts + 1), None

    def count(self) -> bool:
        """Count an event of the part; return whether the client lacks it."""
        self.at = self.at._replace(frames=self.at.frames + 1)
        return self.at.tokens != self.known.tokens or self.at > self.known

    def repeats(self, kind: Kind | None) -> bool:
        """Return whether the client knows all of what this adds to the part, except tokens."""
        if self.at.tokens != self.known.tokens:
            return False
        return self.at < self.known if kind is None else self.at.parts < self.known.parts


class NumberedWriter:
    """A writer around a dialect's, for one request."""

    def __init__(
        self,
        inner: Writer,
        answers_per_prompt: int,
        known: Sequence[Position],
        add_id: Callable[[bytes, bytes], bytes],
    ) -> None:
        self._add_id = add_id  # to a frame, as its dialect has it
        self._inner = inner
        self._per_prompt = answers_per_prompt
        self._answers = [_Progress(each) for each in known]
        self.is_behind = any(each.tokens for each in known)  # whole outputs may be known
        self.gives_ids = False  # until the request is recorded

    def is_known(self, prompt_index: int, one: CompletionOutput) -> bool:
        """Return whether the client has all of an output, which is not written yet."""
        answer = self._answer(prompt_index, one)
        return answer.behind(one).tokens <= answer.known.tokens

    def skip(self, prompt_index: int, output: RequestOutput, counts: TokenCounts) -> None:
        """Follow an output that the client knows, without writing it."""
        for one in output.outputs:
            self._answer(prompt_index, one).follow(one)
        for _ in self._inner.frames(prompt_index, output, counts):
            pass
        self.is_behind = any(each.at.tokens < each.known.tokens for each in self._answers)

    def opening(self, counts: TokenCounts) -> Iterator[bytes]:
        """Yield the frames before the first token, unless the client knows more.

        They are the first part of the first answer.
        """
        is_known = any(each.known.tokens for each in self._answers)
        first, pending = self._answers[0], b""
        if first.known.tokens:  # outputs that the client knows may have passed: no part of the next
            for _ in self._inner.opening(counts):
                pass
            return
        first.enter(("opening",))
        for frame in self._inner.opening(counts):
            if pending:
                yield self._with_id(pending)
            pending = frame if first.count() and not is_known else b""
        if first.at == START:  # nothing precedes the first token
            first.kind = None
            return
        first.end_part()
        if pending:
            yield self._with_id(pending)

    def frames(
        self, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterator[bytes]:
        """Yield the frames for what is new, each with the position behind it."""
        if not self.gives_ids:
            yield from self._inner.frames(prompt_index, output, counts)
            return
        for one in output.outputs:
            answer = self._answer(prompt_index, one)
            single = output
            if len(output.outputs) > 1:
                single = replace(output, outputs=[one])
            if answer.held is not None:
                single, answer.held = joined(answer.held, single), None
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
        """Yield the frames for one answer's output.

        A frame waits for the next one, or for the end: the last has the position behind all.
        """
        pending = b""
        for frame in self._made(answer, prompt_index, output, counts):
            if frame == TURN:
                yield TURN
                continue
            if pending:
                yield self._with_id(pending)
            pending = frame if answer.count() else b""
        if answer.held is None:
            answer.follow(output.outputs[0])
        if pending:
            yield self._with_id(pending)

    def _made(
        self, answer: _Progress, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterator[bytes]:
        """Yield all frames for one answer's output, part by part, known ones included.

        Tokens of which the client knows the text alone are held for the next output.
        """
        (one,) = output.outputs
        repeats = False
        for part in parts_of(one):
            kind = kind_of(part)
            answer.enter(kind)
            repeats = answer.repeats(kind)
            if repeats:
                part = without_tokens(part)
            single = output if part is one else replace(output, outputs=[part])
            yield from self._inner.frames(prompt_index, single, counts)
        if repeats and not one.finished():
            answer.held = replace(output, outputs=[tokens_alone(one)])

    def _answer(self, prompt_index: int, one: CompletionOutput) -> _Progress:
        return self._answers[prompt_index * self._per_prompt + one.index]

    def _with_id(self, frame: bytes) -> bytes:
        """Return a frame with an id: where the client's knowledge of each answer then ends."""
        if not self.gives_ids:
            return frame
        shown = [str(max(each.at, each.known)) for each in self._answers]
        return self._add_id(frame, ",".join(shown).encode())
