"""Answers of tokens that another server has generated: their text, parts and log-probabilities."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from octavo.api.continuation import Continuation
from octavo.api.logprobs import PositionLogprobs
from octavo.api.outputs import CompletionOutput, Logprob
from octavo.api.reading import Reading
from octavo.core.plan import TokenLogprobs
from octavo.core.request import TokenEvent
from octavo.core.sampling_params import ALL, RequestOutputKind, SamplingParams
from octavo.dialects.common.logprobs import TextToken, TokenTexts, finite
from octavo.dialects.common.schema.chat import ChatLogprobs, TokenLogprob, TopLogprob
from octavo.dialects.common.schema.sampling import MAX_N, CommonRequest
from octavo.dialects.vllm.derender_schema import GivenChoice, GivenPosition, GivenResponse
from octavo.serving.server import Server
from octavo.transport.errors import invalid
from octavo.wire.facts import EngineFacts

_PIECE = 256  # tokens that are read without a turn for other requests


@dataclass(frozen=True, slots=True)
class Way:
    """The way in which the tokens of an answer become its text."""

    request: CommonRequest | None  # what the tokens answer
    context: Sequence[int]  # the tokens before them
    reading: Reading | None = None
    hides_tokens: bool = False  # they would show the reasoning that the answer leaves out


def check_given(facts: EngineFacts, given: GivenResponse, where: str) -> None:
    """Raise ApiError for tokens that this model cannot have generated."""
    _check_count(f"{where}.choices", "the choices count", len(given.choices), MAX_N, "n")
    for number, choice in enumerate(given.choices):
        place = f"{where}.choices[{number}]"
        check_ids(facts, choice.token_ids or (), f"{place}.token_ids")
        content = (choice.logprobs and choice.logprobs.content) or ()
        name, most = "the logprobs.content length", facts.max_model_len
        _check_count(f"{place}.logprobs", name, len(content), most, "max_model_len")
        for each in content:
            tokens = [each.token_id, *(other.token_id for other in each.top_logprobs)]
            check_ids(facts, tokens, f"{place}.logprobs")
    length = len(given.prompt_logprobs or ())
    name, most = "the prompt_logprobs length", facts.max_model_len
    _check_count(f"{where}.prompt_logprobs", name, length, most, "max_model_len")


def check_ids(facts: EngineFacts, token_ids: Sequence[int], where: str) -> None:
    """Raise ApiError for token ids that are not in the vocabulary, or more than the context."""
    _check_count(where, "the length", len(token_ids), facts.max_model_len, "max_model_len")
    if token_ids and max(token_ids) >= facts.vocabulary:
        raise invalid(
            f"{where}: {max(token_ids)} is not a token; the vocabulary has {facts.vocabulary}",
            where,
        )


def _check_count(where: str, what: str, count: int, most: int, limit: str) -> None:
    if count > most:
        raise invalid(f"{where}: {what} is {count}, and {limit} is {most}", where)


class GivenAnswer:
    """The reader of one answer, which takes its tokens piece by piece."""

    def __init__(self, server: Server, way: Way, choice: GivenChoice) -> None:
        model, request = server.llm.model, way.request or CommonRequest()
        most = model.facts.vocabulary if model.max_logprobs == ALL else model.max_logprobs
        for each in (choice.logprobs and choice.logprobs.content) or ():
            length = len(each.top_logprobs)
            _check_count("logprobs", "the top_logprobs count", length, most, "max_logprobs")
        self._end_ids = {*model.end_ids, *(request.stop_token_ids or ())}
        self._choice, self._hides_tokens = choice, way.hides_tokens
        stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
        if isinstance(choice.stop_reason, str) and choice.stop_reason not in stops:
            stops = [*stops, choice.stop_reason]
        sampling = SamplingParams(
            stop=tuple(stops),
            min_tokens=request.min_tokens if stops else 0,
            max_tokens=model.facts.max_model_len,
            include_stop_str_in_output=request.include_stop_str_in_output,
            skip_special_tokens=request.skip_special_tokens,
            spaces_between_special_tokens=request.spaces_between_special_tokens,
            output_kind=RequestOutputKind.DELTA,
        )
        self._sampling, self._tokenizer, self._context = sampling, model.tokenizer, way.context
        self._read = Continuation(choice.index, way.context, sampling, model.tokenizer, way.reading)

    async def push(self, tokens: Sequence[int], *, is_last: bool = False) -> None:
        """Read tokens, those before the choice's own or these; the last may end the answer."""
        whole = self._read.whole
        reason = self._choice.finish_reason if is_last else None
        stop = self._choice.stop_reason
        stop_token = stop if isinstance(stop, int) else None
        for begin in range(0, len(tokens), _PIECE):
            piece = tuple(tokens[begin : begin + _PIECE])
            ends = begin + len(piece) == len(tokens) and reason == "stop"
            ends = ends and (piece[-1] in self._end_ids or piece[-1] == stop_token)
            position = len(whole.token_ids)
            if whole.finish_reason is None:
                finish = reason if ends else None
                event = TokenEvent("", position, piece, finish, stop_token if ends else None)
                self._read.push(event)
            await asyncio.sleep(0)
        if reason is not None and whole.finish_reason is None:
            # Its last token is part of the text: another than that ended it.
            self._read.push(TokenEvent("", len(whole.token_ids), (), reason, stop_token))

    def take(self) -> CompletionOutput:
        """Return what is new since the last call."""
        made = self._read.take()
        if made.finish_reason is not None and self._choice.stop_reason is not None:
            made.stop_reason = self._choice.stop_reason
        return made

    def positions(
        self, before: Sequence[int]
    ) -> Iterator[tuple[GivenPosition, dict[int, Logprob]]]:
        """Yield the given log-probabilities with the texts of their tokens, behind `before`."""
        given = (self._choice.logprobs and self._choice.logprobs.content) or []
        found = PositionLogprobs(
            [each.token_id for each in given],
            [*self._context, *before],
            self._tokenizer,
            skip_special_tokens=self._sampling.skip_special_tokens,
            spaces_between_special_tokens=self._sampling.spaces_between_special_tokens,
        )
        found.put(0, [_entry(each) for each in given])
        yield from zip(given, found, strict=True)

    def text_tokens(self, before: Sequence[int]) -> Iterator[TextToken]:
        """Yield the tokens with log-probabilities in the form of completions."""
        hidden = self._tokenizer.special_ids if self._sampling.skip_special_tokens else frozenset()
        for given, position in self.positions(before):
            added = position[given.token_id].decoded_token or ""
            length = 0 if given.token_id in hidden else len(added)
            yield TextToken(given.token_id, position, added, length)

    async def chat_logprobs(
        self,
        before: Sequence[int],
        texts: TokenTexts,
        most: int | None,
        named: Collection[int] = (),
    ) -> ChatLogprobs | None:
        """Return the given log-probabilities in the form of chats, with the `most` likeliest.

        If the request has named tokens, it has those, and the drawn one.
        """
        if self._choice.logprobs is None or self._hides_tokens:
            return None
        content = []
        for number, (given, position) in enumerate(self.positions(before), 1):
            beside = sorted(given.top_logprobs, key=lambda each: -each.logprob)
            if named:
                listed = {given.token_id, *named}
                likeliest = [each for each in beside if each.token_id in listed]
            else:
                likeliest = beside[:most]
            likely = [_in_chats(each.token_id, position, texts) for each in likeliest]
            own = _in_chats(given.token_id, position, texts)
            content.append(
                TokenLogprob(
                    token=own.token, logprob=own.logprob, bytes=own.bytes, top_logprobs=likely
                )
            )
            if number % _PIECE == 0:
                await asyncio.sleep(0)
        return ChatLogprobs(content=content)


def _entry(given: GivenPosition) -> TokenLogprobs:
    """Return what the engine would have reported; the token comes first."""
    others = [each for each in given.top_logprobs if each.token_id != given.token_id]
    tokens = array("i", [given.token_id, *(each.token_id for each in others)])
    logprobs = array("d", [given.logprob, *(each.logprob for each in others)])
    return TokenLogprobs(tokens, logprobs, given.rank or 1)


def _in_chats(token: int, position: dict[int, Logprob], texts: TokenTexts) -> TopLogprob:
    found = position[token]
    return TopLogprob(
        token=texts.text(token, found.decoded_token),
        logprob=finite(found.logprob),
        bytes=texts.bytes(token),
    )
