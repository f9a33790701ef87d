"""The keywords that combine schemas: allOf, anyOf, oneOf, not, and conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.grammar.json_schema.exclusion import exclude
from octavo.grammar.json_schema.joining import all_of, any_of
from octavo.grammar.json_schema.multiples import between_multiples
from octavo.grammar.json_schema.narrowed import narrowed
from octavo.grammar.json_schema.one_of import add_one_of
from octavo.grammar.json_schema.opposites import opposite
from octavo.grammar.json_schema.references import Place

if TYPE_CHECKING:
    from octavo.grammar.json_schema.simplify import Simplifier


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
        add_one_of(work, place, len(given["oneOf"]), more)
    if "not" in given:
        inner = work.schema(place.step("not"))
        negated = _negated(work, inner, core)
        if negated is None:
            work.leave(place, "not", "the opposite of this schema cannot be expressed")
        else:
            more.append(narrowed(negated, inner))
    if "if" in given:
        _add_condition(work, place, given, more)


def _negated(work: Simplifier, core: Any, beside: dict[str, Any]) -> Any:
    """Return the opposite of a core, or a part of it that is left beside other keywords."""
    complete = opposite(core, work.resolved)
    negated = complete
    if negated is None:
        negated = opposite(core, work.resolved, is_partial=True)
    if negated is None or exclude(beside, negated, work.resolved):
        return between_multiples(beside, core, work.resolved) or complete
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
    more.append(narrowed({"anyOf": [all_of(met), all_of(not_met)]}))
