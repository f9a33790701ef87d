"""Values written without JSON's quotes: their JSON, as the schema of a tool types them."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
OBJECT_KEYWORDS = frozenset(("properties", "required", "additionalProperties", "$ref"))
MAX_REFERENCES = 8  # that are followed one after the other
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_ANY: frozenset[str] = frozenset()
_NOTHING: Mapping[str, Any] = {}
_PYTHON = {"True": "true", "False": "false", "None": "null"}


def properties(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schemas of an object's members by name, references resolved."""
    whole = resolved(schema, schema)
    members = whole.get("properties")
    members = members if isinstance(members, Mapping) else {}
    required = whole.get("required")
    names = [*members, *(required if isinstance(required, list | tuple) else ())]
    return {name: resolved(members.get(name, {}), schema) for name in names}


def resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema that a reference into `root` stands for, or the schema itself."""
    for _ in range(MAX_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        schema = root
        for part in reference[2:].split("/"):
            schema = schema.get(part) if isinstance(schema, Mapping) else None
    return schema if isinstance(schema, Mapping) else _NOTHING


def cases(schema: Any, root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return schemas, of one type each where they say it, of which a value matches one."""
    found: list[Mapping[str, Any]] = []
    seen: set[int] = set()  # references may lead back
    waiting = [schema]
    while waiting:
        schema = resolved(waiting.pop(), root)
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
        parts = schema.get(name)
        if isinstance(parts, list) and (name != "allOf" or len(parts) == 1):
            return parts
    return None


def _by_type(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return a schema once for each of its types."""
    kind, values = schema.get("type"), schema.get("enum")
    if isinstance(values, list) and not isinstance(kind, str):
        strings = [value for value in values if isinstance(value, str)]
        others = [value for value in values if not isinstance(value, str)]
        return [{**schema, "enum": some} for some in (strings, others) if some]
    if isinstance(kind, list):
        return [{**schema, "type": each} for each in kind if isinstance(each, str)]
    return [schema]


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
    return not properties(schema) and schema.get("additionalProperties") is not False


def unenforced_in_object(schema: Mapping[str, Any]) -> list[str]:
    """Return the keywords of an object's schema that a list of its members does not enforce."""
    return sorted(schema.keys() - ANNOTATIONS - OBJECT_KEYWORDS)


def unenforced_in_string(schema: Mapping[str, Any]) -> list[str]:
    """Return the keywords of a string's schema that do not hold for a string without quotes."""
    if "const" in schema or "enum" in schema:
        return []
    found = sorted(schema.keys() - ANNOTATIONS - STRING_KEYWORDS)
    for index, part in enumerate(schema.get("allOf") or ()):
        found += [f"allOf.{index}.{name}" for name in unenforced_in_string(part)]
    return found


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
