"""Whether two cores exclude each other: no value is allowed by both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from octavo.grammar.json_schema.narrowed import is_narrowed
from octavo.grammar.json_schema.strings import are_apart
from octavo.grammar.json_schema.values import type_of

MAX_DEPTH = 8
Resolve = Callable[[Any], Any]


def exclude(left: Any, right: Any, resolve: Resolve, depth: int = 0) -> bool:
    """Return whether two cores certainly exclude each other."""
    left, right = resolve(left), resolve(right)
    if left is False or right is False:
        return True
    if not isinstance(left, dict) or not isinstance(right, dict) or depth > MAX_DEPTH:
        return False
    if not _types(left) & _types(right):
        return True
    if is_narrowed(left) or is_narrowed(right):
        return False
    for one, other in ((left, right), (right, left)):
        if "anyOf" in one and all(
            exclude(each, other, resolve, depth + 1) for each in one["anyOf"]
        ):
            return True
        if any(exclude(each, other, resolve, depth + 1) for each in one.get("allOf", ())):
            return True
    if _values_exclude(left, right) or _values_exclude(right, left):
        return True
    common = _types(left) & _types(right)
    if common == {"string"} and are_apart(left, right, resolve):
        return True
    if common <= {"integer", "number"}:
        return _bounds_exclude(left, right) or _bounds_exclude(right, left)
    for kind, least, most in (
        ("string", "minLength", "maxLength"),
        ("array", "minItems", "maxItems"),
        ("object", "minProperties", "maxProperties"),
    ):
        if common == {kind}:
            for one, other in ((left, right), (right, left)):
                if least in one and most in other and one[least] > other[most]:
                    return True
    if common == {"array"}:
        return _arrays_exclude(left, right, resolve, depth)
    return common == {"object"} and _objects_exclude(left, right, resolve, depth)


def telling_names(options: list[Any], resolve: Resolve) -> list[str]:
    """Return the properties that would tell all options apart if each had it."""
    listed = [dict(_properties(option, resolve)) for option in options]
    if any(_types(resolve(option) or {}) - {"object"} for option in options):
        return []
    names = [name for name in listed[0] if all(name in each for each in listed)]
    return [
        name
        for name in names
        if all(
            exclude(one[name], other[name], resolve)
            for index, one in enumerate(listed)
            for other in listed[:index]
        )
    ]


def own_name(one: Any, other: Any, resolve: Resolve) -> str | None:
    """Return a property of an object that another one certainly may not have with such a value."""
    one, other = resolve(one), resolve(other)
    if not isinstance(one, dict) or not isinstance(other, dict) or is_narrowed(other):
        return None
    if _types(one) != {"object"}:
        return None
    for name, value in one.get("properties", {}).items():
        if exclude(value, _property(other, name), resolve):
            return str(name)
    return None


def _properties(core: Any, resolve: Resolve) -> Iterator[tuple[str, Any]]:
    core = resolve(core)
    if isinstance(core, dict):
        yield from core.get("properties", {}).items()


def _types(core: Any) -> frozenset[str]:
    """Return the types that a core allows, so far as it says so itself."""
    if not isinstance(core, dict):
        return frozenset()
    if "const" in core:
        return frozenset({type_of(core["const"])})
    if "enum" in core:
        return frozenset(map(type_of, core["enum"]))
    listed = core.get("type", ["null", "boolean", "number", "string", "array", "object"])
    types = frozenset([listed] if isinstance(listed, str) else listed)
    return types | {"integer"} if "number" in types else types


def _values_exclude(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether no constant of the first core is allowed by the second."""
    values = [one["const"]] if "const" in one else one.get("enum")
    return values is not None and not any(_may_allow(other, value) for value in values)


def _may_allow(core: dict[str, Any], value: Any) -> bool:
    """Return whether a core may allow a value; not all keywords are looked at."""
    if type_of(value) not in _types(core):
        return False
    if "const" in core and not _equal(core["const"], value):
        return False
    if "enum" in core and not any(_equal(each, value) for each in core["enum"]):
        return False
    if isinstance(value, int | float) and not isinstance(value, bool):
        return not bool(
            value < core.get("minimum", value)
            or value > core.get("maximum", value)
            or value <= core.get("exclusiveMinimum", value - 1)
            or value >= core.get("exclusiveMaximum", value + 1)
        )
    if isinstance(value, str):
        length = len(value)
        return bool(core.get("minLength", 0) <= length <= core.get("maxLength", length))
    return True


def _equal(left: Any, right: Any) -> bool:
    return type_of(left) == type_of(right) and left == right


def _bounds_exclude(low: dict[str, Any], high: dict[str, Any]) -> bool:
    """Return whether all numbers of the first core are below those of the second."""
    for most, is_most_open in (("maximum", False), ("exclusiveMaximum", True)):
        for least, is_least_open in (("minimum", False), ("exclusiveMinimum", True)):
            if most in low and least in high:
                is_open = is_most_open or is_least_open
                if low[most] < high[least] or (is_open and low[most] == high[least]):
                    return True
    return False


def _arrays_exclude(
    left: dict[str, Any], right: dict[str, Any], resolve: Resolve, depth: int
) -> bool:
    """Return whether an item that one array must have excludes the other array."""
    least = max(left.get("minItems", 0), right.get("minItems", 0))
    places = max(len(left.get("prefixItems", ())), len(right.get("prefixItems", ()))) + 1
    return any(
        exclude(_item(left, index), _item(right, index), resolve, depth + 1)
        for index in range(min(least, places))
    )


def _item(core: dict[str, Any], index: int) -> Any:
    first = core.get("prefixItems", ())
    return first[index] if index < len(first) else core.get("items", True)


def _objects_exclude(
    left: dict[str, Any], right: dict[str, Any], resolve: Resolve, depth: int
) -> bool:
    """Return whether a property that one object must have excludes the other object."""
    for name in {*left.get("required", ()), *right.get("required", ())}:
        one, other = _property(left, name), _property(right, name)
        if exclude(one, other, resolve, depth + 1):
            return True
    if not max(left.get("minProperties", 0), right.get("minProperties", 0)):
        return False
    # An object has at least one property: a listed one of either schema, or a further one.
    if left.get("patternProperties") or right.get("patternProperties"):
        return False
    names = {*left.get("properties", ()), *right.get("properties", ())}
    pairs = [(_property(left, name), _property(right, name)) for name in sorted(names)]
    pairs.append((left.get("additionalProperties", True), right.get("additionalProperties", True)))
    return all(exclude(one, other, resolve, depth + 1) for one, other in pairs)


def _property(core: dict[str, Any], name: str) -> Any:
    """Return the core of a property as far as it is listed."""
    if name in core.get("properties", {}):
        return core["properties"][name]
    if core.get("patternProperties"):
        return True
    return core.get("additionalProperties", True)
