"""The keywords that combine schemas: allOf, anyOf, oneOf, not, and conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.grammar.json_schema.exclusion import exclude, telling_names
from octavo.grammar.json_schema.opposites import opposite
from octavo.grammar.json_schema.references import Place

if TYPE_CHECKING:
    from octavo.grammar.json_schema.simplify import Simplifier

MAX_COMPARED = 64  # alternatives of a oneOf


def simplify(
    work: Simplifier, place: Place, given: dict[str, Any], core: dict[str, Any], more: list[Any]
) -> None:
    """Add what these keywords mean to a core."""
    for name in ("allOf", "anyOf"):
        if name in given:
            parts = [work.schema(place.step(name, index)) for index in range(len(given[name]))]
            if name == "allOf":
                more.extend(parts)
            else:
                core["anyOf"] = parts
    if "oneOf" in given:
        _add_one_of(work, place, len(given["oneOf"]), more)
    if "not" in given:
        negated = _opposite_at(work, place.step("not"))
        if negated is None:
            work.leave(place, "not", "the opposite of this schema cannot be expressed")
        else:
            more.append(negated)
    if "if" in given:
        _add_condition(work, place, given, more)


def _opposite_at(work: Simplifier, place: Place) -> Any:
    """Return the opposite of the schema at a place; None if it cannot be expressed."""
    with work.exactly() as is_exact:
        core = work.schema(place)
    if not is_exact[0]:  # what allows less would forbid more
        return None
    negated = opposite(core, work.resolved)
    work.num_narrowed += 1
    return negated


def _add_condition(work: Simplifier, place: Place, given: dict[str, Any], more: list[Any]) -> None:
    if "then" not in given and "else" not in given:
        return
    with work.exactly() as is_exact:
        condition = work.schema(place.step("if"))
    unmet = opposite(condition, work.resolved) if is_exact[0] else None
    if unmet is None:
        work.leave(place, "if", "the opposite of this condition cannot be expressed")
        return
    work.num_narrowed += 1
    met: list[Any] = [condition]
    not_met: list[Any] = [unmet]
    if "then" in given:
        met.append(work.schema(place.step("then")))
    if "else" in given:
        not_met.append(work.schema(place.step("else")))
    more.append({"anyOf": [_all_of(met), _all_of(not_met)]})


def _add_one_of(work: Simplifier, place: Place, count: int, more: list[Any]) -> None:
    exactness: list[bool] = []
    options: list[Any] = []
    for index in range(count):
        with work.exactly() as is_exact:
            options.append(work.schema(place.step("oneOf", index)))
        exactness += is_exact
    if count == 1:
        more.append(options[0])
        return
    if count > MAX_COMPARED:
        work.leave(place, "oneOf", f"{count} alternatives; at most {MAX_COMPARED} are compared")
        more.append({"anyOf": options})
        return
    pairs = [(left, right) for left in range(count) for right in range(left)]
    open_pairs = [
        (left, right)
        for left, right in pairs
        if not exclude(options[left], options[right], work.resolved)
    ]
    if open_pairs:
        # Alternatives that differ in a property which they need not have: now they have it.
        names = telling_names(options, work.resolved)
        if names:
            work.num_narrowed += 1
            options = [_all_of([option, {"required": [names[0]]}]) for option in options]
            open_pairs = []
    alone: list[list[Any]] = [[option] for option in options]
    for left, right in open_pairs:
        for one, other in ((left, right), (right, left)):
            negated = opposite(options[other], work.resolved) if exactness[other] else None
            if negated is None:
                why = f"alternatives {right} and {left} cannot be shown to exclude each other"
                work.leave(place, "oneOf", why)
                more.append({"anyOf": options})
                return
            alone[one].append(negated)
        work.num_narrowed += 1
    more.append({"anyOf": [_all_of(parts) for parts in alone]})


def _all_of(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else {"allOf": parts}
