"""Log-probabilities in the two shapes of OpenAI's dialect, and vLLM's for prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.api.outputs import Logprob
from octavo.server.schema.chat import ChatLogprobs, TokenLogprob, TopLogprob
from octavo.server.schema.completion import CompletionLogprobs
from octavo.text.tokenizer import Tokenizer

NEVER = -9999.0  # JSON has no minus infinity
Told = Mapping[int, Logprob] | None  # the token that stands there first


class TokenTexts:
    """How a response writes single tokens."""

    def __init__(self, tokenizer: Tokenizer, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def text(self, token: int) -> str:
        """Within a text; a part of a character shows as U+FFFD."""
        if self._as_ids:
            return f"token_id:{token}"
        return self._tokenizer.token_bytes(token).decode("utf-8", "replace")

    def bytes(self, token: int) -> list[int]:
        """Exactly."""
        return list(self._tokenizer.token_bytes(token))


def finite(logprob: float) -> float:
    """As JSON can say it."""
    return max(logprob, NEVER)


def _likeliest(told: Mapping[int, Logprob], most: int) -> list[tuple[int, Logprob]]:
    """The best of a position; -1: all of them."""
    ordered = sorted(told.items(), key=lambda pair: -pair[1].logprob)
    return ordered if most == -1 else ordered[:most]


def chat_logprobs(
    told: Sequence[Mapping[int, Logprob]], most: int, texts: TokenTexts
) -> ChatLogprobs:
    """What chat says of generated tokens."""
    content = []
    for position in told:
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
    tokens: Sequence[int], told: Sequence[Told], most: int, texts: TokenTexts, offset: int
) -> tuple[CompletionLogprobs, int]:
    """What completions say of tokens, the prompt's too; and where in the text the next begins."""
    said = CompletionLogprobs(text_offset=[], token_logprobs=[], tokens=[], top_logprobs=[])
    for token, position in zip(tokens, told, strict=True):
        text = texts.text(token)
        said.text_offset.append(offset)
        offset += len(text)
        said.tokens.append(text)
        if position is None:  # nothing stands before the first token
            said.token_logprobs.append(None)
            said.top_logprobs.append(None)
            continue
        said.token_logprobs.append(finite(position[token].logprob))
        # The chosen token is always among them, as one entry more where it is not likely enough.
        named = [*_likeliest(position, most), (token, position[token])] if most else []
        said.top_logprobs.append(
            {texts.text(other): finite(logprob.logprob) for other, logprob in named}
            if most
            else None
        )
    return said, offset


def prompt_logprobs(told: Sequence[Told], texts: TokenTexts) -> list[dict[str, Any] | None]:
    """As vLLM tells them of prompts: by token id."""
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
        for position in told
    ]
