"""The vocabulary of a tokenizer, as grammars see it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

from octavo.grammar.protocol import Vocabulary
from octavo.text.tokenizer import Tokenizer


def vocabulary_of(tokenizer: Tokenizer, size: int, end_ids: Iterable[int]) -> Vocabulary:
    """Return the bytes of all tokens; `size` is the model's, whose last ids may stand for nothing.

    Added tokens are matched whole in a text, so that no text spells them. A character with a byte
    that no token has cannot be written, and tokenizers leave it out: a text is tokenised up to it.
    """
    ends = frozenset(end_ids)
    special = frozenset(tokenizer.added_tokens) | tokenizer.special_ids | ends
    tokens = [tokenizer.token_bytes(token) for token in range(size)]
    unwritable = frozenset(range(256)).difference(*tokens)

    def encode(text: str) -> Sequence[int]:
        if unwritable and not unwritable.isdisjoint(text.encode()):
            text = "".join(takewhile(lambda each: unwritable.isdisjoint(each.encode()), text))
        return tokenizer.encode(text, add_special_tokens=False)

    return Vocabulary(tokens=tokens, special=special, end_ids=ends, encode=encode)
