"""A small vocabulary for grammars: all bytes, special tokens, and words."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np
from llguidance import LLMatcher, LLTokenizer

END = "<end of text>"


class Vocabulary:
    """A vocabulary of all bytes and some longer tokens, as llguidance reads it."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, special: Iterable[str] = (), words: Iterable[str] = ()) -> None:
        """Let `special` be tokens that no text spells, and `words` ordinary tokens."""
        names = [*dict.fromkeys(special), END]
        self.tokens = [bytes([value]) for value in range(256)] + [name.encode() for name in names]
        self.special_token_ids = list(range(256, len(self.tokens)))
        self.eos_token_id = self.special_token_ids[-1]
        self.ids = {name: 256 + index for index, name in enumerate(names)}
        self.tokens += sorted({word.encode() for word in words if len(word.encode()) > 1})
        self._by_length = sorted(self.ids, key=len, reverse=True)
        self._llguidance = LLTokenizer(self, eos_token=self.eos_token_id)  # type: ignore[arg-type]

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, in which special tokens are recognised."""
        ids: list[int] = []
        while text:
            name = next((name for name in self._by_length if text.startswith(name)), "")
            ids += [self.ids[name]] if name else text[0].encode()
            text = text[len(name) or 1 :]
        return ids

    def matcher(self, grammar: str | None) -> LLMatcher:
        """Return the state at the beginning of this grammar."""
        assert grammar is not None
        matcher = LLMatcher(self._llguidance, grammar, log_level=0)
        assert not matcher.is_error(), f"{matcher.get_error()}\n{grammar}"
        return matcher

    def allows(self, grammar: str | None, text: str) -> bool:
        """Return whether a grammar allows this text, to its end."""
        ids = [*self.encode(text), self.eos_token_id]
        return self.matcher(grammar).validate_tokens(ids) == len(ids)

    def walk(self, grammar: str | None, source: random.Random, most: int = 600) -> str | None:
        """Return a random text that the grammar allows; None if it does not end in time."""
        matcher = self.matcher(grammar)
        text = b""
        for _ in range(most):
            allowed = _bits(matcher.compute_bitmask())
            assert allowed, f"a dead end behind {text!r}: {matcher.get_error()}"
            longer = [token for token in allowed if token >= 256]
            token = source.choice(longer if longer and source.random() < 0.5 else allowed)
            if token == self.eos_token_id:
                return text.decode(errors="replace")
            assert matcher.consume_token(token), matcher.get_error()
            text += self.tokens[token]
        return None


def _bits(mask: bytes) -> list[int]:
    """Return the numbers of the bits that are set."""
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
    return [int(place) for place in np.flatnonzero(bits)]
