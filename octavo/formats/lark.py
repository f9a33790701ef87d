"""Parts of grammars in llguidance's Lark syntax, for one vocabulary."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from octavo.formats.protocol import Tool

_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()|/^$]|[^\\\[()|/^$]+", re.DOTALL)
_SLASH = re.compile(r"\\.|/", re.DOTALL)
_ANY = "(?s:.*)"
# White space that a grammar allows in arguments: as models write them, so that text is forced.
_SEPARATORS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Lark:
    """A grammar in the making: its rules, and how a mark is written in it."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        """Write texts that are added tokens of the model, by their ids, as those tokens."""
        self._tokens = tokens
        self._rules: dict[str, str] = {}
        self._terminals: dict[str, str] = {}  # names by expression
        self._subjects: dict[int, tuple[object, str]] = {}  # with their rules, by identity
        longest_first = sorted(tokens, key=lambda text: -len(text))
        self._added = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def text(self, text: str) -> str:
        """Return the expression for a literal text; "" for an empty one."""
        parts, at = [], 0
        for found in self._added.finditer(text):
            parts += [quoted(text[at : found.start()]), f"<[{self._tokens[found.group()]}]>"]
            at = found.end()
        parts.append(quoted(text[at:]))
        return " ".join(part for part in parts if part)

    def any(self) -> str:
        """Return the expression for any text."""
        return self.terminal(ANY)

    def until(self, end: str, without: str = "") -> str:
        """Return the expression for any text up to `end`, which is read with it.

        Before that the text does not contain `without`, if that is given.
        """
        return self._up_to(["(?s:.*)"], end, without=without)

    def without(self, *marks: str) -> str:
        """Return the expression for any text that contains none of the marks."""
        spelled = [mark for mark in marks if mark and not self._added.search(mark)]
        return self.terminal(" & ".join([ANY, *map(_lacking, spelled)]))

    def string_until(
        self, schema: Mapping[str, Any], end: str, except_types: Collection[str] = ()
    ) -> str:
        """Return the expression for a string that is written without quotes, and its end.

        An enumeration, patterns and lengths of the schema are enforced. Text that begins
        like a list or an object is left out if `except_types` has that type.
        """
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        strings = [one for one in values if isinstance(one, str)] if values else []
        if strings:
            alternatives = " | ".join(self.text(value) or '""' for value in strings)
            return f"({alternatives}) {self.text(end)}"
        jsons = [_OPENINGS[name] for name in sorted(except_types) if name in _OPENINGS]
        return self._up_to(_conditions(schema) or ["(?s:.*)"], end, jsons)

    def _up_to(
        self, conditions: list[str], end: str, exceptions: Sequence[str] = (), without: str = ""
    ) -> str:
        """Return the expression for what all regular expressions match, without `end`, and `end`.

        What begins, behind space, with one of the `exceptions`, or contains `without`, is left out.
        White space before the mark in `end` is required, but a parser ends at the mark alone.
        """
        found = self._added.search(end)
        if found:  # a token ends the text: nothing else can
            before = _literal(end[: found.start()])
            parts = [f"/{each}{before}/" for each in conditions]
            parts += [rf"~/[\s\x1C-\x1F]*{each}(?s:.*)/" for each in exceptions]
            parts += [_lacking(without)] if without else []
            body = self.terminal(" & ".join(parts))
            return f"{body} {self.text(end[found.start() :])}"
        mark = _literal(end.strip())
        before = _literal(end[: end.index(end.strip())])
        parts = [f"/{each}{before}{mark}/" for each in conditions]
        parts += [rf"~/[\s\x1C-\x1F]*{each}(?s:.*)/" for each in exceptions]
        parts += [_lacking(without)] if without else []
        body = self.terminal(f"{' & '.join(parts)} & ~/(?s:.*){mark}(?s:.+)/")
        return f"{body} {quoted(end[len(end.rstrip()) :])}"

    def sequence(
        self, members: dict[str, str], required: Collection[str], separator: str = ", "
    ) -> str:
        """Return the expression for members in this order, of which some may be left out."""
        between = self.text(separator)
        rest, after = '""', '""'  # behind nothing, and behind another member
        for key in reversed(list(members)):
            member = members[key]
            with_key = f"{member} {after}"
            if key in required:
                rest, after = with_key, f"{between} {with_key}"
            else:
                rest, after = f"({with_key} | {rest})", f"({between} {with_key} | {after})"
            rest, after = self._add("members", rest), self._add("members", after)
        return rest

    def arguments(self, tool: Tool) -> str:
        """Return the expression for a tool's arguments as JSON."""
        schema = dict(tool.parameters or {})
        schema.setdefault("type", "object")
        return self.json(schema)

    def json(self, schema: Mapping[str, Any]) -> str:
        """Return the expression for a JSON value with this schema."""
        return f"%json {json.dumps({**schema, 'x-guidance': _SEPARATORS})}"

    def rule(self, name: str, expression: str) -> str:
        """Add a rule, unless it is there; return its name."""
        self._rules.setdefault(name, expression)
        return name

    def once(self, subject: object, make: Callable[[], str]) -> str:
        """Return the name of the rule for a subject, which is made if it is not there yet.

        The rule may refer to itself.
        """
        if id(subject) not in self._subjects:
            name = self._add("part", "")
            self._subjects[id(subject)] = (subject, name)
            self._rules[name] = make()
        return self._subjects[id(subject)][1]

    def terminal(self, expression: str) -> str:
        """Add a terminal, unless it is there; return its name."""
        if expression not in self._terminals:
            self._terminals[expression] = self._add("T", expression)
        return self._terminals[expression]

    def _add(self, prefix: str, expression: str) -> str:
        """Add a rule under a new name; return the name."""
        name = f"{prefix}_{len(self._rules)}"
        self._rules[name] = expression
        return name

    def finish(self, start: str) -> str:
        """Return the whole grammar."""
        rules = {"start": start, **self._rules}
        return "".join(f"{name}: {expression}\n" for name, expression in rules.items())


