"""The alternatives of a oneOf, each kept from holding together with another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.grammar.json_schema.exclusion import exclude, own_name, telling_names
from octavo.grammar.json_schema.joining import all_of
from octavo.grammar.json_schema.multiples import between_multiples
from octavo.grammar.json_schema.narrowed import narrowed
from octavo.grammar.json_schema.opposites import opposite
from octavo.grammar.json_schema.references import Place

if TYPE_CHECKING:
    from octavo.grammar.json_schema.simplify import Simplifier

MAX_COMPARED = 64  # alternatives
MAX_FILLED = 8  # the most required items of arrays that are tried


def add_one_of(work: Simplifier, place: Place, count: int, more: list[Any]) -> None:
    """Add that exactly one of so many alternatives holds."""
    options = [work.schema(place.step("oneOf", index)) for index in range(count)]
    if count > MAX_COMPARED:
        work.leave(place, "oneOf", f"{count} alternatives; at most {MAX_COMPARED} are compared")
        more.append({"anyOf": options})
        return
    open_pairs = [
        (left, right)
        for left in range(count)
        for right in range(left)
        if not exclude(options[left], options[right], work.resolved)
    ]
    alone: list[list[Any]] = [[option] for option in options]
    if open_pairs and (names := telling_names(options, work.resolved)):
        # Alternatives that differ in a property which they need not have: now they have it.
        for parts in alone:
            parts.append(narrowed({"required": names[:1]}))
        open_pairs = []
    empty: set[int] = set()  # alternatives of which nothing is left
    is_certain = True  # that nothing is
    for left, right in open_pairs:
        for one, other in ((left, right), (right, left)):
            rest = _without(work, options[one], options[other])
            if rest is False:
                empty.add(one)
                is_certain = is_certain and _is_within(work, options[one], options[other])
            if rest is None or (len(empty) == count and not is_certain):
                why = f"alternatives {right} and {left} cannot be kept from holding both"
                work.leave(place, "oneOf", why)
                more.append({"anyOf": options})
                return
            alone[one].append(narrowed(rest))
    more.append({"anyOf": [all_of(parts) for parts in alone]})


def _without(work: Simplifier, one: Any, other: Any) -> Any:
    """Return what must hold too so that not another core does; None if it cannot be expressed."""
    filled = _apart_if_filled(work, one, other)
    if filled is not None:
        return filled
    negated = opposite(other, work.resolved, is_partial=True)
    if numbers := between_multiples(one, other, work.resolved):
        negated = {"anyOf": [numbers, *([] if negated in (None, False) else [negated])]}
    if negated is None or exclude(one, negated, work.resolved):
        if name := own_name(one, other, work.resolved):
            return {"required": [name]}
        return None if negated is None else False
    return negated


def _is_within(work: Simplifier, one: Any, other: Any) -> bool:
    """Return whether another core certainly allows all that one allows."""
    negated = opposite(other, work.resolved, has_all_lists=True)
    return negated is not None and exclude(one, negated, work.resolved)


def _apart_if_filled(work: Simplifier, one: Any, other: Any) -> Any:
    """Return what keeps two cores apart if only what has few items or nothing is in both."""
    one, other = work.resolved(one), work.resolved(other)
    if not isinstance(one, dict) or not isinstance(other, dict):
        return None
    num_places = max(len(each.get("prefixItems", ())) for each in (one, other))
    most = min(MAX_FILLED, num_places or 1)
    lengths = [{"minItems": each} for each in range(one.get("minItems", 0) + 1, most + 1)]
    for filled in (*lengths, {"minProperties": 1}):
        if exclude({**one, **filled}, other, work.resolved):
            return filled
    return None
