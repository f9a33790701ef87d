"""Alternatives that concern one property alone, as one schema of that property.

The engine writes out which alternatives hold together, so that a dozen of them would be thousands.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_KEYWORDS = frozenset({"type", "properties", "required"})


def all_of(parts: list[Any]) -> Any:
    """Return a core that allows what all of these allow."""
    return parts[0] if len(parts) == 1 else {"allOf": parts}


def any_of(given: Iterable[Any]) -> Any:
    """Return a core that allows what one of these allows."""
    options: list[Any] = []
    for each in given:
        is_joined = isinstance(each, dict) and each.keys() == {"anyOf"}
        options += each["anyOf"] if is_joined else [each]
    if not options:
        return False
    if len(options) == 1:
        return options[0]
    return _of_one_property(options) or {"anyOf": options}


def _of_one_property(options: list[Any]) -> dict[str, Any] | None:
    """Return the schema of the only property that all options concern; None if there is none."""
    names: set[str] = set()
    for option in options:
        if not isinstance(option, dict) or option.keys() - _KEYWORDS:
            return None
        if option.get("type", "object") != "object":
            return None
        names |= {*option.get("properties", ()), *option.get("required", ())}
        if not option.get("properties") and not option.get("required"):
            return None
    if len(names) != 1:
        return None
    (name,) = names
    values = [option.get("properties", {}).get(name, True) for option in options]
    value = True in values or any_of(each for each in values if each is not False)
    made: dict[str, Any] = {"properties": {name: value}}
    if all(option.get("required") for option in options):
        made["required"] = [name]
    if all("type" in option for option in options):
        made["type"] = "object"
    return made
