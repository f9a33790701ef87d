"""The trial of a grammar: whether the engine compiles it within its bounds, and a text is possible.

It needs no tokenizer: a small vocabulary, in which every byte is a token, stands for the model's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from octavo.grammar.llguidance_engine import LLGuidanceEngine
from octavo.grammar.protocol import GrammarError, Vocabulary

END = 256


def try_grammar(text: str, vocabulary: int) -> None:
    """Compile a grammar and its first mask; raise GrammarError if it cannot be used.

    `vocabulary` is the number of token ids that it may name.
    """
    size = max(vocabulary, END + 1)
    row = np.zeros(-(-size // 32), np.uint32)
    _engine(size).compile(text).fill(row)
    if not row.any():
        raise GrammarError("no text has this shape")


@lru_cache(maxsize=2)
def _engine(size: int) -> LLGuidanceEngine:
    """Return an engine for a vocabulary of bytes; its further ids stand for nothing."""
    tokens = [*(bytes([byte]) for byte in range(256)), *[b""] * (size - 256)]
    ends = frozenset({END})
    return LLGuidanceEngine(Vocabulary(tokens, ends, ends, _encode))


def _encode(text: str) -> Sequence[int]:
    return list(text.encode())
