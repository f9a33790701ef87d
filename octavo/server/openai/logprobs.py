"""Log-probabilities in the two forms of OpenAI's dialect, and in vLLM's for prompts.

The text of a token is what it adds to the tokens before it. The first tokens of a character that
has several add nothing, and the last adds the character: together the tokens are the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from octavo.api.outputs import CompletionOutput, Logprob
from octavo.server.openai.schema.chat import ChatLogprobs, TokenLogprob, TopLogprob
from octavo.server.openai.schema.completion import CompletionLogprobs
from octavo.text.token_table import TokenTable

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


def chat_logprobs(
    positions: Sequence[Mapping[int, Logprob]], most: int, texts: TokenTexts
) -> ChatLogprobs:
    """Return the log-probabilities of generated tokens in the form of chats.

    Each has the `most` likeliest tokens of its position beside it, or all of them for -1.
    """
    content = []
    for position in positions:
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
    return ChatLogprobs(content=content)


def prompt_tokens(
    text: str, token_ids: Sequence[int], positions: Sequence[Position], tokenizer: TokenTable
) -> list[TextToken]:
    """Return the tokens of a prompt, each with its share of the prompt's text.

    Special tokens that the tokenizer has put around a text have no share in it, and neither has a
    space that it has put before the text.
    """
    stream = tokenizer.detokenizer(skip_special_tokens=False)
    tokens, at = [], 0
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
        tokens.append(TextToken(token, position, added, length))
    return tokens


def answer_tokens(
    one: CompletionOutput, hidden: frozenset[int], *, hides_end: bool
) -> list[TextToken]:
    """Return generated tokens; the text has neither `hidden` ones nor, if so asked, the end's."""
    tokens = []
    for token, position in zip(one.token_ids, one.logprobs or (), strict=True):
        added = position[token].decoded_token or ""
        tokens.append(TextToken(token, position, added, 0 if token in hidden else len(added)))
    is_stopped_by_token = one.finish_reason == "stop" and not isinstance(one.stop_reason, str)
    if tokens and is_stopped_by_token and hides_end:
        last = tokens[-1]
        tokens[-1] = TextToken(last.token, last.position, last.added, 0)
    return tokens


def completion_logprobs(
    tokens: Sequence[TextToken], most: int, texts: TokenTexts, offset: int
) -> tuple[CompletionLogprobs, int]:
    """Return the form of completions, and the offset in the text at which the next token begins.

    At each position the chosen token comes first, then the `most` likeliest, or all for -1.
    """
    written = CompletionLogprobs(text_offset=[], token_logprobs=[], tokens=[], top_logprobs=[])
    for each in tokens:
        text = texts.text(each.token, each.added)
        written.text_offset.append(offset)
        offset += each.num_characters
        written.tokens.append(text)
        if each.position is None:  # nothing precedes the first token
            written.token_logprobs.append(None)
            written.top_logprobs.append(None)
            continue
        chosen = finite(each.position[each.token].logprob)
        written.token_logprobs.append(chosen)
        top = {text: chosen}
        others = islice(each.position.items(), 1, None if most == -1 else most + 1)
        for other, logprob in others:
            name = texts.text(other, logprob.decoded_token)
            # Several tokens may add the same text, or none.
            top[f"token_id:{other}" if name in top else name] = finite(logprob.logprob)
        written.top_logprobs.append(top)
    return written, offset


def prompt_logprobs(positions: Sequence[Position]) -> list[dict[str, Any] | None]:
    """Return the log-probabilities of a prompt in vLLM's form, by token id."""
    return [
        None
        if position is None
        else {
            str(token): {
                "logprob": finite(logprob.logprob),
                "rank": logprob.rank,
                "decoded_token": logprob.decoded_token,
            }
            for token, logprob in position.items()
        }
        for position in positions
    ]
