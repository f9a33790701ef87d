"""The part of YAML that files of options use, read as YAML 1.1 reads it; all else is refused.

There are maps and lists in blocks or in brackets, texts with or without quotes, numbers, true and
false, null, and comments. Tags, anchors, texts of several lines and further documents are refused
with the line, and so are plain texts that some readers take for dates, octal numbers or times.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **{form: True for word in ("yes", "true", "on") for form in (word, word.title(), word.upper())},
    **{
        form: False
        for word in ("no", "false", "off")
        for form in (word, word.title(), word.upper())
    },
}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?[0-9]+\.[0-9]*([eE][-+][0-9]+)?")
_ADDRESS = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}")  # which no reader takes for a number
_AMBIGUOUS = re.compile(r"[-+]?\.?[0-9][0-9_,:.xobeE+-]*|[-+]?\.(inf|nan)", re.IGNORECASE)
_MARKS = "&*!|>%@`"  # at the beginning of a text
_KEY = re.compile(r"(?P<key>\w([\w .-]*[\w.-])?|'[^']*'|\"[^\"\\]*\"):(?P<rest>| .*)")
_MOST_DEEP = 16


class YamlError(ValueError):
    """An error for a text that is not of this form; it names the line."""


class _Line(NamedTuple):
    number: int
    indent: int
    text: str  # without its comment and the spaces around it


def read(text: str) -> Any:
    """Return the value of a text: a map, a list, or None if it is empty."""
    numbered = enumerate(text.split("\n"), 1)
    lines = [line for number, raw in numbered if (line := _line(number, raw)).text]
    if lines and lines[0].text == "---":
        del lines[0]
    if not lines:
        return None
    value, rest = _block(lines, 0, 0)
    if rest < len(lines):
        raise _error(
            lines[rest], "this line is indented less than the first, or begins another text"
        )
    return value


def _line(number: int, raw: str) -> _Line:
    line = raw.rstrip(" \r")
    bare = line.lstrip(" ")
    found = _Line(number, len(line) - len(bare), bare)
    if any(ord(each) < 32 for each in bare):
        raise _error(found, "tabs and control characters stand nowhere; use spaces")
    quote = ""
    for index, each in enumerate(bare):
        if quote:
            quote = "" if each == quote and (quote == "'" or bare[index - 1] != "\\") else quote
        elif each in "'\"" and (index == 0 or bare[index - 1] in " [{,:"):
            quote = each
        elif each == "#" and (index == 0 or bare[index - 1] == " "):
            return found._replace(text=bare[:index].rstrip())
    return found


def _block(lines: list[_Line], at: int, depth: int) -> tuple[Any, int]:
    """Read the map or the list that begins here; return it and the place behind it."""
    first = lines[at]
    if depth > _MOST_DEEP:
        raise _error(first, f"values are nested more than {_MOST_DEEP} deep")
    if first.text == "-" or first.text.startswith("- "):
        return _list(lines, at, depth)
    found: dict[str, Any] = {}
    while at < len(lines) and lines[at].indent == first.indent:
        line = lines[at]
        match = _KEY.fullmatch(line.text)
        if match is None:
            raise _error(line, "expected `key: value`")
        key = _key(match["key"], line)
        if key in found:
            raise _error(line, f"the key {key!r} is there twice")
        rest = match["rest"].strip()
        at += 1
        inner = at < len(lines) and _is_inside(lines[at], line)
        if rest or not inner:
            found[key] = _value(rest, line)
        else:
            found[key], at = _block(lines, at, depth + 1)
    if at < len(lines) and lines[at].indent > first.indent:
        raise _error(
            lines[at], "this line is indented more than the one before, whose value is complete"
        )
    return found, at


def _is_inside(line: _Line, above: _Line) -> bool:
    """Return whether a line begins the value of a key; the dashes of a list need no indent."""
    is_item = line.text == "-" or line.text.startswith("- ")
    return line.indent > above.indent or (is_item and line.indent == above.indent)


def _list(lines: list[_Line], at: int, depth: int) -> tuple[list[Any], int]:
    indent, found = lines[at].indent, []
    while at < len(lines) and lines[at].indent == indent:
        line = lines[at]
        if not (line.text == "-" or line.text.startswith("- ")):
            break
        rest = line.text[1:].strip()
        if _KEY.fullmatch(rest) or rest.startswith("- "):
            raise _error(line, "a list holds texts and numbers; write a map in it as {key: value}")
        found.append(_value(rest, line))
        at += 1
    if at < len(lines) and lines[at].indent > indent:
        raise _error(lines[at], "this line is indented more than the item before it")
    return found, at


def _value(text: str, line: _Line) -> Any:
    """Return the value that stands behind a key or a dash."""
    value, rest = _flow(text, line, 0) if text[:1] in ("[", "{") else (_scalar(text, line), "")
    if rest.strip():
        raise _error(line, f"{rest.strip()[:32]!r} is behind the end of the value")
    return value


def _flow(text: str, line: _Line, depth: int) -> tuple[Any, str]:
    """Read a list or a map in brackets; return it and the text behind it."""
    if depth > _MOST_DEEP:
        raise _error(line, f"values are nested more than {_MOST_DEEP} deep")
    is_list, close = text[0] == "[", "]" if text[0] == "[" else "}"
    items: list[Any] = []
    found: dict[str, Any] = {}
    text = text[1:].lstrip()
    while not text.startswith(close):
        if not is_list:
            match = re.match(r"(\w[\w.-]*|'[^']*'|\"[^\"\\]*\")\s*:(?=[\s\[{\"'])\s*", text)
            if match is None:
                raise _error(
                    line, "expected `key: value` in the braces, which end in the same line"
                )
            key, text = _key(match[1], line), text[match.end() :]
            if key in found:
                raise _error(line, f"the key {key!r} is there twice")
        if text[:1] in ("[", "{"):
            value, text = _flow(text, line, depth + 1)
        else:
            part = re.match(r"'(?:[^']|'')*'|\"(?:[^\"\\]|\\.)*\"|[^,\[\]{}]*", text)
            assert part is not None, "the last form matches everything"
            bare = part[0].strip()
            if not bare or (bare[0] not in "'\"" and "?" in bare):
                raise _error(line, f"{bare[:32]!r} is no value in brackets; write it in quotes")
            value, text = _scalar(bare, line), text[part.end() :]
        if is_list:
            items.append(value)
        else:
            found[key] = value
        text = text.lstrip()
        if text.startswith(","):
            text = text[1:].lstrip()
        elif not text.startswith(close):
            raise _error(line, f"the brackets need {close!r} in the same line")
    return (items if is_list else found), text[1:]


def _key(text: str, line: _Line) -> str:
    """Return the name of a key, which must not be a number or another value."""
    key = _scalar(text, line)
    if not isinstance(key, str):
        raise _error(line, f"the key {text[:32]!r} is no name; write it in quotes")
    return key


def _scalar(text: str, line: _Line) -> Any:
    """Return the value of a text without or with quotes."""
    if text[:1] == "'" and re.fullmatch(r"'(?:[^']|'')*'", text):
        return text[1:-1].replace("''", "'")
    if text[:1] == '"':
        try:
            value: str = json.loads(text)
        except ValueError:
            raise _error(
                line, f"{text[:32]!r} has quotes that do not end, or unknown escapes"
            ) from None
        return value
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _AMBIGUOUS.fullmatch(text) and not _ADDRESS.fullmatch(text):
        raise _error(line, f"{text[:32]!r} may be a number, a date or a time; write it in quotes")
    if text[0] in _MARKS + "'?:,[]{}" or text.startswith(("- ", "? ")):
        raise _error(line, f"{text[:1]!r} begins something else than a text; write it in quotes")
    if ": " in text or " #" in text or text.endswith(":") or text in ("-", "=", "<<", "---", "..."):
        raise _error(line, f"{text[:32]!r} is no plain text; write it in quotes")
    return text


def _error(line: _Line, problem: str) -> YamlError:
    return YamlError(f"line {line.number}: {problem}")
