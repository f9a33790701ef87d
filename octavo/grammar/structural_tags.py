"""The translation of structural tags: parts of a text that have a shape, between free text.

Two forms are read: `{"structures": [{"begin", "schema", "end"}], "triggers": [...]}`, and
xgrammar's `{"format": ...}` with nested formats.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn

from octavo.core.structured_outputs import ShapeError
from octavo.grammar import gbnf
from octavo.grammar.protocol import DRAWN
from octavo.grammar.regexes import RegexError, translated

SchemaText = Callable[[Any, str], str]
MAX_DEPTH = 16
MAX_FORMATS = 1024
_ANY = "/(?s:.)*/"


def tags_grammar(tags: Any, schema_text: SchemaText) -> str:
    """Return the grammar of structural tags, in Lark's syntax; raise ShapeError with the path.

    `schema_text` returns a schema at a path as the engine reads it.
    """
    if not isinstance(tags, dict):
        _fail("", "it must be an object")
    if "format" in tags:
        _check_names(tags, "", ("type", "format"))
        return _Writer(schema_text).whole(tags["format"], ".format")
    _check_names(tags, "", ("type", "structures", "triggers"))
    converted = []
    for index, each in enumerate(_list(tags, "structures", "")):
        path = f".structures[{index}]"
        if not isinstance(each, dict):
            _fail(path, "it must be an object")
        _check_names(each, path, ("begin", "schema", "end"))
        schema = {"type": "json_schema", "json_schema": each.get("schema", True)}
        converted.append({"begin": each.get("begin"), "content": schema, "end": each.get("end")})
    legacy = {"type": "triggered_tags", "tags": converted, "triggers": tags.get("triggers")}
    try:
        return _Writer(lambda schema, path: schema_text(schema, _legacy(path))).whole(legacy, "")
    except ShapeError as error:
        raise ShapeError(error.what, error.field, _legacy(error.path)) from None


def _legacy(path: str) -> str:
    """Return a path in the form with structures."""
    return path.replace(".tags[", ".structures[", 1).replace(".content.json_schema", ".schema", 1)


class _Writer:
    """A grammar while its rules are written."""

    def __init__(self, schema_text: SchemaText) -> None:
        self._schema_text = schema_text
        self._rules: list[str] = []
        self._num_formats = 0
        self._depth = 0

    def whole(self, described: Any, path: str) -> str:
        start = self._format(described, path)
        return "\n".join([f"start: {start}", *self._rules]) + "\n"

    def _rule(self, body: str, options: str = "") -> str:
        name = f"part_{len(self._rules)}"
        self._rules.append(f"{name}{options}: {body}")
        return name

    def _format(self, described: Any, path: str) -> str:
        """Return the expression of a format."""
        if not isinstance(described, dict):
            _fail(path, "a format is an object with a type")
        self._num_formats += 1
        if self._num_formats > MAX_FORMATS:
            _fail(path, f"there are more than {MAX_FORMATS} formats")
        kind = described.get("type")
        write = self._writers.get(kind) if isinstance(kind, str) else None
        if write is None:
            _fail(f"{path}.type", f"it must be one of {', '.join(self._writers)}")
        if self._depth == MAX_DEPTH:
            _fail(path, f"formats are nested more than {MAX_DEPTH} deep")
        self._depth += 1
        expression = write(self, described, path)
        self._depth -= 1
        return expression

    def _constant(self, described: dict[str, Any], path: str) -> str:
        _check_names(described, path, ("type", "value"))
        return _quoted(_text(described, "value", path))

    def _schema(self, described: dict[str, Any], path: str) -> str:
        _check_names(described, path, ("type", "json_schema", "style"))
        if described.get("style", "json") != "json":
            _fail(f"{path}.style", "only JSON is written")
        schema = described.get("json_schema", True)
        return f"%json {self._schema_text(schema, f'{path}.json_schema')}"

    def _regex(self, described: dict[str, Any], path: str) -> str:
        _check_names(described, path, ("type", "pattern"))
        try:
            regex = translated(_text(described, "pattern", path), is_whole=True)
        except RegexError as error:
            _fail(f"{path}.pattern", str(error))
        return self._rule(f"/{regex}/")

    def _any_text(self, described: dict[str, Any], path: str) -> str:
        _check_names(described, path, ("type",))
        return self._rule(_ANY)

    def _sequence(self, described: dict[str, Any], path: str) -> str:
        _check_names(described, path, ("type", "elements"))
        parts = _list(described, "elements", path)
        for index, each in enumerate(parts[:-1]):
            if isinstance(each, dict) and each.get("type") in ("any_text", "triggered_tags"):
                _fail(f"{path}.elements[{index}]", "it has no end, so that nothing can follow it")
        written = [self._format(each, f"{path}.elements[{i}]") for i, each in enumerate(parts)]
        return f"({' '.join(written)})"

    def _either(self, described: dict[str, Any], path: str) -> str:
        _check_names(described, path, ("type", "elements"))
        parts = _list(described, "elements", path)
        written = [self._format(each, f"{path}.elements[{i}]") for i, each in enumerate(parts)]
        return f"({' | '.join(written)})"

    def _tag(self, described: dict[str, Any], path: str) -> str:
        _check_names(described, path, ("type", "begin", "content", "end"))
        begin = _text(described, "begin", path)
        return f"({_quoted(begin)} {self._content(described, path)})"

    def _content(self, described: dict[str, Any], path: str) -> str:
        """Return what follows the beginning of a tag."""
        end = _text(described, "end", path, may_be_empty=True)
        content = described.get("content")
        if isinstance(content, dict) and content.get("type") == "any_text" and end:
            _check_names(content, f"{path}.content", ("type",))
            return self._rule(f"{_ANY} {_quoted(end)}", "[lazy]")
        return f"{self._format(content, f'{path}.content')} {_quoted(end) if end else ''}"

    def _triggered(self, described: dict[str, Any], path: str) -> str:
        """Return free text in which each trigger begins one of the tags."""
        names = ("type", "tags", "triggers", "at_least_one", "stop_after_first")
        _check_names(described, path, names)
        triggers = _list(described, "triggers", path)
        if not all(isinstance(each, str) and each for each in triggers):
            _fail(f"{path}.triggers", "each must be text that is not empty")
        calls = []
        for index, tag in enumerate(_list(described, "tags", path)):
            where = f"{path}.tags[{index}]"
            if not isinstance(tag, dict):
                _fail(where, "it must be an object")
            _check_names(tag, where, ("type", "begin", "content", "end"))
            begin = _text(tag, "begin", where)
            trigger = next((each for each in triggers if begin.startswith(each)), None)
            if trigger is None:
                _fail(f"{where}.begin", "it begins with none of the triggers")
            head = self._rule(f"{_ANY} {_quoted(trigger)}", "[lazy]")
            rest = begin[len(trigger) :]
            parts = (head, _quoted(rest) if rest else "", self._content(tag, where))
            calls.append(self._rule(" ".join(filter(None, parts))))
        is_needed = _switch(described, "at_least_one", path)
        either = f"({' | '.join(calls)})"
        tail = self._rule(_ANY)
        if _switch(described, "stop_after_first", path):
            return either if is_needed else f"({either} | {tail})"
        return f"({either}{'+' if is_needed else '*'} {tail})"

    def _separated(self, described: dict[str, Any], path: str) -> str:
        names = ("type", "tags", "separator", "at_least_one", "stop_after_first")
        _check_names(described, path, names)
        tags = _list(described, "tags", path)
        written = [
            self._tag(each, f"{path}.tags[{index}]")
            if isinstance(each, dict)
            else _fail(f"{path}.tags[{index}]", "it must be an object")
            for index, each in enumerate(tags)
        ]
        either = f"({' | '.join(written)})"
        separator = _text(described, "separator", path, may_be_empty=True)
        if not _switch(described, "stop_after_first", path):
            either = f"({either} ({_quoted(separator) if separator else ''} {either})*)"
        return either if _switch(described, "at_least_one", path) else f"({either})?"

    def _grammar(self, described: dict[str, Any], path: str) -> str:
        _check_names(described, path, ("type", "grammar"))
        try:
            written = gbnf.to_lark(_text(described, "grammar", path))
        except gbnf.GbnfError as error:
            _fail(f"{path}.grammar", f"it is no GBNF: {error}")
        if len(self._writers) and any(rule.startswith("rule_") for rule in self._rules):
            _fail(path, "there is more than one grammar")
        first, *rules = written.splitlines()
        self._rules += [*rules, DRAWN]
        return first.removeprefix("start: ")

    _writers: dict[str, Callable[[_Writer, dict[str, Any], str], str]] = {  # noqa: RUF012
        "const_string": _constant,
        "json_schema": _schema,
        "regex": _regex,
        "grammar": _grammar,
        "any_text": _any_text,
        "sequence": _sequence,
        "or": _either,
        "tag": _tag,
        "triggered_tags": _triggered,
        "tags_with_separator": _separated,
    }


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _list(described: dict[str, Any], name: str, path: str) -> list[Any]:
    value = described.get(name)
    if not isinstance(value, list) or not value:
        _fail(f"{path}.{name}", "it must be a list that is not empty")
    return value


def _text(described: dict[str, Any], name: str, path: str, *, may_be_empty: bool = False) -> str:
    value = described.get(name)
    if not isinstance(value, str) or not (value or may_be_empty):
        _fail(f"{path}.{name}", "it must be text" if may_be_empty else "it must be text, not empty")
    return value


def _switch(described: dict[str, Any], name: str, path: str) -> bool:
    value = described.get(name, False)
    if not isinstance(value, bool):
        _fail(f"{path}.{name}", "it must be true or false")
    return value


def _check_names(described: dict[str, Any], path: str, known: tuple[str, ...]) -> None:
    for name in described:
        if name not in known:
            _fail(f"{path}.{name[:64]}", f"it is unknown; known are {', '.join(known)}")


def _fail(path: str, what: str) -> NoReturn:
    raise ShapeError(what, "structural_tag", path)
