"""The vocabulary of a tokenizer, as grammars see it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any

from tokenizers import Tokenizer as Backend

from octavo.grammar.protocol import Vocabulary
from octavo.text.tokenizer import Tokenizer

_EMPTY = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}

Json = dict[str, Any]


def vocabulary_of(tokenizer: Tokenizer, size: int, end_ids: Iterable[int]) -> Vocabulary:
    """Return the bytes of all tokens; `size` is the model's, whose last ids may stand for nothing.

    Added tokens are matched whole in a text, so that no text spells them. What the tokenizer would
    not spell is written byte by byte, up to a byte that no token has, which cannot be written.
    """
    ends = frozenset(end_ids)
    special = frozenset(tokenizer.added_tokens) | tokenizer.special_ids | ends
    tokens = [tokenizer.token_bytes(token) for token in range(size)]
    single = {
        piece[0]: token
        for token, piece in enumerate(tokens)
        if len(piece) == 1 and token not in special
    }
    inner = Tokenizer(_within(tokenizer))

    def encode(text: str) -> Sequence[int]:
        spelled, at, found = text.encode(), 0, list[int]()
        for token in inner.encode(text, add_special_tokens=False):
            piece = tokens[token] if token < size else b""
            if not piece or not spelled.startswith(piece, at):
                break
            if token not in special:
                found.append(token)
            elif single.keys() >= set(piece):  # merges may give an added token
                found += [single[byte] for byte in piece]
            else:
                break
            at += len(piece)
        return found + [single[byte] for byte in takewhile(single.__contains__, spelled[at:])]

    return Vocabulary(tokens=tokens, special=special, end_ids=ends, encode=encode)


def _within(tokenizer: Tokenizer) -> Backend:
    """Return a tokenizer of the same model for text that continues another, exactly as it is.

    It puts no space before a text, writes no other form of a character, and has no added tokens.
    """
    backend, parts = tokenizer.backend, dict[str, Json | None]()
    if backend.normalizer is not None:
        step = json.loads(backend.normalizer.__getstate__())
        spaces = {(new, old) for old, new in tokenizer.bytes_by_token.spelling.replacements}
        parts["normalizer"] = _spelling_alone(step, spaces)
    if backend.pre_tokenizer is not None:
        step = json.loads(backend.pre_tokenizer.__getstate__())
        parts["pre_tokenizer"] = _without_prefix(step)
    made = Backend.from_str(json.dumps(_EMPTY | parts))
    made.model = backend.model
    return made


def _spelling_alone(step: Json, replacements: set[tuple[str, str]]) -> Json | None:
    """Return a normaliser without what changes a text; None if nothing is left."""
    match step:
        case {"type": "Sequence", "normalizers": list(steps)}:
            kept = [_spelling_alone(each, replacements) for each in steps]
            return step | {"normalizers": [each for each in kept if each is not None]}
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
            return step if (old, new) in replacements else None
        case {"type": "ByteLevel"}:
            return step
    return None


def _without_prefix(step: Json) -> Json:
    """Return a rule for splitting a text that puts nothing before it."""
    match step:
        case {"type": "Sequence", "pretokenizers": list(steps)}:
            return step | {"pretokenizers": [_without_prefix(each) for each in steps]}
        case {"type": "Metaspace"}:
            return step | {"prepend_scheme": "never"}
        case {"type": "ByteLevel"}:
            return step | {"add_prefix_space": False}
    return step
