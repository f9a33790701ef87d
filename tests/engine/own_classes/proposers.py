"""Proposers of an operator's own, right and wrong ones, for the tests."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

NUMBER = 5


class Repeating:
    """A proposer that expects a text to go on as behind the same token before."""

    def __init__(self) -> None:
        self.slots: set[int] = set()

    def propose(self, slot: int, tokens: Any, most: int) -> list[int]:
        self.slots.add(slot)
        (places,) = (tokens[:-1] == tokens[-1]).nonzero()
        found: list[int] = tokens[places[-1] + 1 :].tolist() if len(places) else []
        return found

    def free(self, slot: int) -> None:
        self.slots.discard(slot)


class Endless(Repeating):
    """A proposer whose drafts have no end, and leave the vocabulary."""

    def propose(self, slot: int, tokens: Any, most: int) -> Iterator[int]:  # type: ignore[override]
        return count(int(tokens[-1]))


class Wrong(Repeating):
    """A proposer that is never right, and often names no token at all."""

    def propose(self, slot: int, tokens: Any, most: int) -> list[int]:
        return [-1, 1 << 80, 9] if len(tokens) % 3 else [int(tokens[-1]), 1 << 80, -7]


class Dying(Repeating):
    """A proposer that fails at its twentieth text."""

    left = 20

    def propose(self, slot: int, tokens: Any, most: int) -> list[int]:
        self.left -= 1
        if not self.left:
            raise RuntimeError("nothing comes to mind")
        return super().propose(slot, tokens, most)


class Exiting(Repeating):
    """A proposer that ends its program, as code for the command line does."""

    left = 20

    def propose(self, slot: int, tokens: Any, most: int) -> list[int]:
        self.left -= 1
        if not self.left:
            raise SystemExit(3)
        return super().propose(slot, tokens, most)


class ExitingAtOnce(Repeating):
    """A class whose call ends the program."""

    def __init__(self) -> None:
        raise SystemExit(3)


class DyingLate(Dying):
    """A proposer that fails when it has proposed for some time."""

    left = 500


class Writing(Repeating):
    """A proposer that changes the text."""

    def propose(self, slot: int, tokens: Any, most: int) -> list[int]:
        tokens[-1] = 3
        return [3]


class Fractions(Repeating):
    """A proposer whose drafts are no whole numbers."""

    def propose(self, slot: int, tokens: Any, most: int) -> list[Any]:
        return [2.5]


class Unfree(Repeating):
    """A proposer that fails when a text has ended."""

    def free(self, slot: int) -> None:
        raise KeyError(slot)


class NoFree:
    """A class that lacks a method."""

    def propose(self, slot: int, tokens: Any, most: int) -> list[int]:
        return []


class Broken(Repeating):
    """A class that cannot be made."""

    def __init__(self) -> None:
        raise OSError("no such file")
