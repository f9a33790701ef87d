"""Which models have to leave so that another one fits: a function of numbers, without state.

A model's need is what `octavo fit` predicts. All that are loaded have room together, within the
memory of the server and its number of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct


class Need(Struct, frozen=True):
    """The memory that a model takes, and the size that its engines are given for it."""

    num_bytes: int
    num_blocks: int  # of the KV cache of each engine
    max_model_len: int


class Room(Struct, frozen=True):
    """The memory for all models, and how many of them there may be."""

    num_bytes: int
    most: int


class Held(NamedTuple):
    """A loaded model, as far as it matters for the choice."""

    num_bytes: int
    last_used: float
    is_busy: bool


def leaving(room: Room, need: Need, loaded: Sequence[Held]) -> list[int]:
    """Return the indices of the models that have to leave; none if there is room already.

    Those without requests go first, and among them the one that was used longest ago. None leaves
    whose memory is not needed after all. The need is at most what the room has.
    """
    order = sorted(range(len(loaded)), key=lambda at: (loaded[at].is_busy, loaded[at].last_used))
    left = room.num_bytes - need.num_bytes - sum(each.num_bytes for each in loaded)
    num_places = room.most - 1 - len(loaded)
    chosen: list[int] = []
    for at in order:
        if left >= 0 and num_places >= 0:
            break
        chosen.append(at)
        left += loaded[at].num_bytes
        num_places += 1
    for at in list(chosen):  # an early one may be too small to have helped
        if left - loaded[at].num_bytes >= 0 and num_places >= 1:
            chosen.remove(at)
            left -= loaded[at].num_bytes
            num_places -= 1
    return chosen
