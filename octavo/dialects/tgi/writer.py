"""Answers in TGI's form: an object, a list of one, or an event for each token."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import Raw

from octavo.api.outputs import CompletionOutput, RequestOutput
from octavo.dialects.common.dialect import frame
from octavo.dialects.common.logprobs import (
    Pieces,
    TextToken,
    answer_tokens,
    finite,
    in_pieces,
    prompt_tokens,
)
from octavo.dialects.common.writer import read_deltas
from octavo.dialects.tgi.dialect import error_body
from octavo.dialects.tgi.schema import (
    TgiAnswer,
    TgiDetails,
    TgiEnd,
    TgiEvent,
    TgiParameters,
    TgiPrefillToken,
    TgiToken,
)
from octavo.formats.deltas import FinishDelta
from octavo.serving.answers.writer import BaseWriter
from octavo.serving.exchange import Exchange
from octavo.serving.operation import TURN, PreparedRequest, TokenCounts
from octavo.transport.errors import ApiError
from octavo.transport.exchange import encode

_REASONS = {"stop": "eos_token", "length": "length"}


class TgiWriter(BaseWriter):
    """One answer; the texts of its tokens together are its text."""

    def __init__(
        self, given: TgiParameters, is_list: bool, exchange: Exchange, prepared: PreparedRequest
    ) -> None:
        self._given = given
        self._is_list = is_list
        (self._prompt,) = prepared.prompts
        self._seed = prepared.sampling.seed
        self._tokenizer = exchange.server.llm.model.tokenizer
        self._text: list[str] = [self._prompt.text] if given.return_full_text else []
        self._num_tokens = 0
        self._last: TgiToken | None = None

    def frames(
        self, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterator[bytes]:
        """Yield an event for each token; the answer's last has all of the text."""
        for one in output.outputs:
            text, finish = read_deltas(one.deltas)
            self._text.append(text)
            event: TgiEvent | None = None
            for piece in in_pieces(self._tokens(one), self._given.top_n_tokens or 0):
                for each in piece:
                    if event is not None:
                        yield frame(encode(event))
                    event = self._event(each)
                yield TURN
            if finish is not None:
                event = self._ended(event, finish)
            if event is not None:
                yield frame(encode(event))

    def failure(self, error: ApiError) -> bytes:
        """Return the event of an error that ends the stream."""
        return frame(error_body(error))

    def body(self, outputs: list[RequestOutput], counts: TokenCounts) -> Iterator[bytes]:
        """Yield the answer, in a list if it was asked for at /."""
        (output,) = outputs
        (one,) = output.outputs
        text, finish = read_deltas(one.deltas)
        answer = TgiAnswer(generated_text="".join([*self._text, text]))
        if self._given.details:
            answer.details = yield from self._details(output, one, finish)
        body = encode(answer)
        yield b"[%b]" % body if self._is_list else body

    def _event(self, each: TextToken) -> TgiEvent:
        self._num_tokens += 1
        self._last = self._token(each)
        event = TgiEvent(index=self._num_tokens, token=self._last)
        if self._given.top_n_tokens:
            event.top_tokens = self._top(each)
        return event

    def _ended(self, event: TgiEvent | None, finish: FinishDelta) -> TgiEvent:
        """Return the last event of an answer; None is given if the end came alone."""
        if event is None:
            if self._last is not None:
                self._last.text = ""
            event = TgiEvent(index=self._num_tokens, token=self._last)
        event.generated_text = "".join(self._text)
        event.details = TgiEnd(
            finish_reason=_reason(finish),
            generated_tokens=self._num_tokens,
            seed=self._seed,
            input_length=self._prompt.num_tokens,
        )
        return event

    def _details(
        self, output: RequestOutput, one: CompletionOutput, finish: FinishDelta | None
    ) -> Pieces[TgiDetails]:
        """Return the details of a whole answer, made in pieces."""
        details = TgiDetails(
            finish_reason=_reason(finish),
            generated_tokens=len(one.token_ids),
            seed=self._seed,
            prefill=[],
            tokens=[],
        )
        made: Any
        if output.prompt_logprobs is not None:
            ids, positions = output.prompt_ids, output.prompt_logprobs
            asked = prompt_tokens(self._prompt.text, ids, positions, self._tokenizer)
            made = yield from _listed(asked, self._prefill, 0)
            details.prefill = made
        made = yield from _listed(self._tokens(one), self._token, 0)
        details.tokens = made
        if self._given.top_n_tokens:
            made = yield from _listed(self._tokens(one), self._top, self._given.top_n_tokens)
            details.top_tokens = made
        return details

    def _tokens(self, one: CompletionOutput) -> Iterator[TextToken]:
        return answer_tokens(one, self._tokenizer.special_ids, hides_end=True)

    def _token(self, each: TextToken) -> TgiToken:
        """Return a generated token; what the text leaves out has no text here."""
        assert each.position is not None
        return TgiToken(
            id=each.token,
            text=(each.added or "")[: each.num_characters],
            logprob=finite(each.position[each.token].logprob),
            special=each.token in self._tokenizer.special_ids,
        )

    def _prefill(self, each: TextToken) -> TgiPrefillToken:
        logprob = None if each.position is None else finite(each.position[each.token].logprob)
        return TgiPrefillToken(id=each.token, text=each.added or "", logprob=logprob)

    def _top(self, each: TextToken) -> list[TgiToken]:
        """Return the likeliest tokens at a position."""
        assert each.position is not None
        likeliest = sorted(each.position.items(), key=lambda pair: -pair[1].logprob)
        return [
            TgiToken(
                id=token,
                text=logprob.decoded_token or "",
                logprob=finite(logprob.logprob),
                special=token in self._tokenizer.special_ids,
            )
            for token, logprob in likeliest[: self._given.top_n_tokens]
        ]


def _listed(
    tokens: Iterable[TextToken], form: Callable[[TextToken], Any], most: int
) -> Pieces[Raw]:
    """Return a list of tokens as JSON, made in pieces; each has `most` others beside it."""
    parts = []
    for piece in in_pieces(tokens, most):
        parts.append(encode([form(each) for each in piece])[1:-1])
        yield TURN
    return Raw(b"[%b]" % b",".join(parts))


def _reason(finish: FinishDelta | None) -> str:
    """Return the name of an end; a stop string is not the model's own end."""
    assert finish is not None
    if isinstance(finish.stop, str):
        return "stop_sequence"
    return _REASONS.get(finish.reason, finish.reason)
