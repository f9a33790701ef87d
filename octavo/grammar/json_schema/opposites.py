"""The opposite of a core: a core that allows only what the first does not allow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from octavo.grammar.json_schema.formats import WIDEST
from octavo.grammar.json_schema.joining import any_of
from octavo.grammar.json_schema.keywords import TYPES
from octavo.grammar.json_schema.narrowed import WIDENED, is_narrowed, opposite_of_narrowed
from octavo.grammar.json_schema.strings import not_found
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


def opposite(
    core: Any, resolve: Resolve, *, is_partial: bool = False, has_all_lists: bool = False
) -> Any:
    """Return a core of values that the given one does not allow; None if none can be expressed.

    It may leave out such values, but holds no others. Unless `is_partial`, it leaves out none
    that its reader would miss; with `has_all_lists`, not even arrays and objects that another item
    or a further property makes wrong. `resolve` returns what a reference stands for.
    """
    return _Opposite(resolve, is_partial, has_all_lists).of(core)


class _Opposite:
    """The way to an opposite."""

    def __init__(self, resolve: Resolve, is_partial: bool, has_all_lists: bool) -> None:
        self._resolve = resolve
        self._is_partial = is_partial
        self._left_out = frozenset() if has_all_lists else _LEFT_OUT
        self._depth = 0

    def of(self, core: Any) -> Any:
        core = self._resolve(core)
        if core is None or self._depth == MAX_DEPTH:
            return None
        if isinstance(core, bool):
            return not core
        if is_narrowed(core):
            return opposite_of_narrowed(core)
        if WIDENED in core:
            return _other_strings(core[WIDENED])
        self._depth += 1
        options = []
        is_complete = True
        for name, value in core.items():
            negated = False if name in _LEFT_OUT and value is True else self._one(name, value, core)
            if negated is not None:
                options.append(negated)
            elif self._is_partial or name in self._left_out:
                is_complete = False
            else:
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
