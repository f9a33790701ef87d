"""The keywords for arrays."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from itertools import combinations, permutations
from math import comb, perm
from typing import TYPE_CHECKING, Any

from octavo.grammar.json_schema.exclusion import exclude
from octavo.grammar.json_schema.keywords import TYPES
from octavo.grammar.json_schema.narrowed import narrowed
from octavo.grammar.json_schema.references import Place
from octavo.grammar.json_schema.values import type_of

if TYPE_CHECKING:
    from octavo.grammar.json_schema.simplify import Simplifier

MAX_LISTED = 400  # arrays without repetitions that are written one by one
MAX_VALUES = 64  # of which each array in any order lists those that are left
MAX_CONTAINING = 8  # first items among which is what the array contains
MAX_DEMANDED = 3  # of these: more make too many alternatives
# Keywords beside which it depends on the array which of its items something describes.
_EVALUATING = (
    *("contains", "allOf", "anyOf", "oneOf", "not", "if"),
    *("$ref", "$dynamicRef", "$recursiveRef"),
)


def simplify(
    work: Simplifier, place: Place, given: dict[str, Any], core: dict[str, Any], more: list[Any]
) -> None:
    """Add what these keywords mean to a core."""
    for name in ("minItems", "maxItems"):
        if name in given:
            core[name] = int(given[name])
    if "prefixItems" in given:
        core["prefixItems"] = [
            work.schema(place.step("prefixItems", index))
            for index in range(len(given["prefixItems"]))
        ]
    rest = "items"
    if isinstance(given.get("items"), list):  # as before draft 2020-12
        core["prefixItems"] = [
            work.schema(place.step("items", index)) for index in range(len(given["items"]))
        ]
        rest = "additionalItems"
    if rest not in given:
        rest = "unevaluatedItems"
        if rest in given and any(name in given for name in _EVALUATING):
            work.leave(place, rest, "it must stand beside prefixItems and items only")
            rest = ""
    if rest in given:
        core["items"] = work.schema(place.step(rest))
    if not core.get("prefixItems", True):
        del core["prefixItems"]
    if given.get("uniqueItems"):
        _add_unique(work, place, core, more)
    if "contains" in given:
        _add_contains(work, place, given, core, more)


def _add_unique(work: Simplifier, place: Place, core: dict[str, Any], more: list[Any]) -> None:
    """Add the arrays without repetitions, one by one, if they are few.

    If they are too many, only those remain whose items are in the order of the schema.
    """
    most = core.get("maxItems")
    if most is not None and most <= 1:
        return
    if _are_apart(work, core):
        return
    values = _values(work, core.get("items", True))
    if values is None or "prefixItems" in core:
        why = "only arrays of values that are listed (enum, const) can be kept from repeating one"
        work.leave(place, "uniqueItems", why)
        return
    most = len(values) if most is None else min(most, len(values))
    lengths = range(core.get("minItems", 0), most + 1)
    # The last item is any of the values that are left.
    is_every_order = len(values) <= MAX_VALUES and _are_few(
        perm(len(values), max(0, length - 1)) for length in lengths
    )
    if not is_every_order and not _are_few(comb(len(values), length) for length in lengths):
        work.leave(
            place,
            "uniqueItems",
            f"{len(values)} values make more than the {MAX_LISTED} arrays without repetitions "
            "that are written one by one: lower maxItems",
        )
        return
    if is_every_order:
        chosen = [each for length in lengths for each in _in_every_order(values, length)]
    else:
        chosen = [
            [{"const": value} for value in each]
            for length in lengths
            for each in combinations(values, length)
        ]
    alternatives: list[Any] = [
        {
            "type": "array",
            "prefixItems": items or [True],
            "minItems": len(items),
            "maxItems": len(items),
        }
        for items in chosen
    ]
    for name in ("items", "minItems", "maxItems"):
        core.pop(name, None)
    others = ["null", "boolean", "number", "string", "object"]
    unique = {"anyOf": [*alternatives, {"type": others}]}
    more.append(unique if is_every_order else narrowed(unique))


def _in_every_order(values: list[Any], length: int) -> Iterator[list[Any]]:
    """Yield the items of arrays of so many of the values, the last one of all that are left."""
    if length == 0:
        yield []
        return
    for first in permutations(range(len(values)), length - 1):
        left = [value for index, value in enumerate(values) if index not in first]
        yield [*({"const": values[index]} for index in first), {"enum": left}]


def _are_apart(work: Simplifier, core: dict[str, Any]) -> bool:
    """Return whether no two places of an array can hold equal items."""
    items = core.get("prefixItems", [])[: core.get("maxItems")]
    is_open = core.get("items", True) is not False and core.get("maxItems", math.inf) > len(items)
    return not is_open and all(
        exclude(one, other, work.resolved) for one, other in combinations(items, 2)
    )


def _values(work: Simplifier, core: Any) -> list[Any] | None:
    """Return all values that a core allows, if they are listed."""
    core = work.resolved(core)
    if not isinstance(core, dict):
        return None
    if "const" in core and core.keys() <= {"const", "type"}:
        core = {**core, "enum": [core["const"]]}
        del core["const"]
    if core.keys() <= {"enum", "type"} and "enum" in core:
        allowed = core.get("type", list(TYPES))
        types = {allowed} if isinstance(allowed, str) else set(allowed)
        types |= {"integer"} if "number" in types else set()
        return _distinct(each for each in core["enum"] if type_of(each) in types)
    if core in ({"type": "boolean"}, {"type": "null"}):
        return [True, False] if core["type"] == "boolean" else [None]
    if core.keys() == {"anyOf"}:
        parts = [_values(work, each) for each in core["anyOf"]]
        return None if None in parts else _distinct(each for part in parts for each in part or ())
    if core.keys() == {"type", "minimum", "maximum"} and core["type"] == "integer":
        least, most = math.ceil(core["minimum"]), math.floor(core["maximum"])
        return list(range(least, most + 1)) if most - least < MAX_VALUES else None
    return None


def _distinct(values: Iterable[Any]) -> list[Any]:
    """Return values without repetitions.

    Whole numbers are integers in a core, so that equal values have equal texts.
    """
    return list({json.dumps(each, sort_keys=True): each for each in values}.values())


def _add_contains(
    work: Simplifier, place: Place, given: dict[str, Any], core: dict[str, Any], more: list[Any]
) -> None:
    """Add that one of the first items, or some, is what the array contains."""
    least = int(given.get("minContains", 1))
    if least == 0:
        return
    if least > MAX_DEMANDED:
        work.leave(place, "minContains", f"at most {MAX_DEMANDED} items can be demanded")
        return
    contained = work.schema(place.step("contains"))
    places = range(min(core.get("maxItems", MAX_CONTAINING), MAX_CONTAINING))
    alternatives = [
        {
            "prefixItems": [each not in chosen or contained for each in range(chosen[-1] + 1)],
            "minItems": chosen[-1] + 1,
        }
        for chosen in combinations(places, least)
    ]
    if alternatives:
        more.append(narrowed({"anyOf": alternatives}))
    else:
        more.append({"type": ["null", "boolean", "number", "string", "object"]})


def _are_few(counts: Iterable[int]) -> bool:
    """Return whether the sum of some numbers is within the limit; stop where it is not."""
    total = 0
    for each in counts:
        total += each
        if total > MAX_LISTED:
            return False
    return True
