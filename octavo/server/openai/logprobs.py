"""Log-probabilities in the two forms of OpenAI's dialect, and in vLLM's for prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.api.outputs import Logprob
from octavo.server.openai.schema.chat import ChatLogprobs, TokenLogprob, TopLogprob
from octavo.server.openai.schema.completion import CompletionLogprobs
from octavo.text.token_table import TokenTable

NEVER = -9999.0  # JSON has no minus infinity
# The log-probabilities at one position, its own token first; None for the first of a prompt.
Position = Mapping[int, Logprob] | None


@dataclass(frozen=True, slots=True)
class TokenTexts:
    """The text of single tokens in a response."""

    tokenizer: TokenTable
    as_ids: bool

    def text(self, token: int) -> str:
        """Return the token's text; part of a character becomes U+FFFD."""
        if self.as_ids:
            return f"token_id:{token}"
        return self.tokenizer.token_bytes(token).decode("utf-8", "replace")

    def bytes(self, token: int) -> list[int]:
        """Return the token's exact bytes."""
        return list(self.tokenizer.token_bytes(token))


def finite(logprob: float) -> float:
    """Return the log-probability as a number that JSON can hold."""
    return max(logprob, NEVER)


def _likeliest(position: Mapping[int, Logprob], most: int) -> list[tuple[int, Logprob]]:
    """Return the `most` likeliest tokens of a position; all of them for -1."""
    ordered = sorted(position.items(), key=lambda pair: -pair[1].logprob)
    return ordered if most == -1 else ordered[:most]


def chat_logprobs(
    positions: Sequence[Mapping[int, Logprob]], most: int, texts: TokenTexts
) -> ChatLogprobs:
    """Return the log-probabilities of generated tokens in the form of chats."""
    content = []
    for position in positions:
        token, chosen = next(iter(position.items()))
        content.append(
            TokenLogprob(
                token=texts.text(token),
                logprob=finite(chosen.logprob),
                bytes=texts.bytes(token),
                top_logprobs=[
                    TopLogprob(
                        token=texts.text(other),
                        logprob=finite(logprob.logprob),
                        bytes=texts.bytes(other),
                    )
                    for other, logprob in _likeliest(position, most)
                ],
            )
        )
    return ChatLogprobs(content=content)


def completion_logprobs(
    tokens: Sequence[int], positions: Sequence[Position], most: int, texts: TokenTexts, offset: int
) -> tuple[CompletionLogprobs, int]:
    """Return the form of completions, and the offset in the text at which the next token begins."""
    written = CompletionLogprobs(text_offset=[], token_logprobs=[], tokens=[], top_logprobs=[])
    for token, position in zip(tokens, positions, strict=True):
        text = texts.text(token)
        written.text_offset.append(offset)
        offset += len(text)
        written.tokens.append(text)
        if position is None:  # nothing precedes the first token
            written.token_logprobs.append(None)
            written.top_logprobs.append(None)
            continue
        written.token_logprobs.append(finite(position[token].logprob))
        # The chosen token is always among them, as one entry more where it is not likely enough.
        named = [*_likeliest(position, most), (token, position[token])] if most else []
        written.top_logprobs.append(
            {texts.text(other): finite(logprob.logprob) for other, logprob in named}
            if most
            else None
        )
    return written, offset


def prompt_logprobs(
    positions: Sequence[Position], texts: TokenTexts
) -> list[dict[str, Any] | None]:
    """Return the log-probabilities of a prompt in vLLM's form, by token id."""
    return [
        None
        if position is None
        else {
            str(token): {
                "logprob": finite(logprob.logprob),
                "rank": logprob.rank,
                "decoded_token": texts.text(token),
            }
            for token, logprob in position.items()
        }
        for position in positions
    ]
