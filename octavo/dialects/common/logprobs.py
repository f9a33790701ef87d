"""Log-probabilities in the two forms of OpenAI's dialect, and in vLLM's for prompts.

The text of a token is what it adds to the tokens before it. The first tokens of a character that
has several add nothing, and the last adds the character: together the tokens are the text.

Everything is made in pieces, since a response may have a million log-probabilities: each function
yields `TURN` after a piece, and returns JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import msgspec

from octavo.api.outputs import CompletionOutput, Logprob
from octavo.core.sampling_params import SamplingParams
from octavo.dialects.common.schema.chat import ChatLogprobs, TokenLogprob, TopLogprob
from octavo.dialects.common.schema.completion import CompletionLogprobs
from octavo.serving.operation import TURN
from octavo.text.token_table import TokenTable
from octavo.transport.exchange import encode

T = TypeVar("T")
Pieces = Generator[bytes, None, T]

MAX_AT_ONCE = 700  # log-probabilities that are made without a turn for other requests
NEVER = -9999.0  # JSON has no minus infinity
# The log-probabilities at one position, its own token first; None for the first of a prompt.
Position = Mapping[int, Logprob] | None


@dataclass(frozen=True, slots=True)
class TokenTexts:
    """The form of tokens in a response."""

    tokenizer: TokenTable
    as_ids: bool

    def text(self, token: int, added: str | None) -> str:
        """Return what stands for a token that adds this text."""
        return f"token_id:{token}" if self.as_ids else added or ""

    def bytes(self, token: int) -> list[int]:
        """Return the token's exact bytes."""
        return list(self.tokenizer.token_bytes(token))


@dataclass(frozen=True, slots=True)
class TextToken:
    """One token of a completion's text."""

    token: int
    position: Position
    added: str | None  # the text that it adds, or its own if the text leaves it out
    num_characters: int  # of the completion's text


def finite(logprob: float) -> float:
    """Return the log-probability as a number that JSON can hold."""
    return max(logprob, NEVER)


def most_in_chats(sampling: SamplingParams) -> int | None:
    """Return how many tokens chats list at a position: with named ones, the drawn one as well."""
    if sampling.logprobs is None or not sampling.logprob_token_ids:
        return sampling.logprobs
    return sampling.logprobs + 1


def chat_logprobs(
    positions: Iterable[Mapping[int, Logprob]],
    most: int,
    texts: TokenTexts,
) -> Pieces[msgspec.Raw]:
    """Return the log-probabilities of generated tokens in the form of chats, made in pieces.

    Each has the `most` likeliest tokens of its position beside it, or all of them for -1.
    """
    lists = EncodedLists()
    for piece in in_pieces(positions, most):
        content = []
        for position in piece:
            token, chosen = next(iter(position.items()))
            likeliest = sorted(position.items(), key=lambda pair: -pair[1].logprob)
            content.append(
                TokenLogprob(
                    token=texts.text(token, chosen.decoded_token),
                    logprob=finite(chosen.logprob),
                    bytes=texts.bytes(token),
                    top_logprobs=[
                        TopLogprob(
                            token=texts.text(other, logprob.decoded_token),
                            logprob=finite(logprob.logprob),
                            bytes=texts.bytes(other),
                        )
                        for other, logprob in (likeliest if most == -1 else likeliest[:most])
                    ],
                )
            )
        lists.add(ChatLogprobs(content=content))
        yield TURN
    return lists.encoded(ChatLogprobs(content=[]))


def prompt_tokens(
    text: str, token_ids: Sequence[int], positions: Iterable[Position], tokenizer: TokenTable
) -> Iterator[TextToken]:
    """Yield the tokens of a prompt, each with its share of the prompt's text.

    Special tokens that the tokenizer has put around a text have no share in it, and neither has a
    space that it has put before the text.
    """
    stream = tokenizer.detokenizer(skip_special_tokens=False)
    at = 0
    for index, (token, position) in enumerate(zip(token_ids, positions, strict=True)):
        added = stream.push(token)
        if index == len(token_ids) - 1:
            added += stream.finish()
        length = len(added)
        if not text.startswith(added, at):
            if added[:1] == " " and text.startswith(added[1:], at):
                added = added[1:]
            length = 0 if token in tokenizer.special_ids else min(len(added), len(text) - at)
        at += length
        yield TextToken(token, position, added, length)


