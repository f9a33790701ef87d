"""Values written without JSON's quotes: their JSON, as the schema of a tool types them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

# Keywords that allow and forbid nothing by themselves.
ANNOTATIONS = frozenset(
    [
        "type",
        "title",
        "description",
        "default",
        "examples",
        "$defs",
        "definitions",
        "$schema",
        "$id",
        "$comment",
        "deprecated",
        "readOnly",
        "writeOnly",
    ]
)
KEY = "/[A-Za-z_][A-Za-z0-9_]*/"  # of an object whose keys are not listed, in a grammar
STRING_KEYWORDS = frozenset(("pattern", "minLength", "maxLength", "allOf"))
OBJECT_KEYWORDS = frozenset(("properties", "required", "additionalProperties"))
_LENGTHS = STRING_KEYWORDS - {"allOf"}  # which mean nothing beside other types
MAX_REFERENCES = 8  # that are followed one after the other
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_ANY: frozenset[str] = frozenset()
_NOTHING: Mapping[str, Any] = {}
_PYTHON = {"True": "true", "False": "false", "None": "null"}


def properties(schema: Mapping[str, Any], root: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the schemas of an object's members by name, references into `root` resolved."""
    root = schema if root is None else root
    whole = resolved(schema, root)
    members = whole.get("properties")
    members = members if isinstance(members, Mapping) else {}
    required = whole.get("required")
    names = [*members, *(required if isinstance(required, list | tuple) else ())]
    return {name: resolved(members.get(name, {}), root) for name in names}


def resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema that a reference into `root` stands for, or the schema itself.

    A reference beside other keywords is not followed: it does not stand for all of them.
    """
    for _ in range(MAX_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        if schema.keys() - ANNOTATIONS != {"$ref"}:
            break
        schema = root
        for part in reference[2:].split("/"):
            schema = schema.get(part) if isinstance(schema, Mapping) else None
    return schema if isinstance(schema, Mapping) else _NOTHING


def cases(schema: Any, root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return schemas, of one type each where they say it, of which a value matches one."""
    found: list[Mapping[str, Any]] = []
    seen: set[int] = set()  # references may form a cycle
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if one is False:
            continue
        schema = resolved(one, root)
        if id(schema) in seen:
            continue
        seen.add(id(schema))
        parts = _choices(schema)
        if parts is None:
            found += _by_type(schema)
        else:
            waiting += reversed(parts)
    return found


