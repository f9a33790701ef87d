"""Random texts of a grammar, written byte by byte through the grammar engine's masks."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from octavo.core.structured_outputs import StructuredOutputsParams
from octavo.grammar.llguidance_engine import LLGuidanceEngine
from octavo.grammar.protocol import Matcher, Vocabulary, Words
from octavo.grammar.shapes import grammar_of

END = 256
MAX_BYTES = 600
_CLOSING = b'"}]'  # what brings a text nearer to its end
_WORDS = b'abcxyzAB019-_./:@ \\\n\t"{}[],truefalsn+eE\xc3\xa9'  # most bytes of most texts


def _encode(text: str) -> Sequence[int]:
    return list(text.encode())


_TOKENS = [*(bytes([byte]) for byte in range(256)), b""]
BYTES = Vocabulary(_TOKENS, frozenset({END}), frozenset({END}), _encode)
ENGINE = LLGuidanceEngine(BYTES, forcing="off")
_ROW = np.zeros(-(-len(_TOKENS) // 32), np.uint32)
_TENDENCY = np.where(np.isin(np.arange(257), list(_WORDS)), 1.0, 0.02)


def matcher_of(shape: StructuredOutputsParams) -> Matcher:
    """Return a matcher at the beginning of a text in a shape."""
    return ENGINE.compile(grammar_of(shape).text)


def _allowed(matcher: Matcher, row: Words) -> list[int]:
    matcher.fill(row)
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    return [int(token) for token in np.flatnonzero(bits)]


def walk(matcher: Matcher, random: Random) -> str | None:
    """Continue a matcher's text at random to an end; None if it does not end soon enough."""
    matcher = matcher.copy()
    written = bytearray()
    length = random.choice((10, 40, 160))  # after which the text should end
    while len(written) < MAX_BYTES:
        allowed = _allowed(matcher, _ROW)
        assert allowed, f"no token can follow {bytes(written)!r}"
        is_late = len(written) > length
        token = -1
        if END in allowed and (is_late or len(allowed) == 1 or random.random() < 0.3):
            return written.decode()
        closing = [each for each in allowed if each < 256 and each in _CLOSING]
        if closing and random.random() < (0.9 if is_late else 0.1):
            token = random.choice(closing)
        else:
            allowed = [each for each in allowed if each != END]
            token = random.choices(allowed, [_TENDENCY[each] for each in allowed])[0]
        matcher.accept([token])
        written.append(token)
    return None


def accepts(matcher: Matcher, text: str) -> bool:
    """Return whether a matcher allows a whole text."""
    tokens = list(text.encode())
    return matcher.num_accepted([*tokens, END]) == len(tokens) + 1
