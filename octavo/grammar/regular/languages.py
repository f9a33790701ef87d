"""The reading of a regex in the engine's dialect as an expression, assertions included.

What is read is the language of the texts in which the regex is found, between a begin and an end.
An assertion, such as `(?!x)`, becomes a character of its own, beside which the expression demands
what is asserted: about what follows each of these characters, or what precedes it.
"""

from __future__ import annotations

import re

from octavo.grammar.regular.automata import Automaton
from octavo.grammar.regular.characters import ALL, Characters, named, others, union
from octavo.grammar.regular.expressions import (
    BEGIN,
    END,
    FIRST_ASSERTION,
    Algebra,
    Expression,
    TooLargeError,
)

MAX_ASSERTIONS = 8
_ASSERTIONS = {"(?=": (True, True), "(?!": (True, False), "(?<=": (False, True)} | {
    "(?<!": (False, False)
}
_ASSERTION = re.compile(r"\(\?<?[=!]|\\[bB]")
_GROUP = re.compile(r"\(\?(?:P?<\w+>|s?:)|\((?!\?)")
_COUNT = re.compile(r"\{(\d+)(,(\d*))?\}")
_HEX = re.compile(r"\\(?:x([0-9A-F]{2})|u\{([0-9A-F]{1,6})\})")
_NAMED = {r"\w": r"\w", r"\s": r"\s", r"\p{Nd}": r"\d"}
_NEGATED = {r"\W": r"\w", r"\P{Nd}": r"\d"}
_ESCAPES = {"t": 9, "n": 10, "r": 13, "f": 12}
# Letters beyond ASCII are part of a word in one dialect and not in another.
_IN_WORD: Characters = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_MAY_BE_IN_WORD: Characters = union([_IN_WORD, ((0x80, ALL[-1][1]),)])
_MARKS: Characters = ((FIRST_ASSERTION - MAX_ASSERTIONS + 1, FIRST_ASSERTION),)


class UnreadableError(ValueError):
    """A regex whose language is not computed, with the reason."""


class Language:
    """The texts in which a regex is found, in an algebra that several of them share."""

    def __init__(
        self, algebra: Algebra, regex: str, *, is_whole: bool = False, widens: bool = False
    ) -> None:
        reader = _Reader(algebra, regex, widens)
        found = reader.read()
        self.num_assertions = len(reader.asserted)
        anything = algebra.repeat(algebra.one_of(ALL), 0, None)
        begin, end = (algebra.one_of(((code, code),)) for code in (BEGIN, END))
        framed = algebra.sequence([begin, anything, end])
        if is_whole:
            found = algebra.sequence([begin, found, end])
        else:
            found = algebra.sequence([algebra.any_text, found, algebra.any_text])
        if self.num_assertions:
            framed = algebra.blind(framed)
        self.expression = algebra.all_of([framed, found, *reader.asserted.values()])


def reads(regex: str) -> bool:
    """Return whether a regex in the engine's dialect has assertions."""
    return _assertion_in(regex, 0) is not None


def _assertion_in(regex: str, at: int) -> int | None:
    while at < len(regex):
        if _ASSERTION.match(regex, at):
            return at
        at += 2 if regex[at] == "\\" else 1
    return None


def without_assertions(regex: str, *, is_whole: bool, is_single: bool = False) -> list[str]:
    """Return regexes without assertions; a text that matches all of them matches the given one.

    An assertion at the beginning of the text becomes a regex of its own, unless the result must be
    a single one.
    """
    if not reads(regex):
        return [regex]
    frame = "{}" if is_whole else "^{}$"
    is_at_begin = regex.startswith("^")
    rest = regex[1:] if is_at_begin else regex
    parts: list[str] = []
    if (is_at_begin or is_whole) and not is_single and not _has_alternatives(rest):
        while (found := _ASSERTION.match(rest)) and found[0] in ("(?=", "(?!"):
            end = _end_of_group(rest)
            inner = rest[found.end() : end - 1]
            if reads(inner) or rest[end : end + 1] in ("?", "*", "+", "{"):
                break
            first, negates = f"^(?:{inner})", found[0] == "(?!"
            if negates or is_whole:
                first = frame.format(_computed(first, negates=negates))
            parts.append(first)
            rest = rest[end:]
        rest = f"^{rest}" if is_at_begin else rest
    else:
        rest = regex
    if reads(rest):
        rest = frame.format(_computed(rest, is_whole=is_whole))
    return [*parts, rest]


