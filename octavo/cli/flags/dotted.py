"""Dotted flags, as vLLM has them: `--speculative-config.method ngram` is a key of a JSON object."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

_DOTTED = re.compile(r"(?P<flag>--?[A-Za-z][\w-]*)\.(?P<path>[\w-]+(\.[\w-]+)*)(?P<more>\+?)")
_FLAG = re.compile(r"-{1,2}[A-Za-z]")
_MOST_DEEP = 16


def joined(words: Sequence[str]) -> list[str]:
    """Replace the dotted flags of each option by one flag with a JSON object.

    A key without a value is true, and `key+` adds to a list, the parts of whose value are separated
    by commas. Words after `--` are no flags. Raise ValueError for keys that contradict each other.
    """
    end = words.index("--") if "--" in words else len(words)
    objects: dict[str, dict[str, Any]] = {}
    found: list[str | None] = []  # None: the place of an object
    places: list[str] = []
    index = 0
    while index < end:
        name, equals, value = words[index].partition("=")
        index += 1
        match = _DOTTED.fullmatch(name)
        if match is None:
            found.append(words[index - 1])
            continue
        if not equals:
            value = "true"
            if index < end and not _FLAG.match(words[index]):
                value = words[index]
                index += 1
        flag = match["flag"]
        if flag.startswith("--"):
            flag = flag.replace("_", "-")
        if flag not in objects:
            objects[flag] = {}
            places.append(flag)
            found.append(None)
        _put(objects[flag], match["path"].split("."), value, name, adds=bool(match["more"]))
    _check_once(objects, found)
    order = iter(places)
    whole = (f"{flag}={json.dumps(objects[flag])}" for flag in order)
    return [*(next(whole) if word is None else word for word in found), *words[end:]]


def _put(target: dict[str, Any], path: list[str], text: str, name: str, *, adds: bool) -> None:
    """Put a value into nested objects."""
    *above, last = path
    if len(path) > _MOST_DEEP:
        raise ValueError(f"{name} has more than {_MOST_DEEP} keys in each other")
    for key in above:
        target = target.setdefault(key, {})
        if not isinstance(target, dict):
            raise ValueError(f"{name}: {key!r} has a value already, and no keys")
    if adds:
        values = target.setdefault(last, [])
        if not isinstance(values, list):
            raise ValueError(f"{name}: {last!r} has a value already, and is no list")
        values += map(_value, text.split(","))
    elif last in target:
        raise ValueError(f"{name} is given twice")
    else:
        target[last] = _value(text)


def _value(text: str) -> Any:
    """Return what a text is in JSON, or the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _check_once(objects: dict[str, dict[str, Any]], words: Sequence[str | None]) -> None:
    """Refuse an option that is given by keys and as a whole."""
    for word in words:
        flag = (word or "").partition("=")[0]
        if flag.startswith("--"):
            flag = flag.replace("_", "-")
        if flag in objects:
            key = next(iter(objects[flag]))
            raise ValueError(f"{flag} and {flag}.{key} are both given; write all keys into one")
