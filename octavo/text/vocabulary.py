"""The vocabulary of a tokenizer, as grammars see it."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.grammar.protocol import Vocabulary
from octavo.text.tokenizer import Tokenizer


def vocabulary_of(tokenizer: Tokenizer, size: int, end_ids: Iterable[int]) -> Vocabulary:
    """Return the bytes of all tokens; `size` is the model's, whose last ids may stand for nothing.

    Added tokens are matched whole in a text, so that no text spells them.
    """
    ends = frozenset(end_ids)
    special = frozenset(tokenizer.added_tokens) | tokenizer.special_ids | ends
    return Vocabulary(
        tokens=[tokenizer.token_bytes(token) for token in range(size)],
        special=special,
        end_ids=ends,
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
    )
