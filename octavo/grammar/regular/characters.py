"""Sets of characters, as sorted intervals of code points."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from functools import lru_cache

Characters = tuple[tuple[int, int], ...]  # first and last of each interval

NONE: Characters = ()
ALL: Characters = ((0, 0xD7FF), (0xE000, sys.maxunicode))  # half a pair is no character
_PLAIN = re.compile(r"[0-9A-Za-z]")


def union(parts: Iterable[Characters]) -> Characters:
    """Return the characters that are in one of the sets."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(interval for part in parts for interval in part):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def others(inside: Characters) -> Characters:
    """Return the characters that are not in a set."""
    made: list[tuple[int, int]] = []
    for first, last in ALL:
        for low, high in inside:
            if high < first or low > last:
                continue
            if low > first:
                made.append((first, low - 1))
            first = high + 1
        if first <= last:
            made.append((first, last))
    return tuple(made)


def contains(characters: Characters, code: int) -> bool:
    """Return whether a character is in a set."""
    return any(first <= code <= last for first, last in characters)


def written(characters: Characters) -> str:
    """Return the class of a regex, in the engine's dialect, that is this set."""
    if characters == ALL:
        return "(?s:.)"
    rest = others(characters)
    if len(rest) < len(characters):
        return f"[^{''.join(map(_interval, rest))}]"
    return f"[{''.join(map(_interval, characters))}]"


def _interval(interval: tuple[int, int]) -> str:
    first, last = map(_code, interval)
    return first if first == last else f"{first}-{last}"


def _code(code: int) -> str:
    each = chr(code)
    return each if _PLAIN.match(each) else f"\\u{{{code:X}}}"


@lru_cache(maxsize=4)
def named(escape: str) -> Characters:
    r"""Return the characters that `\d`, `\w` or `\s` matches among those of Unicode."""
    text = "".join(map(chr, range(sys.maxunicode + 1)))
    runs = (found.span() for found in re.finditer(f"{escape}+", text))
    return tuple((begin, end - 1) for begin, end in runs)
