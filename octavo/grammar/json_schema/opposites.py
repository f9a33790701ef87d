"""The opposite of a core: a core that allows only what the first does not allow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from octavo.grammar.json_schema.keywords import TYPES
from octavo.grammar.json_schema.values import type_of
from octavo.grammar.regexes import literal

MAX_DEPTH = 8
MAX_VALUES = 64  # of an enum
MAX_CHARACTERS = 512  # of all of them
Resolve = Callable[[Any], Any]
_FLIPPED = {
    "minimum": "exclusiveMaximum",
    "maximum": "exclusiveMinimum",
    "exclusiveMinimum": "maximum",
    "exclusiveMaximum": "minimum",
}


def opposite(core: Any, resolve: Resolve, depth: int = 0) -> Any:
    """Return a core of values that the given one does not allow; None if none can be expressed.

    It may leave out such values, but holds no others. `resolve` returns what a reference stands
    for.
    """
    core = resolve(core)
    if core is None or depth > MAX_DEPTH:
        return None
    if isinstance(core, bool):
        return not core
    options = []
    is_complete = True
    for name, value in core.items():
        if name in _LEFT_OUT:
            is_complete = is_complete and value is True
            continue
        negated = _one(name, value, core, resolve, depth)
        if negated is None:
            return None
        options.append(negated)
    if not options:
        return False if is_complete else None
    return {"anyOf": options}


# Keywords whose opposite cannot be expressed, beside others whose opposite is enough.
_LEFT_OUT = frozenset({"items", "additionalProperties"})


def _one(name: str, value: Any, core: dict[str, Any], resolve: Resolve, depth: int) -> Any:
    """Return the opposite of one keyword."""
    match name:
        case "type":
            return _other_types([value] if isinstance(value, str) else value)
        case "const":
            return _other_values([value])
        case "enum":
            return _other_values(value)
        case "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum":
            return {"type": "number", _FLIPPED[name]: value}
        case "minLength" | "minItems" | "minProperties":
            return _fewer(name, value)
        case "maxLength" | "maxItems" | "maxProperties":
            kind = _KINDS[name[3:]]
            if name == "maxProperties" and value:
                return None
            return {"type": kind, f"min{name[3:]}": value + 1}
        case "required":
            return _any_of({"type": "object", "properties": {each: False}} for each in value)
        case "properties":
            return _all_or_none(
                (each, opposite(schema, resolve, depth + 1)) for each, schema in value.items()
            )
        case "anyOf":
            parts = [opposite(each, resolve, depth + 1) for each in value]
            return None if None in parts else {"allOf": parts}
        case "allOf":
            parts = [opposite(each, resolve, depth + 1) for each in value]
            return None if None in parts else {"anyOf": parts}
        case "$ref":
            return opposite({"$ref": value}, resolve, depth + 1) if len(core) > 1 else None
    return None


_KINDS = {"Length": "string", "Items": "array", "Properties": "object"}


def _fewer(name: str, value: int) -> Any:
    if not value:
        return False
    if name == "minProperties" and value > 1:
        return None
    return {"type": _KINDS[name[3:]], f"max{name[3:]}": value - 1}


def _any_of(options: Iterable[Any]) -> Any:
    listed = list(options)
    return {"anyOf": listed} if listed else False


def _all_or_none(parts: Iterable[tuple[str, Any]]) -> Any:
    """Return the objects in which a property has a value that it may not have."""
    options = []
    for name, negated in parts:
        if negated is None:
            return None
        if negated is not False:
            options.append({"type": "object", "required": [name], "properties": {name: negated}})
    return _any_of(options)


def _other_types(types: list[str]) -> Any:
    """Return the other types; the numbers that are no integers are left out."""
    taken = {"integer", *types} if "number" in types else set(types)
    others = [each for each in TYPES if each not in taken]
    if "integer" in taken:
        others = [each for each in others if each != "number"]
    elif "number" in others:
        others.remove("integer")
    return {"type": others} if others else False


def _other_values(values: list[Any]) -> Any:
    """Return the values that are not listed; of lists and objects, none if one is listed."""
    if len(values) > MAX_VALUES or len(repr(values)) > MAX_CHARACTERS:
        return None
    kinds = {type_of(value) for value in values}
    options: list[Any] = []
    others = [each for each in ("null", "array", "object") if each not in kinds]
    if others:
        options.append({"type": others})
    truths = [value for value in (True, False) if not any(value is each for each in values)]
    if truths:
        options.append({"enum": truths})
    numbers = sorted({value for value in values if type_of(value) in ("integer", "number")})
    bounds = [None, *numbers, None]
    for low, high in pairwise(bounds):
        between: dict[str, Any] = {"type": "number"}
        if low is not None:
            between["exclusiveMinimum"] = low
        if high is not None:
            between["exclusiveMaximum"] = high
        options.append(between)
    texts = [value for value in values if isinstance(value, str)]
    options.append(
        {"type": "string", "pattern": f"^{not_among(texts)}$"} if texts else {"type": "string"}
    )
    return {"anyOf": options}


def not_among(texts: Iterable[str]) -> str:
    """Return a regex of all texts but these."""
    tree: dict[str, Any] = {}
    for text in texts:
        node = tree
        for each in text:
            node = node.setdefault(each, {})
        node[""] = {}  # a text ends here
    return _outside(tree)


def _outside(tree: dict[str, Any]) -> str:
    """Return a regex of the texts that do not end where the tree says so."""
    after = [each for each in tree if each]
    options = [] if "" in tree else [""]
    if after:
        options.append(f"[^{''.join(map(literal, after))}](?s:.)*")
    else:
        options.append("(?s:.)+")
    options += [literal(each) + _outside(tree[each]) for each in after]
    return f"(?:{'|'.join(options)})"
