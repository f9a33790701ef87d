"""Random schemas in the shapes that programs send: tools, OpenAPI, GitHub, Kubernetes, Pydantic."""

from __future__ import annotations

from random import Random
from typing import Any

WORDS = (
    *("name", "title", "status", "owner", "url", "labels", "count", "size", "email", "created_at"),
    *("spec", "replicas", "image", "ports", "kind", "amount", "currency", "tags", "address"),
    *("latitude", "enabled", "priority", "notes", "parent", "version", "metadata", "timeout"),
)
ENUMS = (
    ["open", "closed"],
    ["low", "medium", "high"],
    ["GET", "POST", "PUT", "DELETE"],
    ["USD", "EUR", "GBP", "JPY"],
    [1, 2, 3],
    ["a", "b", None],
)
STRINGS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {},
    {"minLength": 1},
    {"maxLength": 64},
    {"minLength": 1, "maxLength": 255},
    {"format": "date-time"},
    {"format": "date"},
    {"format": "uri"},
    {"format": "uuid"},
    {"format": "email"},
    {"format": "password"},
    {"pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63},
    {"pattern": r"^\d{5}(-\d{4})?$"},
    {"pattern": r"^#[0-9a-fA-F]{6}$"},
    {"pattern": r"^\+?[1-9]\d{1,14}$", "examples": ["+41446681800"]},
    {"pattern": "^arn:aws[a-z-]*:[a-z0-9-]+:"},
)
Schema = dict[str, Any]


def _note(random: Random, schema: Schema) -> Schema:
    """Add what describes a schema and restricts nothing."""
    if random.random() < 0.5:
        schema["description"] = f"The {random.choice(WORDS)} of it."
    if random.random() < 0.1:
        schema["title"] = random.choice(WORDS).title()
    if random.random() < 0.05:
        schema["default"] = None
    return schema


def field(random: Random, depth: int) -> Schema:
    """Return the schema of one field."""
    kind = random.random()
    if depth and kind < 0.16:
        return _note(random, record(random, depth - 1))
    if depth and kind < 0.30:
        return _note(random, _list(random, depth))
    if kind < 0.42:
        return _note(random, {"type": "integer", **_range(random)})
    if kind < 0.48:
        return _note(random, {"type": "number", "minimum": random.choice((0, -90, 0.5))})
    if kind < 0.56:
        return _note(random, {"type": "boolean"})
    if kind < 0.68:
        return _note(random, {"enum": random.choice(ENUMS)})
    if kind < 0.70:
        return _note(random, {"const": random.choice(("v1", 1, True))})
    if kind < 0.74:
        inner = {"type": "string", **random.choice(STRINGS)}
        return _note(random, {"anyOf": [inner, {"type": "null"}]})
    if kind < 0.77:
        return _note(random, {"type": ["string", "null"]})
    return _note(random, {"type": "string", **random.choice(STRINGS)})


def _range(random: Random) -> Schema:
    kind = random.random()
    if kind < 0.4:
        return {}
    if kind < 0.6:
        return {"minimum": random.choice((0, 1))}
    if kind < 0.8:
        return {"minimum": 1, "maximum": random.choice((5, 100, 65535))}
    return {"format": random.choice(("int32", "int64"))}


def _list(random: Random, depth: int) -> Schema:
    schema: Schema = {"type": "array", "items": field(random, depth - 1)}
    if random.random() < 0.3:
        schema["maxItems"] = random.choice((1, 5, 100))
    if random.random() < 0.3:
        schema["minItems"] = random.choice((0, 1))
    if random.random() < 0.03:
        schema["uniqueItems"] = True
    return schema


def record(random: Random, depth: int) -> Schema:
    """Return the schema of an object with named fields."""
    names = random.sample(WORDS, random.randint(1, 6))
    schema: Schema = {
        "type": "object",
        "properties": {name: field(random, depth) for name in names},
    }
    if random.random() < 0.8:
        schema["required"] = random.sample(names, random.randint(0, len(names)))
    if random.random() < 0.6:
        schema["additionalProperties"] = False
    return schema