def _choices(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the schemas between which a schema lets choose; None if it says more than that."""
    if not schema.keys().isdisjoint(("type", "const", "enum")):
        return None
    for name in ("anyOf", "oneOf", "allOf"):
        parts = schema.get(name) if schema.keys() - ANNOTATIONS == {name} else None
        if isinstance(parts, list) and (name != "allOf" or len(parts) == 1):
            return parts
    return None


def _by_type(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return a schema once for each of its types."""
    kind, values = schema.get("type"), schema.get("enum")
    if isinstance(values, list):
        right = [value for value in values if _has_type(value, kind)]
        strings = [value for value in right if isinstance(value, str)]
        others = [value for value in right if not isinstance(value, str)]
        return [{**schema, "enum": some} for some in (strings, others) if some] or [schema]
    if isinstance(kind, list):
        return [{**schema, "type": each} for each in kind if isinstance(each, str)]
    return [schema]


def _has_type(value: Any, kind: Any) -> bool:
    """Return whether a value has a type, or one of several."""
    kinds = kind if isinstance(kind, list) else [kind]
    found = {type_of(value)}
    if isinstance(value, float) and value.is_integer():
        found.add("integer")
    if "integer" in found:
        found.add("number")
    return kind is None or not found.isdisjoint(each for each in kinds if isinstance(each, str))


def types_of(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """Return the types that a schema allows; none if it does not say."""
    found: set[str] = set()
    for case in cases(schema, root):
        types = type_of_case(case)
        if not types:
            return frozenset()
        found |= types
    return frozenset(found)


def type_of_case(case: Mapping[str, Any]) -> frozenset[str]:
    """Return the types that one case of a schema allows; none if it does not say."""
    if isinstance(case.get("type"), str):
        return frozenset((case["type"],))
    values = [case["const"]] if "const" in case else case.get("enum")
    return frozenset(map(type_of, values)) if isinstance(values, list) else _ANY


def standing_alone(case: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part of a schema with what the references in it refer to."""
    return {**{name: root[name] for name in ("$defs", "definitions") if name in root}, **case}


def takes_any_keys(schema: Mapping[str, Any]) -> bool:
    """Return whether an object's schema lists no members and lets them be any."""
    whole = resolved(schema, schema)
    return not properties(schema) and whole.get("additionalProperties") is not False


def unenforced_in_object(schema: Mapping[str, Any]) -> list[str]:
    """Return the keywords of an object's schema that a list of its members does not enforce."""
    found = schema.keys() - ANNOTATIONS - OBJECT_KEYWORDS
    members, required = schema.get("properties") or {}, schema.get("required") or ()
    others = schema.get("additionalProperties", True)
    is_free = not members and others is not False
    if others not in (True, {}) and (is_free or not members.keys() >= set(required)):
        found |= {"additionalProperties"}  # of members whose schemas are not listed
    never = [f"properties.{name}" for name, member in members.items() if member is False]
    return sorted(found) + never


def unenforced_in_string(schema: Mapping[str, Any], end: str) -> list[str]:
    """Return the keywords of a string's schema that do not hold for a string without quotes.

    A listed value ends with `end`, and no earlier.
    """
    if "const" in schema or "enum" in schema:
        name = "const" if "const" in schema else "enum"
        found = sorted(schema.keys() - ANNOTATIONS - {name})
        mark = end.strip()
        for value in listed(schema):
            is_whole = isinstance(value, str) and (value + end).index(mark) == len(
                value
            ) + end.index(mark)
            found += [] if is_whole or name in found else [name]
        return found
    found = sorted(schema.keys() - ANNOTATIONS - STRING_KEYWORDS)
    for index, part in enumerate(schema.get("allOf") or ()):
        if not isinstance(part, Mapping) or not part.keys().isdisjoint(("const", "enum")):
            found.append(f"allOf.{index}")
            continue
        if "type" in part and not part["type"] == schema.get("type") == "string":
            found.append(f"allOf.{index}.type")
        inner = {"type": schema.get("type"), **part}
        found += [f"allOf.{index}.{name}" for name in unenforced_in_string(inner, end)]
    return found


def listed(schema: Mapping[str, Any]) -> list[Any]:
    """Return the values that a schema lists."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) else []


def mistakable(choices: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Return the types that the text of a string may not have beside these other schemas.

    Text that is JSON of another type is read as that type, and may then match none of them.
    """
    limited, free = set[str](), {"string"}
    for case in choices:
        types = type_of_case(case)
        if not types:
            return _ANY
        if types != {"string"}:
            (limited if case.keys() - ANNOTATIONS - _LENGTHS else free).update(types)
    if "number" in free:
        free.add("integer")
    return frozenset(limited - free)


def is_mistaken(value: str, types: frozenset[str]) -> bool:
    """Return whether a string without quotes is read as another value."""
    return not json_of(value, types).startswith('"')


def type_of(value: Any) -> str:
    """Return the name of a value's type in schemas."""
    return _TYPES.get(type(value), "array" if isinstance(value, list) else "object")


def json_of(text: str, types: frozenset[str]) -> str:
    """Return the JSON of a value that is written as JSON, or is a string without quotes."""
    bare = text.strip()
    bare = _PYTHON.get(bare, bare)
    if bare.lower() in ("true", "false") and "boolean" in types:
        bare = bare.lower()
    kinds = _kinds(bare)
    if kinds and (types & kinds or not (types or "string" in kinds)):
        return bare
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """Return a part of a text as it stands in a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _kinds(text: str) -> set[str]:
    """Return the types that a JSON value has; none if the text is not JSON."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return set()
    kinds = {type_of(value)}
    if "integer" in kinds:
        kinds.add("number")
    elif isinstance(value, float) and value.is_integer():
        kinds.add("integer")
    return kinds


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
