"""The translation of llama.cpp's grammars (GBNF) into Lark's syntax.

A rule that refers to no rule with recursion is regular: it becomes a terminal, which the grammar
engine matches as one regex. So does each run of regular parts within another rule.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from octavo.grammar.regexes import literal

ROOT = "root"
MAX_DEPTH = 64  # of groups within groups
MAX_COUNT = 1 << 16  # of repetitions
_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE_IN_LINE = re.compile(r"(?:[ \t]|#[^\n]*)*")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_COUNT = re.compile(r"\{\s*(\d{1,9})\s*(?:(,)\s*(\d{1,9})?\s*)?\}")
_TOKEN = re.compile(r"<\[[0-9]+\]>")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
_CODES = {"x": 2, "u": 4, "U": 8}


class GbnfError(ValueError):
    """A grammar that is not GBNF, with the line where that shows."""


@dataclass(frozen=True, slots=True)
class _Text:
    """A text in quotes, a class of characters or a token, as Lark writes it."""

    lark: str
    is_token: bool = False


@dataclass(frozen=True, slots=True)
class _Rule:
    """A reference to a rule."""

    name: str


@dataclass(frozen=True, slots=True)
class _Repeat:
    """A part and how often it may come."""

    part: _Part
    suffix: str


@dataclass(frozen=True, slots=True)
class _Either:
    """Alternatives, each a sequence of parts."""

    options: tuple[tuple[_Part, ...], ...]


_Part = _Text | _Rule | _Repeat | _Either


def to_lark(text: str) -> str:
    """Return the grammar in Lark's syntax; raise GbnfError if it is not GBNF."""
    rules = _Reader(text).read()
    if ROOT not in rules:
        raise GbnfError(f"there is no rule {ROOT!r}, with which a text begins")
    for rule in rules.values():
        for name in _names(rule):
            if name not in rules:
                raise GbnfError(f"rule {name!r} is not defined")
    return _Writer(rules).write()


