"""Positions in a stream: the ids of its events, and what a client knows that names one.

A position counts the tokens of an answer, and its end as one more. The id of an event is the
position behind it, for a request with several answers that of each, with commas. What a stream
contains up to a position depends on nothing but the tokens. So a client that names the last id it
has received gets exactly what it lacks, whatever happened meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

from octavo.api.outputs import CompletionOutput, RequestOutput
from octavo.server.http.errors import ApiError, invalid
from octavo.server.http.exchange import Exchange
from octavo.server.operation import TURN, TokenCounts, Writer

FROM = "from"
LAST_EVENT_ID = "last-event-id"
_DIGITS = 10  # of one position
_POSITION = re.compile(r"[0-9]{1,10}(?:,[0-9]{1,10})*")


def known_to(exchange: Exchange, num_answers: int) -> list[int]:
    """Return the position that a request names for each answer; raise ApiError for another form.

    The header is newer than the address, with which a browser connects again each time.
    """
    query = parse_qs(exchange.scope.get("query_string", b"").decode("latin-1"))
    given = exchange.headers.get(LAST_EVENT_ID) or query.get(FROM, ["0"])[-1]
    is_short = len(given) <= num_answers * (_DIGITS + 1)
    if not (is_short and _POSITION.fullmatch(given)):
        raise invalid(
            f"{given[:64]!r} is no position; name the id of the last event that was received, "
            "or 0 for all of the stream",
            FROM,
        )
    positions = [int(each) for each in given.split(",")]
    if positions == [0]:
        return [0] * num_answers
    if len(positions) != num_answers:
        raise invalid(
            f"{given[:64]!r} has {len(positions)} positions; this request has {num_answers} "
            "answers, and needs one for each",
            FROM,
        )
    return positions


class NumberedWriter:
    """A dialect's writer whose events have ids, and which leaves out what the client knows."""

    def __init__(self, inner: Writer, answers_per_prompt: int, known: Sequence[int]) -> None:
        self._inner = inner
        self._per_prompt = answers_per_prompt
        self._known = known
        self._positions = [0] * len(known)
        self._num_tokens = [0] * len(known)
        self.is_behind = any(known)  # some of what comes may be known
        self.gives_ids = False  # until the request is recorded

    def is_known(self, prompt_index: int, one: CompletionOutput) -> bool:
        """Return whether the client has all of an output, which is not written yet."""
        answer = prompt_index * self._per_prompt + one.index
        num_tokens = self._num_tokens[answer] + len(one.token_ids)
        if not one.token_ids:  # nothing, or only the end
            num_tokens += one.finished()
        return num_tokens <= self._known[answer]

    def skip(self, prompt_index: int, output: RequestOutput, counts: TokenCounts) -> None:
        """Follow an output that the client knows, without writing it."""
        for one in output.outputs:
            self._follow(prompt_index, one)
        for _ in self._inner.frames(prompt_index, output, counts):
            pass
        self.is_behind = any(map(int.__lt__, self._positions, self._known))

    def opening(self, counts: TokenCounts) -> Iterable[bytes]:
        """Yield the frames before the first token, unless the client knows more."""
        for frame in self._inner.opening(counts):
            if not any(self._known):
                yield self._id + frame

    def frames(
        self, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterator[bytes]:
        """Yield the frames for what is new, the last of each answer with the position behind it."""
        for one in output.outputs:
            single = output
            if len(output.outputs) > 1:
                single = replace(output, outputs=[one])
            last = TURN
            for frame in self._inner.frames(prompt_index, single, counts):
                if frame == TURN:
                    yield TURN
                    continue
                if last != TURN:
                    yield last
                last = frame
            self._follow(prompt_index, one)
            if last != TURN:
                yield self._id + last

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

    def _follow(self, prompt_index: int, one: CompletionOutput) -> None:
        answer = prompt_index * self._per_prompt + one.index
        self._num_tokens[answer] += len(one.token_ids)
        self._positions[answer] = self._num_tokens[answer] + one.finished()

    @property
    def _id(self) -> bytes:
        if not self.gives_ids:
            return b""
        if len(self._positions) == 1:
            return b"id: %d\n" % self._positions[0]
        return b"id: %b\n" % ",".join(map(str, self._positions)).encode()
