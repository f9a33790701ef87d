"""Regular expressions with intersection and opposite, and their derivatives.

A derivative is what may follow a character. There are finitely many, if equal expressions are
recognised, which the constructors do: so each expression is an automaton, made as it is needed.

Negative codes stand for places in a text: its begin, its end, and assertions (`octavo/grammar/
regular/languages.py`). An expression under `blind` does not see the assertions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from octavo.grammar.regular.characters import ALL, Characters, contains, union

BEGIN, END = -1, -2
FIRST_ASSERTION = -3  # and those below
MAX_EXPRESSIONS = 20_000  # of one computation
MAX_COMPARED = 32  # parts of one expression, with each other

Kind = Literal["none", "empty", "characters", "sequence", "any", "all", "not", "repeat", "blind"]


class TooLargeError(ValueError):
    """An automaton, or a regex made of one, that is larger than is allowed."""


class Expression:
    """An expression; two that are equal are one object of their algebra."""

    __slots__ = ("characters", "is_nullable", "kind", "least", "most", "number", "parts")

    def __init__(
        self,
        kind: Kind,
        number: int,
        parts: tuple[Expression, ...],
        characters: Characters,
        least: int,
        most: int | None,
    ) -> None:
        self.kind = kind
        self.number = number
        self.parts = parts
        self.characters = characters
        self.least = least
        self.most = most
        self.is_nullable = self._nullable()

    def _nullable(self) -> bool:
        match self.kind:
            case "empty":
                return True
            case "sequence" | "all":
                return all(part.is_nullable for part in self.parts)
            case "any":
                return any(part.is_nullable for part in self.parts)
            case "not":
                return not self.parts[0].is_nullable
            case "repeat":
                return self.least == 0 or self.parts[0].is_nullable
            case "blind":
                return self.parts[0].is_nullable
        return False


class Algebra:
    """The expressions of one computation."""

    def __init__(self) -> None:
        self._known: dict[object, Expression] = {}
        self._derived: dict[tuple[int, int], Expression] = {}
        self.none = self._make("none")
        self.empty = self._make("empty")
        self.anything = self.opposite(self.none)
        # All texts without assertions.
        self.of_any_text = union([ALL, ((END, BEGIN),)])
        self.any_text = self.repeat(self.one_of(self.of_any_text), 0, None)
        self._settled: dict[int, Expression] = {}

    def _make(
        self,
        kind: Kind,
        parts: tuple[Expression, ...] = (),
        characters: Characters = (),
        least: int = 0,
        most: int | None = None,
    ) -> Expression:
        key = (kind, tuple([part.number for part in parts]), characters, least, most)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MAX_EXPRESSIONS:
                raise TooLargeError("the pattern is too complex")
            number = len(self._known)
            found = self._known[key] = Expression(kind, number, parts, characters, least, most)
        return found

    def one_of(self, characters: Characters) -> Expression:
        """Return the texts of one of these characters."""
        return self._make("characters", characters=characters) if characters else self.none

    def sequence(self, parts: Iterable[Expression]) -> Expression:
        """Return the texts of all parts, one after the other."""
        flat: list[Expression] = []
        for part in parts:
            flat += part.parts if part.kind == "sequence" else (part,)
        if self.none in flat:
            return self.none
        made = self.empty
        for part in reversed([part for part in flat if part is not self.empty]):
            if made is self.empty or (part is made is self.anything):
                made = part
            else:
                rest = made.parts if made.kind == "sequence" else (made,)
                made = self._make("sequence", (part, *rest))
        return made

    def any_of(self, parts: Iterable[Expression]) -> Expression:
        """Return the texts of each part."""
        flat: dict[int, Expression] = {}
        for part in parts:
            for each in part.parts if part.kind == "any" else (part,):
                if each is self.anything:
                    return each
                if each is not self.none:
                    flat[each.number] = each
        return self._joined("any", flat, self.none)

    def all_of(self, parts: Iterable[Expression]) -> Expression:
        """Return the texts that all parts have."""
        flat: dict[int, Expression] = {}
        for part in parts:
            for each in part.parts if part.kind == "all" else (part,):
                if each is self.none:
                    return each
                if each is not self.anything:
                    flat[each.number] = each
        return self._joined("all", flat, self.anything)

    def _joined(self, kind: Kind, parts: dict[int, Expression], neutral: Expression) -> Expression:
        if 1 < len(parts) <= MAX_COMPARED:
            parts = _without_absorbed(kind, parts)
        if not parts:
            return neutral
        if len(parts) == 1:
            return next(iter(parts.values()))
        return self._make(kind, tuple([parts[number] for number in sorted(parts)]))

    def opposite(self, part: Expression) -> Expression:
        """Return all texts that a part does not have."""
        return part.parts[0] if part.kind == "not" else self._make("not", (part,))

    def repeat(self, part: Expression, least: int, most: int | None) -> Expression:
        """Return the texts of a part, so many times."""
        if most == 0 or part is self.empty:
            return self.empty
        if part is self.none:
            return self.empty if least == 0 else self.none
        if (least, most) == (1, 1):
            return part
        return self._make("repeat", (part,), (), 0 if part.is_nullable else least, most)

    def blind(self, part: Expression) -> Expression:
        """Return the texts of a part, with any assertions between their characters."""
        return part if part in (self.none, self.anything) else self._make("blind", (part,))

    def settled(self, given: Expression) -> Expression:
        """Return the texts of an expression in which no further assertion stands.

        Assertions that nothing depends on may stand in what is returned, since none is read.
        """
        found = self._settled.get(given.number)
        if found is None:
            found = self._settled[given.number] = self._settle(given)
        return found

    def _settle(self, given: Expression) -> Expression:
        if given is self.any_text:
            return self.anything
        match given.kind:
            case "characters" if given.characters[-1][1] <= FIRST_ASSERTION:
                return self.none
            case "any":
                return self.any_of(map(self.settled, given.parts))
            case "all":
                return self.all_of(map(self.settled, given.parts))
            case "not":
                return self.opposite(self.settled(given.parts[0]))
            case "repeat":
                return self.repeat(self.settled(given.parts[0]), given.least, given.most)
            case "sequence":
                return self.sequence(map(self.settled, given.parts))
        return given

    def after(self, given: Expression, code: int) -> Expression:
        """Return what may follow a character in the texts that begin with it."""
        key = (given.number, code)
        found = self._derived.get(key)
        if found is None:
            found = self._derived[key] = self._after(given, code)
        return found

    def _after(self, given: Expression, code: int) -> Expression:
        match given.kind:
            case "characters":
                return self.empty if contains(given.characters, code) else self.none
            case "any":
                return self.any_of([self.after(part, code) for part in given.parts])
            case "all":
                return self.all_of([self.after(part, code) for part in given.parts])
            case "not":
                return self.opposite(self.after(given.parts[0], code))
            case "blind":
                if code <= FIRST_ASSERTION:
                    return given
                return self.blind(self.after(given.parts[0], code))
            case "repeat":
                (part,) = given.parts
                most = None if given.most is None else given.most - 1
                rest = self.repeat(part, max(0, given.least - 1), most)
                return self.sequence([self.after(part, code), rest])
            case "sequence":
                first, *others = given.parts
                options = [self.sequence([self.after(first, code), *others])]
                if first.is_nullable:
                    options.append(self.after(self.sequence(others), code))
                return self.any_of(options)
        return self.none


def _without_absorbed(kind: Kind, parts: dict[int, Expression]) -> dict[int, Expression]:
    """Return parts without those that add nothing: `a` and `a & b` are together `a`."""
    inner: Kind = "all" if kind == "any" else "any"
    sets = {
        number: frozenset(each.number for each in part.parts) if part.kind == inner else {number}
        for number, part in parts.items()
    }
    return {
        number: part
        for number, part in parts.items()
        if not any(other < sets[number] for other in sets.values())
    }


def sets_of(root: Expression) -> list[Characters]:
    """Return all sets of characters in an expression."""
    found: dict[Characters, None] = {}
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        each = waiting.pop()
        if each.number not in seen:
            seen.add(each.number)
            waiting += each.parts
            if each.kind == "characters":
                found[each.characters] = None
    return list(found)
