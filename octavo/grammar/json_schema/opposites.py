"""The opposite of a core: a core that allows only what the first does not allow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from octavo.grammar.json_schema.formats import WIDEST
from octavo.grammar.json_schema.joining import any_of
from octavo.grammar.json_schema.keywords import TYPES
from octavo.grammar.json_schema.narrowed import WIDENED, is_narrowed
from octavo.grammar.json_schema.strings import not_found
from octavo.grammar.json_schema.values import type_of
from octavo.grammar.regexes import literal

MAX_DEPTH = 8
MAX_VALUES = 64  # of an enum
MAX_CHARACTERS = 512  # of all of them
NUM_FRACTIONS = 64  # whole numbers between which fractions are written
Resolve = Callable[[Any], Any]
_FLIPPED = {
    "minimum": "exclusiveMaximum",
    "maximum": "exclusiveMinimum",
    "exclusiveMinimum": "maximum",
    "exclusiveMaximum": "minimum",
}


def opposite(core: Any, resolve: Resolve, *, is_partial: bool = False) -> Any:
    """Return a core of values that the given one does not allow; None if none can be expressed.

    It may leave out such values, but holds no others. Unless `is_partial`, it leaves out none
    that its reader would miss. `resolve` returns what a reference stands for.
    """
    return _Opposite(resolve, is_partial).of(core)


class _Opposite:
    """The way to an opposite."""

    def __init__(self, resolve: Resolve, is_partial: bool) -> None:
        self._resolve = resolve
        self._is_partial = is_partial
        self._depth = 0

    def of(self, core: Any) -> Any:
        core = self._resolve(core)
        if core is None or self._depth == MAX_DEPTH:
            return None
        if isinstance(core, bool):
            return not core
        if is_narrowed(core):
            return None
        if WIDENED in core:
            return _other_strings(core[WIDENED])
        self._depth += 1
        options = []
        is_complete = True
        for name, value in core.items():
            negated = None if name in _LEFT_OUT else self._one(name, value, core)
            if negated is not None:
                options.append(negated)
            elif self._is_partial or (name in _LEFT_OUT and value is not True):
                is_complete = False
            elif name not in _LEFT_OUT:
                self._depth -= 1
                return None
        self._depth -= 1
        if not options:
            return False if is_complete else None
        return any_of(options)

    def _one(self, name: str, value: Any, core: dict[str, Any]) -> Any:
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
            case "pattern":
                return _other_strings(value)
            case "format":
                return _other_strings(WIDEST.get(value, ""))
            case "required":
                return any_of({"type": "object", "properties": {each: False}} for each in value)
            case "properties":
                return self._properties(value)
            case "anyOf":
                parts = [self.of(each) for each in value]
                return None if None in parts else {"allOf": parts}
            case "allOf":
                parts = [self.of(each) for each in value]
                known = [each for each in parts if each is not None]
                if len(known) < len(parts) and not (self._is_partial and known):
                    return None
                return any_of(known)
        return None

    def _properties(self, properties: dict[str, Any]) -> Any:
        """Return the objects in which a property has a value that it may not have."""
        options = []
        for name, schema in properties.items():
            negated = self.of(schema)
            if negated is None and not self._is_partial:
                return None
            if negated is not None and negated is not False:
                options.append(
                    {"type": "object", "required": [name], "properties": {name: negated}}
                )
        if not options and self._is_partial:
            return None
        return any_of(options)


def fractions_of(core: Any, other: Any, resolve: Resolve) -> Any:
    """Return numbers of a core that are not whole, if that is what keeps it from another one.

    They are written between one whole number and the next, so that not all can be.
    """
    core, other = resolve(core), resolve(other)
    if not isinstance(core, dict) or not isinstance(other, dict):
        return None
    if other.get("type") != "integer" or "number" not in str(core.get("type", "number")):
        return None
    lowest = (core[name] for name in ("minimum", "exclusiveMinimum") if name in core)
    highest = (core[name] for name in ("maximum", "exclusiveMaximum") if name in core)
    least, most = max(lowest, default=None), min(highest, default=None)
    if least is None:
        least = -NUM_FRACTIONS // 2 if most is None else most - NUM_FRACTIONS
    first = math.floor(least)
    last = first + NUM_FRACTIONS if most is None else min(math.ceil(most), first + NUM_FRACTIONS)
    between = [
        {"type": "number", "exclusiveMinimum": whole, "exclusiveMaximum": whole + 1}
        for whole in range(first, last)
    ]
    return any_of(between)


# Keywords whose opposite cannot be expressed, beside others whose opposite is enough.
_LEFT_OUT = frozenset({"items", "additionalProperties"})
_KINDS = {"Length": "string", "Items": "array", "Properties": "object"}


def _other_strings(regex: str) -> Any:
    """Return the strings in which a regex is not found; None if they cannot be computed."""
    pattern = not_found(regex)
    return None if pattern is None else {"type": "string", "pattern": pattern}


def _fewer(name: str, value: int) -> Any:
    if not value:
        return False
    if name == "minProperties" and value > 1:
        return None
    return {"type": _KINDS[name[3:]], f"max{name[3:]}": value - 1}


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
