"""The check of `logit_bias`: everything that is wrong with it is named at once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from octavo.api.outputs import RequestError
from octavo.core.sampling_params import MAX_BIAS, MAX_NAMED, NO_LIMIT

_DIGITS = len(str(NO_LIMIT))
_TYPES = {str: "string", bool: "boolean", list: "array", dict: "object", type(None): "null"}


def check_biases(biases: Mapping[str, Any], vocabulary: int) -> None:
    """Raise RequestError for keys that are no tokens, and for values that are out of bounds."""
    strange: list[str] = []
    unknown: list[int] = []
    wrong: list[str] = []
    for key, value in biases.items():
        if not (key.isascii() and key.isdigit() and len(key) <= _DIGITS):
            strange.append(repr(key[:64]))
        elif int(key) >= vocabulary:
            unknown.append(int(key))
        why = _what_is_wrong(value)
        if why:
            wrong.append(f"{why} under {key[:64]!r}")
    problems: list[str] = []
    if strange:
        problems.append(
            f"keys that are no token ids: {_listed(strange)}; token ids are whole numbers, such as "
            "'42'"
        )
    if unknown:
        ids = _listed(list(map(str, sorted(unknown))))
        problems.append(
            f"ids that are no tokens: {ids}; the vocabulary has {vocabulary} tokens, with ids from "
            f"0 to {vocabulary - 1}"
        )
    problems += _named(wrong)
    if problems:
        raise RequestError(f"logit_bias: {'; '.join(problems)}", param="logit_bias")


def with_words(
    biases: Mapping[str, Any], words: Iterable[Sequence[int]], of_words: Iterable[float]
) -> dict[str, Any]:
    """Return biases with each word's bias added to those of its tokens, cut to the largest bias."""
    added: dict[str, Any] = dict(biases)
    for word, bias in zip(words, of_words, strict=True):
        for token in word:
            both = added.get(str(token), 0.0) + bias
            added[str(token)] = max(-MAX_BIAS, min(MAX_BIAS, both))
    return added


def _what_is_wrong(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"expected number, got {_TYPES[type(value)]}"
    if not -MAX_BIAS <= value <= MAX_BIAS or math.isnan(value):
        bound = f"<= {MAX_BIAS}" if value > 0 else f">= {-MAX_BIAS}"
        return f"expected number {bound}, got {str(value)[:32]}"
    return ""


def _listed(wrong: Sequence[str]) -> str:
    more = len(wrong) - MAX_NAMED
    return ", ".join(wrong[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _named(wrong: Sequence[str]) -> Iterator[str]:
    yield from wrong[:MAX_NAMED]
    if len(wrong) > MAX_NAMED:
        yield f"and {len(wrong) - MAX_NAMED} more"
