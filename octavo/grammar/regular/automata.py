"""Automata of expressions, and the regexes of automata."""

from __future__ import annotations

from octavo.grammar.regular.characters import ALL, Characters, union, written
from octavo.grammar.regular.expressions import (
    BEGIN,
    END,
    FIRST_ASSERTION,
    Algebra,
    Expression,
    TooLargeError,
    sets_of,
)

MAX_STATES = 1000
MAX_STEPS = 1 << 16  # that are kept, each from a state by a character
MAX_WRITTEN = 16_384  # characters of a regex


class Automaton:
    """The states of an expression between the begin and the end of a text.

    Assertions stand between characters of the expression, and in no text: so a state is what may
    follow with any assertions, or without.
    """

    def __init__(self, algebra: Algebra, root: Expression, num_assertions: int = 0) -> None:
        self._algebra = algebra
        self._marks = range(FIRST_ASSERTION, FIRST_ASSERTION - num_assertions, -1)
        self.alphabet = _alphabet(sets_of(root))
        self._codes = [characters[0][0] for characters in self.alphabet]
        # What `accepts` has found: it follows a hundred thousand names of modules.
        self._followed: dict[tuple[int, str], Expression] = {}
        self._ends: dict[int, bool] = {}
        self.start = self._past(algebra.after(self._past(root), BEGIN))

    def _past(self, given: Expression) -> Expression:
        """Return the expression that remains after any number of assertions, none included."""
        algebra = self._algebra
        while self._marks:
            made = algebra.any_of([given, *(algebra.after(given, mark) for mark in self._marks)])
            if made is given:
                break
            given = made
        return algebra.any_of([given, algebra.settled(given)]) if self._marks else given

    def is_end(self, state: Expression) -> bool:
        """Return whether a text may end in a state."""
        return self._past(self._algebra.after(state, END)).is_nullable

    def steps(self, state: Expression) -> list[Expression]:
        """Return the state behind each set of the alphabet."""
        return [self._past(self._algebra.after(state, code)) for code in self._codes]

    def accepts(self, text: str) -> bool:
        """Return whether a text leads to an end; raise TooLargeError if that takes too long."""
        state, followed = self.start, self._followed
        for character in text:
            step = state.number, character
            found = followed.get(step)
            if found is None:
                if len(followed) >= MAX_STEPS:
                    followed.clear()
                found = followed[step] = self._past(self._algebra.after(state, ord(character)))
            state = found
        is_end = self._ends.get(state.number)
        if is_end is None:
            is_end = self._ends[state.number] = self.is_end(state)
        return is_end

    def is_empty(self) -> bool:
        """Return whether no text leads to an end; raise TooLargeError if that takes too long."""
        seen, waiting = {self.start.number}, [self.start]
        while waiting:
            state = waiting.pop()
            if self.is_end(state):
                return False
            for target in self.steps(state):
                if target.number not in seen:
                    _check(len(seen) < MAX_STATES)
                    seen.add(target.number)
                    waiting.append(target)
        return True

    def regex(self) -> str | None:
        """Return a regex of the engine's dialect that matches these whole texts; None if none."""
        states = {self.start.number: 0}
        waiting = [self.start]
        steps: list[list[int]] = []
        ends: list[bool] = []
        for state in waiting:
            ends.append(self.is_end(state))
            row = []
            for target in self.steps(state):
                if target.number not in states:
                    _check(len(states) < MAX_STATES)
                    states[target.number] = len(states)
                    waiting.append(target)
                row.append(states[target.number])
            steps.append(row)
        blocks = _merged(steps, ends)
        return _Written(self.alphabet, steps, ends, blocks).regex(blocks[0])


def _check(is_small: bool) -> None:
    if not is_small:
        raise TooLargeError(f"the pattern has more than {MAX_STATES} states")