def _computed(regex: str, *, is_whole: bool = False, negates: bool = False) -> str:
    """Return the regex of the whole texts that a regex with assertions describes, or does not."""
    algebra = Algebra()
    language = Language(algebra, regex, is_whole=is_whole, widens=negates)
    root = language.expression
    if negates:
        root = outside(algebra, root)
    written = Automaton(algebra, root, language.num_assertions).regex()
    if written is None:
        raise UnreadableError("no text matches it")
    return f"(?:{written})"


def outside(algebra: Algebra, expression: Expression) -> Expression:
    """Return the framed texts that are not in a language."""
    anything = algebra.repeat(algebra.one_of(ALL), 0, None)
    begin, end = (algebra.one_of(((code, code),)) for code in (BEGIN, END))
    framed = algebra.sequence([begin, anything, end])
    return algebra.all_of([framed, algebra.opposite(expression)])


def _has_alternatives(regex: str) -> bool:
    """Return whether a regex has alternatives outside all groups."""
    depth = at = 0
    while at < len(regex):
        each = regex[at]
        if each == "[":
            at = _end_of_class(regex, at) - 1
        depth += (each == "(") - (each == ")")
        if each == "|" and not depth:
            return True
        at += 2 if each == "\\" else 1
    return False


def _end_of_group(regex: str) -> int:
    """Return the place behind the group with which a regex begins."""
    depth = at = 0
    while True:
        each = regex[at]
        if each == "[":
            at = _end_of_class(regex, at) - 1
        depth += (each == "(") - (each == ")")
        at += 2 if each == "\\" else 1
        if not depth:
            return at


def _end_of_class(regex: str, at: int) -> int:
    at += 1
    while regex[at] != "]":
        at += 2 if regex[at] == "\\" else 1
    return at + 1


