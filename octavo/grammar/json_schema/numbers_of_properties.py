"""The bounds on the number of an object's properties, as alternatives of which it has."""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Any

from octavo.grammar.json_schema.narrowed import narrowed
from octavo.grammar.json_schema.opposites import not_among
from octavo.grammar.json_schema.references import Place, step

if TYPE_CHECKING:
    from octavo.grammar.json_schema.simplify import Simplifier

MAX_ALTERNATIVES = 64


def bound_properties(
    work: Simplifier, place: Place, given: dict[str, Any], core: dict[str, Any], more: list[Any]
) -> None:
    """Add minProperties and maxProperties to a core.

    The engine counts properties that are not listed, which it does not keep from repeating, and
    not those that are listed and optional. So the latter become alternatives.
    """
    required = core.get("required", [])
    least = max(0, int(given.get("minProperties", 0)) - len(required))
    most = given.get("maxProperties")
    if most is not None:
        most = int(most) - len(required)
        if most < 0:
            raise work.error(
                place.path + step("maxProperties"),
                f"{len(required)} properties are required, and {given['maxProperties']} allowed",
            )
    optional = [
        name
        for name, schema in core.get("properties", {}).items()
        if schema is not False and name not in required
    ]
    is_closed = core.get("additionalProperties", True) is False and not core.get(
        "patternProperties"
    )
    if is_closed and most is not None and most >= len(optional):
        most = None
    if not least and most is None:
        return
    if is_closed:
        _add_closed(work, place, optional, least, most, more)
    elif not optional:
        _add_open(work, place, core, least + len(required), most, least)
    elif most is None and least <= len(optional) and comb(len(optional), least) <= MAX_ALTERNATIVES:
        # Of the listed properties, so many: an object of others alone is not allowed.
        chosen = combinations(optional, least)
        more.append(narrowed({"anyOf": [{"required": list(each)} for each in chosen]}))
    elif (
        "patternProperties" not in core
        and sum(comb(len(optional), count) for count in range(_limit(optional, most) + 1))
        <= MAX_ALTERNATIVES
    ):
        _split(work, place, core, optional, least, most, more)
    else:
        keyword = "minProperties" if most is None else "maxProperties"
        work.leave(place, keyword, f"beside {len(optional)} optional properties it is too much")


def _limit(optional: list[str], most: int | None) -> int:
    """Return how many of the optional properties there can be at once."""
    return len(optional) if most is None else min(most, len(optional))


def _add_closed(
    work: Simplifier,
    place: Place,
    optional: list[str],
    least: int,
    most: int | None,
    more: list[Any],
) -> None:
    """Add which of the listed properties an object may have together."""
    if most is None:
        if least > len(optional):
            raise work.error(
                place.path + step("minProperties"), f"only {len(optional)} more are possible"
            )
        if comb(len(optional), least) > MAX_ALTERNATIVES:
            work.leave(place, "minProperties", f"of {len(optional)} properties it is too much")
            return
        more.append({"anyOf": [{"required": list(each)} for each in combinations(optional, least)]})
        return
    counts = range(least, most + 1) if least else [most]
    if sum(comb(len(optional), count) for count in counts) > MAX_ALTERNATIVES:
        work.leave(place, "maxProperties", f"of {len(optional)} properties it is too much")
        return
    alternatives: list[Any] = []
    for count in counts:
        for chosen in combinations(optional, count):
            without = {name: False for name in optional if name not in chosen}
            alternatives.append({"properties": without})
            if least:
                alternatives[-1]["required"] = list(chosen)
    more.append({"anyOf": alternatives})


def _add_open(
    work: Simplifier,
    place: Place,
    core: dict[str, Any],
    total: int,
    most: int | None,
    least: int,
) -> None:
    """Add the bounds for properties that are not listed; one of them cannot repeat itself."""
    if least > 1:
        why = "names that are not listed may repeat, so that at most one of them can be demanded"
        work.leave(place, "minProperties", why)
        least = 0
    if least:
        core["minProperties"] = total
    if most is not None:
        core["maxProperties"] = most + len(core.get("required", []))


def _split(
    work: Simplifier,
    place: Place,
    core: dict[str, Any],
    optional: list[str],
    least: int,
    most: int | None,
    more: list[Any],
) -> None:
    """Replace a core's objects by one alternative for each set of its optional properties."""
    properties = core.pop("properties")
    required = core.pop("required", [])
    rest = core.pop("additionalProperties", True)
    others = not_among([*properties, *(name for name in required if name not in properties)])
    alternatives: list[Any] = []
    for count in range(_limit(optional, most) + 1):
        for chosen in combinations(optional, count):
            missing = max(0, least - count)
            if missing > 1:
                continue  # names that are not listed may repeat
            has = [name for name in properties if name in required or name in chosen]
            has += [name for name in required if name not in properties]
            alternative: dict[str, Any] = {
                "properties": {name: properties.get(name, rest) for name in has},
                "required": has,
                "patternProperties": {f"^{others}$": rest},
                "additionalProperties": False,
            }
            if missing:
                alternative["minProperties"] = len(has) + 1
            if most is not None:
                alternative["maxProperties"] = len(required) + most
            alternatives.append(alternative)
    if not alternatives:
        work.leave(place, "minProperties", "names that are not listed may repeat")
        core |= {"properties": properties, "required": required, "additionalProperties": rest}
        return
    more.append({"anyOf": alternatives})
