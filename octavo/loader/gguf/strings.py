"""Arrays of short strings in GGUF files, located all at once instead of one after the other.

Each string follows its length in eight bytes, so in general the place of each depends on the one
before. But if every text has 1 to 255 bytes and none of them is zero, as in a vocabulary, the only
zeros are the seven high bytes of each length. All places follow from them, and are then checked.
"""

from __future__ import annotations

from mmap import mmap

import numpy as np
from numpy.typing import NDArray

_ZEROS = 7  # of a length below 256
_LENGTH_BYTES = 8
_LIKELY_BYTES = 20  # of a string with its length, for the first attempt
_MOST_BYTES = 8 + 255  # of the longest string with its length
_LEAST = 64  # strings; with fewer, this is not faster


def find_lengths(buffer: mmap | bytes, position: int, count: int) -> NDArray[np.int64] | None:
    """Return the places of the lengths of `count` strings, and the end, relative to `position`.

    Return None if other kinds of strings are among them, or if they reach past the end.
    """
    if count < _LEAST:
        return None
    room = min(len(buffer) - position, count * _MOST_BYTES)
    size = min(room, count * _LIKELY_BYTES)
    while True:
        stored = np.frombuffer(buffer, np.uint8, size, position)
        zero = stored == 0
        found = np.flatnonzero(zero[1:] > zero[:-1])  # each byte before a run of zeros
        if len(found) >= count and found[count - 1] + _LENGTH_BYTES < size:
            break
        if size == room:
            return None
        size = min(room, size * 2)
    places = np.empty(count + 1, np.int64)
    places[:-1] = found[:count]
    # Each length leads to the next one, and the first to the end of the last.
    lengths = stored[places[:-1]]
    places[-1] = places[-2] + _LENGTH_BYTES + int(lengths[-1])
    fits = (
        places[0] == 0
        and places[-1] <= room
        and bool((places[:-1] + _LENGTH_BYTES + lengths == places[1:]).all())
        # The zeros up to the next place are consecutive and seven, so the text contains none.
        and bool(zero[places[:-1] + _ZEROS].all())
        and not zero[places[:-1] + _LENGTH_BYTES].any()
    )
    if not fits:
        return None
    last = buffer[position + int(places[-2]) + _LENGTH_BYTES : position + int(places[-1])]
    return places if 0 not in last else None


def split(
    buffer: mmap | bytes, position: int, places: NDArray[np.int64]
) -> list[str] | list[bytes]:
    """Return the texts at the `places` from `find_lengths`; as bytes if one is not valid UTF-8."""
    joined = _joined(_stored(buffer, position, places), places, 0)
    try:
        return joined.decode().split("\0")
    except UnicodeDecodeError:
        return joined.split(b"\0")


def split_pairs(
    buffer: mmap | bytes, position: int, places: NDArray[np.int64]
) -> list[tuple[str, str]] | None:
    """Return the two words of each text at the `places`; None if one has not exactly two."""
    stored, starts, ends = (
        _stored(buffer, position, places),
        places[:-1] + _LENGTH_BYTES,
        places[1:],
    )
    stored[places[:-1]] = 0  # a length may be the number of a space
    spaces = np.flatnonzero(stored == ord(" "))
    if len(spaces) != len(starts) or not ((starts < spaces) & (spaces < ends - 1)).all():
        return None
    try:
        words = iter(_joined(stored, places, ord(" ")).decode().split(" "))
    except UnicodeDecodeError:
        return None
    return list(zip(words, words, strict=True))


def _stored(buffer: mmap | bytes, position: int, places: NDArray[np.int64]) -> NDArray[np.uint8]:
    return np.frombuffer(buffer, np.uint8, int(places[-1]), position).copy()


def _joined(stored: NDArray[np.uint8], places: NDArray[np.int64], separator: int) -> bytes:
    """Return the texts with one byte between them instead of a length."""
    is_kept = np.ones(len(stored), np.bool_)
    is_kept[0] = False
    for byte in range(1, _LENGTH_BYTES):
        is_kept[places[:-1] + byte] = False
    stored[places[:-1]] = separator
    return stored[is_kept].tobytes()
