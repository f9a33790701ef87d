"""The trial of a grammar: whether the engine compiles it within its bounds, and a text is possible.

It needs no tokenizer: a small vocabulary, in which every byte is a token, stands for the model's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from octavo.grammar.json_place import PREFIX
from octavo.grammar.llguidance_engine import LLGuidanceEngine
from octavo.grammar.protocol import NO_TEXT, GrammarError, Vocabulary

END = 256


def try_grammar(text: str, vocabulary: int) -> None:
    """Compile a grammar and its first mask; raise GrammarError if it cannot be used.

    `vocabulary` is the number of token ids that it may name.
    """
    size = max(vocabulary, END + 1)
    row = np.zeros(-(-size // 32), np.uint32)
    _engine(size).compile(text).fill(row)
    if not row.any():
        raise GrammarError(NO_TEXT)


def try_schema(core: Any) -> None:
    """Compile the core of a schema; raise GrammarError if it cannot be used."""
    try_grammar(f"{PREFIX}{json.dumps(core)}", 0)


@lru_cache(maxsize=2)
def _engine(size: int) -> LLGuidanceEngine:
    """Return an engine for a vocabulary of bytes; its further ids stand for nothing."""
    tokens = [*(bytes([byte]) for byte in range(256)), *[b""] * (size - 256)]
    ends = frozenset({END})
    return LLGuidanceEngine(Vocabulary(tokens, ends, ends, _encode))


def _encode(text: str) -> Sequence[int]:
    return list(text.encode())
