"""The known names nearest to one that is not known, for errors."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_MOST_CHARACTERS = 64  # of a name; the comparison's time grows with their square


def nearest(name: str, known: Iterable[str], most: int = 1, likeness: float = 0.6) -> list[str]:
    """Return at most `most` of the known names that are like `name`, the nearest first."""
    return get_close_matches(name[:_MOST_CHARACTERS], list(known), n=most, cutoff=likeness)


def nearest_or_all(name: str, known: Iterable[str]) -> str:
    """Return a hint: the nearest known name, or all of them if none is near."""
    names = list(known)
    near = nearest(name, names)
    return f"did you mean {near[0]}?" if near else f"there are: {', '.join(names)}"