def answer_tokens(
    one: CompletionOutput, hidden: frozenset[int], *, hides_end: bool
) -> Iterator[TextToken]:
    """Yield generated tokens; the text has neither `hidden` ones nor, if so asked, the end's."""
    is_stopped_by_token = one.finish_reason == "stop" and not isinstance(one.stop_reason, str)
    last = len(one.token_ids) - 1 if is_stopped_by_token and hides_end else -1
    for index, (token, position) in enumerate(zip(one.token_ids, one.logprobs or (), strict=True)):
        added = position[token].decoded_token or ""
        is_hidden = token in hidden or index == last
        yield TextToken(token, position, added, 0 if is_hidden else len(added))


def most_beside(logprobs: int | None, named: Collection[int] | None) -> int:
    """Return how many tokens a completion shows beside the chosen one; -1: all."""
    if logprobs == -1:
        return -1
    return max(logprobs or 0, len(named or ()))


def completion_logprobs(
    tokens: Iterable[TextToken], most: int, texts: TokenTexts, offset: int
) -> Pieces[tuple[msgspec.Raw | None, int]]:
    """Return the form of completions, made in pieces, and the offset of the next token's text.

    At each position the chosen token comes first, then the `most` likeliest, or all for -1. There
    is no form without tokens.
    """
    lists = EncodedLists()
    is_empty = True
    for piece in in_pieces(tokens, most):
        is_empty = False
        written = CompletionLogprobs(text_offset=[], token_logprobs=[], tokens=[], top_logprobs=[])
        for each in piece:
            written.text_offset.append(offset)
            offset += each.num_characters
            written.tokens.append(texts.text(each.token, each.added))
            top = _top_logprobs(each, most, texts)
            written.top_logprobs.append(top)
            written.token_logprobs.append(None if top is None else next(iter(top.values())))
        lists.add(written)
        yield TURN
    return None if is_empty else lists.encoded(written), offset


def _top_logprobs(each: TextToken, most: int, texts: TokenTexts) -> dict[str, float] | None:
    if each.position is None:  # nothing precedes the first token
        return None
    chosen = finite(each.position[each.token].logprob)
    top = {texts.text(each.token, each.added): chosen}
    others = islice(each.position.items(), 1, None if most == -1 else most + 1)
    for other, logprob in others:
        name = texts.text(other, logprob.decoded_token)
        # Several tokens may add the same text, or none.
        top[f"token_id:{other}" if name in top else name] = finite(logprob.logprob)
    return top


def prompt_logprobs(
    positions: Sequence[Position], most: int, *, has_texts: bool = True
) -> Pieces[msgspec.Raw]:
    """Return the log-probabilities of a prompt in vLLM's form, by token id, made in pieces."""
    parts = []
    for piece in in_pieces(positions, most):
        named = [
            None
            if position is None
            else {
                str(token): {
                    "logprob": finite(logprob.logprob),
                    "rank": logprob.rank,
                    "decoded_token": logprob.decoded_token if has_texts else None,
                }
                for token, logprob in position.items()
            }
            for position in piece
        ]
        parts.append(encode(named)[1:-1])
        yield TURN
    return msgspec.Raw(b"[%b]" % b",".join(parts))


def in_pieces(positions: Iterable[T], most: int) -> Iterator[list[T]]:
    """Yield lists of positions, each with few enough log-probabilities to be made at once."""
    left = iter(positions)
    length = 1 if most == -1 else max(1, MAX_AT_ONCE // (most + 1))
    while piece := list(islice(left, length)):
        yield piece


class EncodedLists:
    """An object of lists, of which each piece is encoded when it is made."""

    def __init__(self) -> None:
        self._parts: dict[str, list[bytes]] = {}

    def add(self, piece: msgspec.Struct) -> None:
        """Add what the lists of the piece contain."""
        for name in piece.__struct_fields__:
            value = getattr(piece, name)
            if value:
                self._parts.setdefault(name, []).append(encode(value)[1:-1])

    def encoded(self, form: msgspec.Struct) -> msgspec.Raw:
        """Return the whole object, with the fields of `form` that are no lists."""
        fields = {}
        for name in form.__struct_fields__:
            if name in self._parts:
                fields[name] = msgspec.Raw(b"[%b]" % b",".join(self._parts[name]))
            else:
                fields[name] = msgspec.Raw(encode(getattr(form, name)))
        return msgspec.Raw(encode(fields))
