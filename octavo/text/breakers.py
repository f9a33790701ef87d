"""The tokens of DRY's sequence breakers."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.text.token_table import TokenTable


def breaker_tokens(tokenizer: TokenTable, breakers: Iterable[str]) -> list[int]:
    """Return the last token of each text, alone and behind a letter."""
    texts = [each for text in breakers for each in (text, "a" + text)]
    ends = [tokenizer.encode(each, add_special_tokens=False)[-1:] for each in texts]
    return [*dict.fromkeys(token for end in ends for token in end)]
