"""The keywords for objects."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from octavo.grammar.json_schema.narrowed import narrowed
from octavo.grammar.json_schema.numbers_of_properties import bound_properties
from octavo.grammar.json_schema.references import Place
from octavo.grammar.regexes import RegexError, translated

if TYPE_CHECKING:
    from octavo.grammar.json_schema.simplify import Simplifier

MAX_LISTED_NAMES = 256  # of an enum of property names
_COMBINING = ("anyOf", "oneOf", "if", "not", "dependentSchemas", "dependencies")


def simplify(
    work: Simplifier, place: Place, given: dict[str, Any], core: dict[str, Any], more: list[Any]
) -> None:
    """Add what these keywords mean to a core."""
    if "properties" in given:
        core["properties"] = {
            name: work.schema(place.step("properties", name)) for name in given["properties"]
        }
    if given.get("required"):
        core["required"] = list(dict.fromkeys(given["required"]))
    if "patternProperties" in given:
        _add_patterns(work, place, given, core)
    if "additionalProperties" in given:
        core["additionalProperties"] = work.schema(place.step("additionalProperties"))
    elif work.closes and "properties" in core and "patternProperties" not in core:
        core["additionalProperties"] = False
    if "propertyNames" in given:
        _add_names(work, place, core)
    bound_properties(work, place, given, core, more)
    _add_dependencies(work, place, given, more)


def _add_patterns(
    work: Simplifier, place: Place, given: dict[str, Any], core: dict[str, Any]
) -> None:
    patterns: dict[str, Any] = {}
    for regex in given["patternProperties"]:
        inner = place.step("patternProperties", regex)
        try:
            patterns[translated(regex, is_whole=False)] = work.schema(inner)
        except RegexError as error:
            work.leave(place, "patternProperties", f"{regex[:64]!r}: {error}")
    if patterns:
        core["patternProperties"] = patterns


def _add_names(work: Simplifier, place: Place, core: dict[str, Any]) -> None:
    """Add what all names must be, as a pattern of names beside which there are no others."""
    names = work.resolved(work.schema(place.step("propertyNames")))
    if names is True or names == {}:
        return
    core |= narrowed({})
    listed = core.setdefault("properties", {})
    rest = core.get("additionalProperties", True)
    required = [name for name in core.get("required", ()) if name not in listed]
    if (
        isinstance(names, dict)
        and set(names) <= {"enum", "const", "type"}
        and len(names) > ("type" in names)
    ):
        allowed = [names["const"]] if "const" in names else names["enum"]
        allowed = [each for each in allowed if isinstance(each, str)]
        if len(allowed) <= MAX_LISTED_NAMES:
            for name in [*listed, *required]:
                if name not in allowed:
                    listed[name] = False
            if "patternProperties" in core and rest is not False:
                rest = True
            for name in allowed:
                listed.setdefault(name, rest)
            core["additionalProperties"] = False
            _drop_patterns(work, place, core)
            return
    regex = _name_regex(names)
    if regex is None or "patternProperties" in core:
        why = "it must be a pattern, a length or an enum, beside no patternProperties"
        work.leave(place, "propertyNames", why)
        return
    for name in [*listed, *required]:
        if not _matches(regex, name):
            listed[name] = False
    if rest is not False:
        core["patternProperties"] = {regex: rest}
        core["additionalProperties"] = False


def _drop_patterns(work: Simplifier, place: Place, core: dict[str, Any]) -> None:
    """Leave out patterns of names beside names that are all listed, if none of them matches."""
    for regex in list(core.get("patternProperties", {})):
        if not any(_matches(regex, name) for name in core["properties"]):
            del core["patternProperties"][regex]
    if core.get("patternProperties"):
        work.leave(place, "propertyNames", "it cannot be combined with these patternProperties")
    core.pop("patternProperties", None)


def _name_regex(names: Any) -> str | None:
    """Return the regex of names that a core of strings allows, if it has one."""
    if names is False:
        return "^[^\\x00-\\u{10FFFF}]$"
    if not isinstance(names, dict):
        return None
    keywords = names.keys() - {"type"}
    if "type" in names and "string" not in names["type"]:
        return "^[^\\x00-\\u{10FFFF}]$"
    if not keywords:
        return "^(?s:.)*$"
    if keywords == {"pattern"}:
        return str(names["pattern"])
    if keywords <= {"minLength", "maxLength"}:
        return f"^(?s:.){{{names.get('minLength', 0)},{names.get('maxLength', '')}}}$"
    if keywords == {"allOf"} and len(names["allOf"]) == 1:
        return _name_regex(names["allOf"][0])
    return None


def _matches(regex: str, name: str) -> bool:
    """Return whether a translated regex is found in a name; False if that is not known."""
    if r"\p" in regex.lower() or name.endswith("\n"):  # re knows no \p, and means more by $
        return False
    plain = re.sub(r"\\u\{([0-9A-F]+)\}", lambda found: f"\\U{int(found[1], 16):08X}", regex)
    try:
        return re.search(plain, name) is not None
    except re.error:
        return False


def _add_dependencies(
    work: Simplifier, place: Place, given: dict[str, Any], more: list[Any]
) -> None:
    """Add what an object must be if it has a property, as two alternatives."""
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        for name, value in given.get(keyword, {}).items():
            if isinstance(value, list):
                needed: Any = {"required": list(dict.fromkeys(value))}
                if not value:
                    continue
            else:
                needed = work.schema(place.step(keyword, name))
            if name in given.get("required", ()):
                more.append(needed)
            else:
                more.append({"anyOf": [{"properties": {name: False}}, needed]})


def close_unevaluated(
    work: Simplifier, place: Place, given: dict[str, Any], core: dict[str, Any], more: list[Any]
) -> None:
    """Add that properties which nothing describes must be as this schema says."""
    if "unevaluatedProperties" not in given:
        return
    rest = work.schema(place.step("unevaluatedProperties"))
    if rest is True or "additionalProperties" in core:
        return
    known: dict[str, Any] = dict.fromkeys(core.get("properties", {}), True)
    patterns = dict.fromkeys(core.get("patternProperties", {}), True)
    is_static = not any(name in given for name in _COMBINING)
    for part in more if is_static else ():
        found = _known(work, part, 0)
        if found is None:
            is_static = False
            break
        if isinstance(found, bool):
            return  # each property is described
        known.update(found)
    if not is_static or (patterns and more):
        why = "it must stand beside properties, allOf and $ref only"
        work.leave(place, "unevaluatedProperties", why)
        return
    closing = {"properties": known, "additionalProperties": rest}
    if patterns:
        closing["patternProperties"] = patterns
    more.append(narrowed(closing))


def _known(work: Simplifier, core: Any, depth: int) -> dict[str, Any] | bool | None:
    """Return the properties that a core describes: True for all, None if that depends."""
    core = work.resolved(core)
    if isinstance(core, bool):
        return {}
    if core is None or depth > 8 or "patternProperties" in core or "anyOf" in core:
        return None
    if "additionalProperties" in core:
        return True
    known: dict[str, Any] = dict.fromkeys(core.get("properties", {}), True)
    for part in core.get("allOf", ()):
        found = _known(work, part, depth + 1)
        if found is None or isinstance(found, bool):
            return found
        known.update(found)
    return known