def _alphabet(sets: list[Characters]) -> list[Characters]:
    """Divide all characters into sets: what contains one member of a set contains all."""
    bounds = {0, *(first for first, _ in ALL)}
    for characters in sets:
        for first, last in characters:
            bounds |= {first, last + 1}
    cuts = sorted(bound for bound in bounds if bound >= 0)
    members: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    within: list[int] = []
    changes: dict[int, list[tuple[int, bool]]] = {}
    for index, characters in enumerate(sets):
        for first, last in characters:
            changes.setdefault(first, []).append((index, True))
            changes.setdefault(last + 1, []).append((index, False))
    inside: set[int] = set()
    for cut, following in zip(cuts, [*cuts[1:], ALL[-1][1] + 1], strict=True):
        for index, enters in changes.get(cut, ()):
            (inside.add if enters else inside.discard)(index)
        within = sorted(inside)
        for first, last in ALL:
            low, high = max(cut, first), min(following - 1, last)
            if low <= high:
                members.setdefault(tuple(within), []).append((low, high))
    return [union([tuple(intervals)]) for intervals in members.values()]


def _merged(steps: list[list[int]], ends: list[bool]) -> list[int]:
    """Return for each state the number of its block: those of a block have the same texts."""
    blocks = [int(is_end) for is_end in ends]
    count = len(set(blocks))
    while True:
        kinds: dict[tuple[int, ...], int] = {}
        blocks = [
            kinds.setdefault((block, *(blocks[target] for target in row)), len(kinds))
            for block, row in zip(blocks, steps, strict=True)
        ]
        if len(kinds) == count:
            return blocks
        count = len(kinds)


class _Edge:
    """The way from one state to another: characters, and regexes."""

    __slots__ = ("characters", "texts")

    def __init__(self) -> None:
        self.characters: list[Characters] = []
        self.texts: dict[str, None] = {}

    def written(self) -> str:
        texts = [text for text in self.texts if text]
        if self.characters:
            texts.insert(0, written(union(self.characters)))
        text = texts[0] if len(texts) == 1 else f"(?:{'|'.join(texts)})"
        if "" not in self.texts:
            return text
        return f"(?:{text})?" if texts else ""


class _Written:
    """The regex of an automaton, from which one state after the other is taken."""

    def __init__(
        self,
        alphabet: list[Characters],
        steps: list[list[int]],
        ends: list[bool],
        blocks: list[int],
    ) -> None:
        self._edges: dict[int, dict[int, _Edge]] = {}
        for block, row, is_end in zip(blocks, steps, ends, strict=True):
            if block in self._edges:
                continue
            edges = self._edges[block] = {}
            for characters, target in zip(alphabet, row, strict=True):
                edges.setdefault(blocks[target], _Edge()).characters.append(characters)
            if is_end:
                edges.setdefault(_END, _Edge()).texts[""] = None

    def regex(self, start: int) -> str | None:
        self._drop_dead()
        if start not in self._edges:
            return None
        self._edges[_START] = {start: _Edge()}
        self._edges[_START][start].texts[""] = None
        while len(self._edges) > 1:
            self._take(min(self._edges.keys() - {_START}, key=self._weight))
        return self._edges[_START][_END].written()

    def _drop_dead(self) -> None:
        """Drop the states from which no end is reached."""
        alive = {_END}
        while True:
            more = {
                state
                for state, edges in self._edges.items()
                if state not in alive and not alive.isdisjoint(edges)
            }
            if not more:
                break
            alive |= more
        self._edges = {
            state: {target: edge for target, edge in edges.items() if target in alive}
            for state, edges in self._edges.items()
            if state in alive
        }

    def _weight(self, state: int) -> tuple[int, int]:
        """Return how much longer the regex becomes without a state, about."""
        num_before = sum(state in edges for each, edges in self._edges.items() if each != state)
        size = sum(len(edge.written()) for edge in self._edges[state].values())
        return num_before * size, state

    def _take(self, state: int) -> None:
        """Take a state out: what leads to it leads on to where it leads."""
        edges = self._edges.pop(state)
        own = edges.pop(state, None)
        around = "" if own is None else f"(?:{own.written()})*"
        onward = {target: edge.written() for target, edge in edges.items()}
        for before in self._edges.values():
            edge = before.pop(state, None)
            if edge is None:
                continue
            begin = edge.written() + around
            for target, text in onward.items():
                whole = f"{begin}{text}"
                if len(whole) > MAX_WRITTEN:
                    raise TooLargeError(f"the pattern has more than {MAX_WRITTEN} characters")
                if not around and not edge.texts.keys() - {""} and not edge.characters:
                    joined = before.setdefault(target, _Edge())
                    joined.characters += edges[target].characters
                    joined.texts |= edges[target].texts
                else:
                    before.setdefault(target, _Edge()).texts[whole] = None


_START, _END = -1, -2
