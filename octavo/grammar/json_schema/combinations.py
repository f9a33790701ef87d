"""The keywords that combine schemas: allOf, anyOf, oneOf, not, and conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.grammar.json_schema.exclusion import exclude, telling_names
from octavo.grammar.json_schema.joining import any_of
from octavo.grammar.json_schema.narrowed import narrowed
from octavo.grammar.json_schema.opposites import fractions_of, opposite
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
                joined = any_of(parts)
                if joined == {"anyOf": parts}:
                    core["anyOf"] = parts
                else:
                    more.append(joined)
    if "oneOf" in given:
        _add_one_of(work, place, len(given["oneOf"]), more)
    if "not" in given:
        negated = _negated(work, work.schema(place.step("not")), core)
        if negated is None:
            work.leave(place, "not", "the opposite of this schema cannot be expressed")
        else:
            more.append(narrowed(negated))
    if "if" in given:
        _add_condition(work, place, given, more)


def _negated(work: Simplifier, core: Any, beside: dict[str, Any]) -> Any:
    """Return the opposite of a core, or a part of it that is left beside other keywords."""
    negated = opposite(core, work.resolved)
    if negated is None:
        negated = opposite(core, work.resolved, is_partial=True)
        if negated is not None and exclude(beside, negated, work.resolved):
            return None
    return negated


def _add_condition(work: Simplifier, place: Place, given: dict[str, Any], more: list[Any]) -> None:
    if "then" not in given and "else" not in given:
        return
    condition = work.schema(place.step("if"))
    unmet = opposite(condition, work.resolved)
    if unmet is None:
        work.leave(place, "if", "the opposite of this condition cannot be expressed")
        return
    met: list[Any] = [condition]
    not_met: list[Any] = [unmet]
    if "then" in given:
        met.append(work.schema(place.step("then")))
    if "else" in given:
        not_met.append(work.schema(place.step("else")))
    more.append(narrowed({"anyOf": [_all_of(met), _all_of(not_met)]}))


def _add_one_of(work: Simplifier, place: Place, count: int, more: list[Any]) -> None:
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
    for left, right in open_pairs:
        for one, other in ((left, right), (right, left)):
            negated = opposite(options[other], work.resolved, is_partial=True)
            if fractions := fractions_of(options[one], options[other], work.resolved):
                negated = {"anyOf": [fractions, *([] if negated in (None, False) else [negated])]}
            if negated is None:
                why = f"alternatives {right} and {left} cannot be kept from holding both"
                work.leave(place, "oneOf", why)
                more.append({"anyOf": options})
                return
            alone[one].append(narrowed(negated))
    more.append({"anyOf": [_all_of(parts) for parts in alone]})


def _all_of(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else {"allOf": parts}
