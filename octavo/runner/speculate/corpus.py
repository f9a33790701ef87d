"""A text in which the places of its last tokens are found again, and what followed them.

The index has, for each pair of tokens, the place behind the last such pair (by a hash), and for
each place the one before it with the same hash. So the most recent places are found in order, and
a new token costs no more in a long text than in a short one.
"""

from __future__ import annotations

from array import array

import numpy as np

from octavo.backends.base import Ints

MOST_PLACES = 16  # that are followed at once: the most recent ones
_MOST_LOOKED_AT = 48  # of one hash, those of other tokens among them
_MULTIPLIER, _SPREAD, _WORD = 0x9E3779B1, 0x85EBCA6B, 0xFFFFFFFF
NONE = -1  # in place of a token: between two texts


class Corpus:
    """A growing text and its index. Positions are those of the tokens; 0 is none."""

    __slots__ = ("_before", "_last", "_shift", "tokens")

    def __init__(self, num_hashes: int) -> None:
        """Make an empty text; the number of hashes is a power of two, 65,536 at most."""
        self.tokens = array("i", [NONE])
        self._before = array("i", [0])  # by place: the one before it with the same hash
        self._last = array("i", bytes(4 * num_hashes))  # by hash
        self._shift = 33 - num_hashes.bit_length()

    def append(self, token: int) -> None:
        """Add a token; the place behind it is indexed."""
        tokens = self.tokens
        mixed = (tokens[-1] * _MULTIPLIER + token) & _WORD
        index = (((mixed ^ (mixed >> 15)) * _SPREAD) & _WORD) >> self._shift
        tokens.append(token)
        place = len(tokens)
        self._before.append(self._last[index])
        self._last[index] = place

    def extend(self, new: Ints) -> None:
        """Add many tokens at once."""
        if not len(new):
            return
        first = len(self.tokens)
        firsts = np.concatenate(([self.tokens[-1]], new[:-1])).astype(np.uint32)
        mixed = firsts * np.uint32(_MULTIPLIER) + new.astype(np.uint32)
        mixed = (mixed ^ (mixed >> np.uint32(15))) * np.uint32(_SPREAD)
        hashes = mixed >> np.uint32(self._shift)
        places = np.arange(first + 1, first + 1 + len(new), dtype=np.int32)
        order = np.argsort(hashes.astype(np.uint16), kind="stable")  # ten times as fast
        sorted_hashes = hashes[order]
        last = np.frombuffer(self._last, np.int32)
        before = last[sorted_hashes]
        is_same = sorted_hashes[1:] == sorted_hashes[:-1]
        before[1:][is_same] = places[order[:-1]][is_same]
        found = np.empty(len(new), np.int32)
        found[order] = before
        last[sorted_hashes] = places[order]  # of equal ones, the last assignment counts
        self.tokens.frombytes(new.astype(np.int32).tobytes())
        self._before.frombytes(found.tobytes())

    def find(self, recent: array[int], longest: int) -> tuple[list[int], int]:
        """Return the most recent places behind the longest part of the end of `recent`.

        At least two tokens match, and `longest` at most; the second value is how many do.
        """
        tokens, before = self.tokens, self._before
        first, second = recent[-2], recent[-1]
        mixed = (first * _MULTIPLIER + second) & _WORD
        place = self._last[(((mixed ^ (mixed >> 15)) * _SPREAD) & _WORD) >> self._shift]
        found: list[int] = []
        length, end, size = 2, len(recent), len(tokens)
        for _ in range(_MOST_LOOKED_AT):
            if not place:
                break
            is_equal = tokens[place - 1] == second and tokens[place - 2] == first
            if is_equal and place < size:
                wanted = recent[max(0, end - length) :]
                if length > 2 and tokens[max(0, place - len(wanted)) : place] != wanted:
                    place = before[place - 1]
                    continue
                longer = length
                while longer < longest and longer < end and longer < place - 1:
                    if tokens[place - longer - 1] != recent[end - longer - 1]:
                        break
                    longer += 1
                if longer > length:
                    length, found = longer, []
                found.append(place)
                if len(found) == MOST_PLACES:
                    break
            place = before[place - 1]
        return found, length
