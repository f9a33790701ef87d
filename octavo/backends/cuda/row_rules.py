"""Rules of rows that are drawn on a device: what the host makes of them for one step.

Tokens that are forbidden become bits of masks. Bias and penalties become changes of single logits,
so that what crosses the bus grows with the tokens that a text has, not with the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.backends.base import Floats, Longs
from octavo.backends.step import Words
from octavo.backends.torch.sampling.rules import Rules
from octavo.backends.torch.sampling.slot import Slot

# No logit that a model gives becomes infinite by these; other rows are drawn on the host.
_MOST_FACTOR, _MOST_BIAS = 1e6, 1e30


class Changes(NamedTuple):
    """Changes of single logits, each of another one."""

    places: Longs  # row · vocabulary + token
    # [4, changes]: an addend; then a factor of what is not positive, and divisor of what is; two
    # numbers that are taken away, one after the other.
    numbers: Floats


def has_device_rules(slot: Slot) -> bool:
    """Return whether a device can apply the rules of a slot, or there are none."""
    if slot.rules is None:
        return True
    sampling = slot.sampling
    if sampling.processors or sampling.dry is not None:
        return False
    factor = sampling.repetition
    return 1 / _MOST_FACTOR <= factor <= _MOST_FACTOR and bool(
        (np.abs(sampling.bias) <= _MOST_BIAS).all()
    )


def changes_of(slots: Mapping[int, Slot], size: int) -> Changes:
    """Return what the rules of some rows, by their place, change in a vocabulary of a size."""
    places, numbers = [np.zeros(0, np.int64)], [np.zeros((4, 0), np.float32)]
    for row, slot in slots.items():
        assert slot.rules is not None
        ids, changed = _changes_of_row(slot.rules)
        places.append(ids + row * size)
        numbers.append(changed)
    return Changes(np.concatenate(places), np.concatenate(numbers, axis=1))


def _changes_of_row(rules: Rules) -> tuple[Longs, Floats]:
    """Return the tokens that rules change, and how."""
    sampling, penalties = rules.sampling, rules.penalties
    ids = sampling.bias_ids.astype(np.int64)
    if penalties is None:
        changed = np.zeros((4, len(ids)), np.float32)
        changed[0], changed[1] = sampling.bias, 1.0
        return ids, changed
    seen, by_count, by_presence = penalties.lowered()
    every = np.union1d(ids, seen)
    changed = np.zeros((4, len(every)), np.float32)
    changed[0, np.searchsorted(every, ids)] = sampling.bias
    at = np.searchsorted(every, seen)
    changed[1] = 1.0
    changed[1, at] = sampling.repetition
    changed[2, at], changed[3, at] = by_count, by_presence
    return every, changed


def forbid(words: Words, slots: Mapping[int, Slot], size: int) -> None:
    """Clear the bits of the tokens that rules forbid; `words` has a row for each of the rows."""
    for row, slot in slots.items():
        assert slot.rules is not None
        if slot.sampling.allowed is not None:
            words[row] &= _bits_of(slot.sampling.allowed, size)
        forbidden = np.array(slot.rules.forbidden(slot.tokens), np.int64)
        if len(forbidden):
            words[row] &= ~_bits_of(forbidden, size)


def forbids(slot: Slot) -> bool:
    """Return whether a slot's rules may forbid tokens."""
    sampling = slot.sampling
    return bool(sampling.allowed is not None or sampling.bad_words or sampling.min_tokens)


def _bits_of(ids: NDArray[np.integer], size: int) -> Words:
    """Return words of 32 bits in which those of some tokens are 1."""
    bits = np.zeros(-(-size // 32) * 32, np.uint8)
    bits[ids] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)