class _Reader:
    """A translated regex while it is read; all that is not in the dialect was refused before."""

    def __init__(self, algebra: Algebra, regex: str, widens: bool) -> None:
        self.asserted: dict[int, Expression] = {}  # what the text around each assertion must be
        self._algebra = algebra
        self._regex = regex
        self._widens = widens
        self._at = 0
        self._is_within = False  # an assertion

    def read(self) -> Expression:
        return self._alternatives()

    def _alternatives(self) -> Expression:
        """Read up to the end of a group."""
        options: list[Expression] = []
        parts: list[Expression] = []
        while self._at < len(self._regex) and self._regex[self._at] != ")":
            if self._regex[self._at] == "|":
                self._at += 1
                options.append(self._algebra.sequence(parts))
                parts = []
            else:
                parts.append(self._repeated(self._one()))
        return self._algebra.any_of([*options, self._algebra.sequence(parts)])

    def _repeated(self, part: Expression) -> Expression:
        while self._at < len(self._regex):
            each = self._regex[self._at]
            if each in "?*+":
                self._at += 1
                least, most = int(each == "+"), 1 if each == "?" else None
            elif each == "{" and (count := _COUNT.match(self._regex, self._at)):
                self._at = count.end()
                least = int(count[1])
                most = (int(count[3]) if count[3] else None) if count[2] else least
            else:
                break
            part = self._algebra.repeat(part, least, most)
        return part

    def _one(self) -> Expression:
        regex, at, algebra = self._regex, self._at, self._algebra
        each = regex[at]
        if found := _ASSERTION.match(regex, at):
            return self._assertion(found[0])
        if each == "(":
            group = _GROUP.match(regex, at)
            if group is None:
                raise UnreadableError(f"{regex[at : at + 4]} stands beside an assertion")
            self._at = group.end()
            inner = self._alternatives()
            self._at += 1
            return inner
        if each == "^":
            self._at += 1
            return algebra.one_of(((BEGIN, BEGIN),))
        if each == "$":
            self._at += 1
            end = algebra.one_of(((END, END),))
            # In Python, an end may stand before the last line break.
            line = algebra.one_of(((10, 10),))
            return algebra.sequence([algebra.repeat(line, 0, int(self._widens)), end])
        if each == ".":  # it stands in (?s:.) alone
            self._at += 1
            return algebra.one_of(ALL)
        return algebra.one_of(self._class() if each == "[" else self._character())

    def _assertion(self, opening: str) -> Expression:
        """Read an assertion; return the character that stands for it."""
        if self._is_within or len(self.asserted) == MAX_ASSERTIONS:
            raise UnreadableError("there are assertions within others, or more than 8 of them")
        algebra = self._algebra
        code = FIRST_ASSERTION - len(self.asserted)
        mark = algebra.one_of(((code, code),))
        everything = algebra.repeat(algebra.one_of(union([algebra.of_any_text, _MARKS])), 0, None)
        self._at += len(opening)
        if opening[0] == "\\":
            wrong = self._beside_no_boundary(mark, everything, is_boundary=opening[1] == "b")
            self.asserted[code] = algebra.opposite(wrong)
            return mark
        is_ahead, is_so = _ASSERTIONS[opening]
        self._is_within, widened = True, self._widens
        self._widens ^= not is_so
        inner = self._alternatives()
        self._is_within, self._widens = False, widened
        self._at += 1
        around = algebra.any_text
        parts = [inner, around] if is_ahead else [around, inner]
        beside = algebra.blind(algebra.sequence(parts))
        wrong = algebra.opposite(beside) if is_so else beside
        places = [everything, mark, wrong] if is_ahead else [wrong, mark, everything]
        self.asserted[code] = algebra.opposite(algebra.sequence(places))
        return mark

    def _beside_no_boundary(
        self, mark: Expression, everything: Expression, *, is_boundary: bool
    ) -> Expression:
        """Return the texts in which the mark stands at no boundary of a word, or at one."""
        algebra = self._algebra
        word, maybe = algebra.one_of(_IN_WORD), algebra.one_of(_MAY_BE_IN_WORD)
        left = [algebra.blind(algebra.sequence([algebra.any_text, each])) for each in (word, maybe)]
        right = [
            algebra.blind(algebra.sequence([each, algebra.any_text])) for each in (word, maybe)
        ]
        behind = [left[0], algebra.opposite(left[1])]  # certainly a word, and certainly none
        before = [right[0], algebra.opposite(right[1])]
        if is_boundary:
            before.reverse()
        if self._widens:
            before.reverse()
            rights = before
        else:
            rights = [algebra.opposite(each) for each in before]
        wrong = [
            algebra.sequence([one, mark, other]) for one, other in zip(behind, rights, strict=True)
        ]
        if not self._widens:
            unknown = algebra.all_of([algebra.opposite(each) for each in behind])
            wrong.append(algebra.sequence([unknown, mark, everything]))
        return algebra.any_of(wrong)

    def _character(self) -> Characters:
        """Read a character, or an escape that stands for several."""
        regex, at = self._regex, self._at
        if regex[at] != "\\":
            self._at += 1
            return ((ord(regex[at]), ord(regex[at])),)
        if found := _HEX.match(regex, at):
            self._at = found.end()
            code = int(found[1] or found[2], 16)
            return ((code, code),)
        for names, is_inside in ((_NAMED, True), (_NEGATED, False)):
            for name, escape in names.items():
                if regex.startswith(name, at):
                    self._at += len(name)
                    return named(escape) if is_inside else others(named(escape))
        letter = regex[at + 1]
        if letter.isalpha() and letter not in _ESCAPES:
            raise UnreadableError(f"\\{letter} stands beside an assertion")
        self._at += 2
        code = _ESCAPES.get(letter, ord(letter))
        return ((code, code),)

    def _class(self) -> Characters:
        regex = self._regex
        is_negated = regex.startswith("[^", self._at)
        self._at += 2 if is_negated else 1
        parts: list[Characters] = []
        while regex[self._at] != "]":
            first = self._character()
            if regex[self._at] == "-" and regex[self._at + 1] != "]":
                self._at += 1
                last = self._character()
                first = ((first[0][0], last[0][0]),)
            parts.append(first)
        self._at += 1
        inside = union(parts)
        return others(inside) if is_negated else others(others(inside))


__all__ = ["Language", "TooLargeError", "UnreadableError", "outside", "without_assertions"]
