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
OBJECT_KEYWORDS = frozenset(("properties", "required", "additionalProperties", "$ref"))
MAX_REFERENCES = 8  # that are followed one after the other
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
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
    return schema if isinstance(schema, Mapping) else {}


def types_of(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the types that a schema allows; none if it does not say."""
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset((kind,))
    if isinstance(kind, list):
        return frozenset(one for one in kind if isinstance(one, str))
    if "const" in schema:
        return frozenset((type_of(schema["const"]),))
    if isinstance(schema.get("enum"), list):
        return frozenset(map(type_of, schema["enum"]))
    found: set[str] = set()
    for name in ("anyOf", "oneOf"):
        for one in schema.get(name) or ():
            if isinstance(one, Mapping):
                found |= types_of(one)
    return frozenset(found)


def unenforced_in_object(schema: Mapping[str, Any]) -> list[str]:
    """Return the keywords of an object's schema that a list of its members does not enforce."""
    return sorted(schema.keys() - ANNOTATIONS - OBJECT_KEYWORDS)


def unenforced_in_string(schema: Mapping[str, Any]) -> list[str]:
    """Return the keywords of a string's schema that do not hold for a string without quotes."""
    if "const" in schema or "enum" in schema:
        return []
    known = {"pattern"} if "pattern" in schema else {"minLength", "maxLength"}
    return sorted(schema.keys() - ANNOTATIONS - known - {"anyOf", "oneOf"})


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
