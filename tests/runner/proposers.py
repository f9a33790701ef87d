"""A proposer for tests that decides on one slot at a time, and checks how it is called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.runner.speculate.proposer import Turn


class OneByOne:
    """A proposer that calls `guess` for each slot; it fails unless `open` and `free` alternate."""

    hidden_layers: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.open_slots: set[int] = set()

    def open(self, slot: int) -> None:
        assert slot not in self.open_slots, f"slot {slot} is opened twice"
        self.open_slots.add(slot)

    def free(self, slot: int) -> None:
        self.open_slots.remove(slot)

    def propose(self, turns: Sequence[Turn]) -> list[tuple[int, ...]]:
        assert {turn.slot for turn in turns} <= self.open_slots
        return [self.guess(turn.slot, turn.tokens, turn.most) for turn in turns]

    def guess(self, slot: int, tokens: Any, most: int) -> tuple[int, ...]:
        raise NotImplementedError