ANY = r"/(?s:.*)/"
_OPENINGS = {"array": r"\[", "object": r"\{"}


def quoted(text: str) -> str:
    """Return a literal of the grammar; "" for an empty text."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def _conditions(schema: Mapping[str, Any]) -> list[str]:
    """Return regular expressions for a string's patterns and lengths."""
    found = []
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        found.append(whole(pattern))
    fewest, most = schema.get("minLength", 0), schema.get("maxLength", "")
    if fewest or most != "":
        found.append(f"(?s:.{{{fewest},{most}}})")
    for part in schema.get("allOf") or ():
        found += _conditions(part)
    return found


def _lacking(mark: str) -> str:
    """Return the part of a terminal that forbids texts with a mark."""
    return f"~/(?s:.*){_literal(mark)}(?s:.*)/"


def _literal(text: str) -> str:
    """Return a regular expression for a literal text."""
    return re.escape(text).replace("/", r"\/").replace("\n", "n")


def whole(regex: str) -> str:
    """Return the regex of all texts in which a place matches, as it stands between slashes."""
    branches = []
    for branch in _branches([_escaped(piece) for piece in _PIECE.findall(regex)]):
        inner = _without_group(branch)
        if inner is not None:  # whose alternatives may have anchors of their own
            branches.append(whole(inner))
            continue
        head = "" if branch[:1] == ["^"] else _ANY
        tail = "" if branch[-1:] == ["$"] else _ANY
        body = "".join(branch[not head : len(branch) - (not tail)])
        branches.append(f"{head}(?:{body}){tail}")
    return f"(?:{'|'.join(branches)})"


def _escaped(piece: str) -> str:
    """Return a piece in which slashes are escaped."""
    return _SLASH.sub(lambda found: r"\/" if found[0] == "/" else found[0], piece)


def _branches(pieces: list[str]) -> Iterator[list[str]]:
    """Yield the alternatives that stand in no group."""
    depth, branch = 0, list[str]()
    for piece in pieces:
        depth += (piece == "(") - (piece == ")")
        if piece == "|" and not depth:
            yield branch
            branch = []
        else:
            branch.append(piece)
    yield branch


def _without_group(branch: list[str]) -> str | None:
    """Return what is in the group that is all of an alternative; None if there is no such group."""
    if branch[:1] != ["("] or branch[-1] != ")":
        return None
    depth = 0
    for piece in branch[:-1]:
        depth += (piece == "(") - (piece == ")")
        if not depth:
            return None
    inner = "".join(branch[1:-1])
    if inner.startswith("?") and not inner.startswith("?:"):
        return None  # it has a name, or flags
    return inner.removeprefix("?:")
