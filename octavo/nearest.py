"""The known names nearest to one that is not known, for errors."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

_MOST_CHARACTERS = 64  # of a name; the comparison's time grows with their square
_PARTS = re.compile(r"[^\W_]+")
_LIKENESS_OF_WORDS = 0.7  # of each word to one of the other name
_ALMOST_SAME = 0.85  # likeness of names that are spelt as one word, or in other words


def nearest(name: str, known: Iterable[str], most: int = 1, likeness: float = 0.6) -> list[str]:
    """Return at most `most` of the known names that are like `name`, the nearest first."""
    return get_close_matches(name[:_MOST_CHARACTERS], list(known), n=most, cutoff=likeness)


def nearest_option(name: str, known: Iterable[str]) -> str | None:
    """Return the known option that is probably meant; None if none is near.

    Options share words such as `enable` and `max`, so each word must be like one of the other's.
    """
    words = _words(name)
    for near in nearest(name, known, most=5):
        others = _words(near)
        if _likeness("".join(words), "".join(others)) >= _ALMOST_SAME:
            return near
        if words and all(_fits(word, others) for word in words):
            return near
    return None


def nearest_or_all(name: str, known: Iterable[str]) -> str:
    """Return a hint: the nearest known option, or all of them if none is near."""
    names = list(known)
    near = nearest_option(name, names)
    return f"did you mean {near}?" if near else f"there are: {', '.join(names)}"


def _words(name: str) -> list[str]:
    return _PARTS.findall(name[:_MOST_CHARACTERS].lower())


def _fits(word: str, others: Iterable[str]) -> bool:
    return any(_likeness(word, other) >= _LIKENESS_OF_WORDS for other in others)


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()
