"""Whole numbers that come as text: in queries and in forms."""

from __future__ import annotations

_MOST_DIGITS = 15  # enough for every bound, and few enough for every arithmetic


def bounded_number(text: str, least: int, most: int) -> int | None:
    """Return the number that a text writes in decimal digits; None if it is none in the bounds."""
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
        return None
    number = int(text)
    return number if least <= number <= most else None
