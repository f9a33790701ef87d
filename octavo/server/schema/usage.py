"""How many tokens a request took."""

from __future__ import annotations

from msgspec import Struct


class PromptTokensDetails(Struct, kw_only=True):
    """Of the prompt's tokens."""

    cached_tokens: int = 0


class Usage(Struct, kw_only=True):
    """Tokens of the prompt, and of all continuations together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
