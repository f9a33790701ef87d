"""A toy grammar engine: a grammar lists the tokens that are possible at each place of a text.

`5 6|7 8` allows 5, then 6 or 7, then 8, then the end. A place `!fill`, `!accept` or `!panic` fails
there, `!nothing` allows no token, and a grammar that begins with `!no` is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event, Semaphore

from octavo.grammar.protocol import GrammarError, Matcher, Words

END = 0


class PanicError(BaseException):
    """An error as a panic of a library gives it."""


class ToyMatcher:
    """A place in a grammar."""

    def __init__(self, places: list[str], accepted: list[int]) -> None:
        self.places = places
        self.accepted = accepted

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self._place(len(self.accepted)) == "!accept":
                raise GrammarError("no token is accepted here")
            if self.num_accepted([token]) == 0:
                raise GrammarError(f"token {token} is not allowed")
            self.accepted.append(token)

    def num_accepted(self, tokens: Sequence[int]) -> int:
        for count, token in enumerate(tokens):
            place = self._place(len(self.accepted) + count)
            if not place.startswith("!") and str(token) not in place.split("|"):
                return count
        return len(tokens)

    def roll_back(self, count: int) -> None:
        del self.accepted[len(self.accepted) - count :]

    def forced(self, most: int) -> list[int]:
        run: list[int] = []
        while len(run) < most and self._place(len(self.accepted) + len(run)).isdigit():
            run.append(int(self._place(len(self.accepted) + len(run))))
        return run

    def fill(self, row: Words) -> None:
        place = self._place(len(self.accepted))
        if place == "!fill":
            raise GrammarError("too complex")
        if place == "!panic":
            raise PanicError
        row[:] = 0
        if place == "!nothing":
            return
        for token in map(int, place.split("|") if place else [END]):
            row[token // 32] |= 1 << token % 32

    def copy(self) -> Matcher:
        return ToyMatcher(self.places, list(self.accepted))

    def _place(self, index: int) -> str:
        return self.places[index] if index < len(self.places) else ""


class ToyEngine:
    """Compiles grammars, if its gate is open; notes which."""

    end_ids = frozenset({END})
    num_words = 4

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.num_forgotten = 0
        self.gate = Event()
        self.gate.set()
        self.called = Semaphore(0)  # how often `compile` was called

    def fill_all(
        self, rows: Words, work: Sequence[tuple[Matcher, int]]
    ) -> list[BaseException | None]:
        errors: list[BaseException | None] = []
        for matcher, place in work:
            try:
                matcher.fill(rows[place])
            except (GrammarError, PanicError) as error:
                errors.append(error)
            else:
                errors.append(None)
        return errors

    def forget(self) -> None:
        self.num_forgotten += 1

    def compile(self, text: str) -> ToyMatcher:
        self.called.release()
        assert self.gate.wait(300)
        if text.startswith("!no "):
            raise GrammarError("it begins with a mark")
        self.compiled.append(text)
        return ToyMatcher(text.split(), [])