def _strict(schema: Any) -> Any:
    """Return a schema as OpenAI's strict mode wants it: everything required, nothing else."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _strict(value) for name, value in schema.items()}
    if isinstance(made.get("properties"), dict) and made.get("type") == "object":
        made["required"] = list(made["properties"])
        made["additionalProperties"] = False
    return made


def tool(random: Random) -> Schema:
    """Return the parameters of a tool."""
    return record(random, 2)


def strict_tool(random: Random) -> Schema:
    """Return the parameters of a tool in strict mode."""
    made = _strict(record(random, 2))
    assert isinstance(made, dict)
    return made


def pydantic(random: Random) -> Schema:
    """Return what Pydantic writes: definitions, optional fields, unions by a field."""
    names = random.sample(("Address", "Item", "Cat", "Dog"), 3)
    definitions = {name: record(random, 1) for name in names}
    for name in names[:2]:
        inner = definitions[name]
        inner["properties"] = {"type": {"const": name.lower()}, **inner["properties"]}
        inner["required"] = ["type", *inner.get("required", [])]
        inner["title"] = name
    union = {
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in names[:2]],
        "discriminator": {"propertyName": "type"},
    }
    properties = {
        "main": union,
        "others": {"type": "array", "items": {"$ref": f"#/$defs/{names[2]}"}},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    }
    return {"$defs": definitions, "type": "object", "properties": properties, "required": ["main"]}


def kubernetes(random: Random) -> Schema:
    """Return the schema of a custom resource."""
    meta: Schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "required": ["name"],
    }
    spec = record(random, 2)
    spec["x-kubernetes-preserve-unknown-fields"] = True
    if random.random() < 0.3:
        spec["minProperties"] = 1
    return {
        "type": "object",
        "required": ["apiVersion", "kind", "metadata"],
        "properties": {
            "apiVersion": {"type": "string", "enum": ["example.com/v1"]},
            "kind": {"type": "string", "enum": ["Thing"]},
            "metadata": meta,
            "spec": spec,
            "quantity": {
                "anyOf": [{"type": "integer"}, {"type": "string"}],
                "x-kubernetes-int-or-string": True,
            },
        },
    }


def openapi(random: Random) -> Schema:
    """Return a component of an OpenAPI document, with its own keywords."""
    base = record(random, 1)
    more = record(random, 1)
    for each in (base, more):
        each.pop("additionalProperties", None)
    base["properties"]["nick"] = {"type": "string", "nullable": True, "example": "x"}
    if random.random() < 0.3:
        base["externalDocs"] = {"url": "https://example.com"}
    return {"allOf": [{"$ref": "#/components/schemas/Base"}, more], "components": {}} | {
        "components": {"schemas": {"Base": base}}
    }


def github(random: Random) -> Schema:
    """Return the body of a request to GitHub's API: alternatives by what is required."""
    schema = record(random, 2)
    names = list(schema["properties"])
    kind = random.random()
    if kind < 0.2 and len(names) > 1:
        schema["anyOf"] = [{"required": [names[0]]}, {"required": [names[1]]}]
    elif kind < 0.3 and len(names) > 1:
        schema["oneOf"] = [{"required": [names[0]]}, {"required": [names[1]]}]
    elif kind < 0.4:
        schema["dependentRequired"] = {names[0]: names[-1:]}
    elif kind < 0.5:
        schema["properties"]["mixed"] = {
            "oneOf": [{"type": "string"}, {"type": "integer"}, {"type": "array", "items": {}}]
        }
    elif kind < 0.55:
        name = names[0]
        schema["if"] = {"properties": {name: {"const": "open"}}, "required": [name]}
        schema["then"] = {"required": names[-1:]}
    return schema


def recursive(random: Random) -> Schema:
    """Return the schema of a tree."""
    leaf = record(random, 0)
    children: Schema = {"type": "array", "items": {"$ref": "#/$defs/node"}}
    if random.random() < 0.5:
        children["maxItems"] = 3
    leaf["properties"]["children"] = children
    return {"$defs": {"node": leaf}, "$ref": "#/$defs/node"}


MAKERS = (tool, strict_tool, pydantic, kubernetes, openapi, github, github, recursive)


def real_schema(random: Random) -> Schema:
    """Return a schema in one of these shapes."""
    return random.choice(MAKERS)(random)