class _Reader:
    """A grammar while it is read from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def read(self) -> dict[str, _Either]:
        rules: dict[str, _Either] = {}
        self._skip(_SPACE)
        while self._at < len(self._text):
            name = self._take(_NAME, "the name of a rule")[0]
            self._skip(_SPACE_IN_LINE)
            if not self._text.startswith("::=", self._at):
                raise self._error(f"::= is missing behind {name!r}")
            self._at += 3
            self._skip(_SPACE)
            if name in rules:
                raise self._error(f"rule {name!r} is defined twice")
            rules[name] = self._either()
            if self._at < len(self._text) and self._text[self._at] not in "\r\n":
                raise self._error(f"{self._text[self._at]!r} belongs to nothing")
            self._skip(_SPACE)
        return rules

    def _either(self) -> _Either:
        space = _SPACE if self._depth else _SPACE_IN_LINE
        options = []
        while True:
            parts: list[_Part] = []
            while (part := self._part()) is not None:
                self._skip(space)
                parts.append(self._repeated(part))
                self._skip(space)
            options.append(tuple(parts))
            if not self._text.startswith("|", self._at):
                return _Either(tuple(options))
            self._at += 1
            self._skip(_SPACE)

    def _part(self) -> _Part | None:
        """Read one part without its repetition; return None at the end of a sequence."""
        each = self._text[self._at : self._at + 1]
        if each == '"':
            return self._quoted()
        if each == "[":
            return self._class()
        if each == ".":
            self._at += 1
            return _Text("/(?s:.)/")
        if each == "<":
            return _Text(self._take(_TOKEN, "a token's number, as in <[1000]>")[0], is_token=True)
        if each == "(":
            if self._depth == MAX_DEPTH:
                raise self._error(f"groups are nested more than {MAX_DEPTH} deep")
            self._depth += 1
            self._at += 1
            self._skip(_SPACE)
            group = self._either()
            if not self._text.startswith(")", self._at):
                raise self._error("a ) is missing")
            self._at += 1
            self._depth -= 1
            return group
        if found := _NAME.match(self._text, self._at):
            self._at = found.end()
            return _Rule(found[0])
        return None

    def _repeated(self, part: _Part) -> _Part:
        """Read the repetitions behind a part."""
        each = self._text[self._at : self._at + 1]
        if each and each in "*+?":
            self._at += 1
            return _Repeat(part, each)
        if each != "{":
            return part
        found = self._take(_COUNT, "numbers of repetitions, as in {1,3}")
        least, most = int(found[1]), int(found[3] or found[1])
        if max(least, most) > MAX_COUNT:
            raise self._error(f"{found[0]} repeats more often than {MAX_COUNT} times")
        if most < least:
            raise self._error(f"{found[0]} counts backwards")
        if found[2] and not found[3]:
            return _Repeat(part, f"{{{least},}}")
        return _Repeat(part, f"{{{least},{most}}}")

    def _quoted(self) -> _Text:
        self._at += 1
        parts = []
        while (each := self._character()) != '"':
            parts.append(each.removeprefix("\\") if len(each) > 1 else each)
        return _Text(json.dumps("".join(parts), ensure_ascii=False))

    def _class(self) -> _Text:
        is_negated = self._text.startswith("[^", self._at)
        self._at += 2 if is_negated else 1
        parts = []
        while (first := self._character()) != "]":
            part = literal(first[-1])
            if self._text.startswith("-", self._at) and self._text[self._at + 1 :][:1] != "]":
                self._at += 1
                last = self._character()[-1]
                if last < first[-1]:
                    raise self._error(f"the range {first[-1]}-{last} is backwards")
                part = f"{part}-{literal(last)}"
            parts.append(part)
        if not parts:
            return _Text("/(?s:.)/" if is_negated else '""')
        return _Text(f"/[{'^' if is_negated else ''}{''.join(parts)}]/")

    def _character(self) -> str:
        """Read a character; one that is escaped comes with a backslash before it."""
        each = self._text[self._at : self._at + 1]
        if not each or each == "\n":
            raise self._error("a quote or a bracket is not closed in its line")
        self._at += 1
        if each != "\\":
            return each
        letter = self._text[self._at : self._at + 1]
        self._at += 1
        if letter in _ESCAPES and letter:
            return "\\" + _ESCAPES[letter]
        digits = self._text[self._at : self._at + _CODES.get(letter, 0)]
        if letter not in _CODES or not re.fullmatch("[0-9A-Fa-f]+", digits):
            raise self._error(f"\\{letter} is no known escape")
        self._at += len(digits)
        code = int(digits, 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000 or len(digits) < _CODES[letter]:
            raise self._error(f"\\{letter}{digits} is no character")
        return "\\" + chr(code)

    def _take(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise self._error(f"expected {what}")
        self._at = found.end()
        return found

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self._text, self._at)
        assert found is not None, "space may be empty"
        self._at = found.end()

    def _error(self, what: str) -> GbnfError:
        return GbnfError(f"line {self._text.count(chr(10), 0, self._at) + 1}: {what}")


class _Writer:
    """A grammar while it is written in Lark's syntax."""

    def __init__(self, rules: Mapping[str, _Either]) -> None:
        self._rules = rules
        self._regular = _regular(rules)
        self._names = {
            name: f"T{index}" if name in self._regular else f"rule_{index}"
            for index, name in enumerate(rules)
        }
        self._runs: dict[tuple[_Part, ...], str] = {}  # regular parts within other rules, by name

    def write(self) -> str:
        lines = [f"start: {self._names[ROOT]}"]
        for name, rule in self._rules.items():
            lines.append(f"{self._names[name]}: {self._options(rule, name in self._regular)}")
        lines += [f"{name}: {self._sequence(run)}" for run, name in self._runs.items()]
        return "\n".join(lines) + "\n"

    def _options(self, either: _Either, is_terminal: bool) -> str:
        write = self._sequence if is_terminal else self._mixed
        return " | ".join(write(option) or '""' for option in either.options)

    def _mixed(self, parts: tuple[_Part, ...]) -> str:
        """Write a sequence of a rule; runs of regular parts become terminals of their own."""
        written: list[str] = []
        run: list[_Part] = []
        for part in (*parts, None):
            if part is not None and self._is_regular(part):
                run.append(part)
                continue
            if run:
                written.append(self._run(tuple(run)))
                run = []
            if part is not None:
                written.append(self._one(part, is_terminal=False))
        return " ".join(written)

    def _run(self, run: tuple[_Part, ...]) -> str:
        if len(run) == 1 and isinstance(run[0], _Text | _Rule):
            return self._one(run[0], is_terminal=True)
        return self._runs.setdefault(run, f"R{len(self._runs)}")

    def _sequence(self, parts: tuple[_Part, ...]) -> str:
        return " ".join(self._one(part, is_terminal=True) for part in parts)

    def _one(self, part: _Part, *, is_terminal: bool) -> str:
        match part:
            case _Text():
                return part.lark
            case _Rule():
                return self._names[part.name]
            case _Repeat():
                return f"({self._one(part.part, is_terminal=is_terminal)}){part.suffix}"
            case _Either():
                return f"({self._options(part, is_terminal)})"

    def _is_regular(self, part: _Part) -> bool:
        if isinstance(part, _Text):
            return not part.is_token
        either = part if isinstance(part, _Either) else _Either(((part,),))
        return not _has_tokens(either) and all(name in self._regular for name in _names(either))


def _regular(rules: Mapping[str, _Either]) -> set[str]:
    """Return the rules that refer, directly or not, to no rule that refers to itself."""
    regular: set[str] = set()
    users: dict[str, list[str]] = {name: [] for name in rules}
    missing: dict[str, int] = {}
    for name, rule in rules.items():
        used = set(_names(rule))
        missing[name] = len(used) + _has_tokens(rule)
        for each in used:
            users[each].append(name)
    ready = [name for name, count in missing.items() if not count]
    while ready:
        name = ready.pop()
        regular.add(name)
        for user in users[name]:
            missing[user] -= 1
            if not missing[user]:
                ready.append(user)
    return regular


def _has_tokens(either: _Either) -> bool:
    return any(isinstance(part, _Text) and part.is_token for part in _parts(either))


def _names(either: _Either) -> Iterable[str]:
    """Yield the rules that a part refers to."""
    for part in _parts(either):
        if isinstance(part, _Rule):
            yield part.name


def _parts(either: _Either) -> Iterable[_Part]:
    """Yield all parts, at any depth."""
    waiting: list[_Part] = [either]
    while waiting:
        part = waiting.pop()
        yield part
        if isinstance(part, _Repeat):
            waiting.append(part.part)
        elif isinstance(part, _Either):
            waiting += [each for option in part.options for each in option]
