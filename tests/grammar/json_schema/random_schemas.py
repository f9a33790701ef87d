"""Random schemas: some of any keywords at all, some in the shapes that real programs send."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

NAMES = ("id", "name", "kind", "a", "b", "c", "items", "é", "x-y", "$ref")
TEXTS = ("", "a", "b", "ab", "abc", "é", "a b", '"', "1", "null", "2020-01-01")
PATTERNS = ("^a", "b$", "^[a-z]+$", r"^\d{2,4}$", "a|b", r"^\w+@\w+$", "^(a|b)*$", "[^a]", r"\s")
FORMATS = (
    *("date", "time", "date-time", "uuid", "email", "ipv4", "ipv6", "uri", "hostname"),
    *("duration", "byte", "password", "json-pointer", "uri-reference"),
)
Schema = dict[str, Any] | bool


def wild_schema(random: Random, depth: int = 3) -> Schema:
    """Return a schema of a few random keywords, which may contradict each other."""
    if depth == 0 or random.random() < 0.05:
        return random.choice((True, {}, _scalar(random)))
    makers: tuple[Callable[[Random, int], dict[str, Any]], ...] = (
        _wild_object,
        _wild_object,
        _wild_array,
        lambda random, depth: _scalar(random),
        _wild_combination,
    )
    schema = random.choice(makers)(random, depth)
    if random.random() < 0.15:
        schema |= _wild_combination(random, depth)
    return schema


def _scalar(random: Random) -> dict[str, Any]:
    kind = random.choice(
        ("string", "integer", "number", "boolean", "null", "enum", "const", "many")
    )
    if kind == "string":
        schema: dict[str, Any] = {"type": "string"}
        if random.random() < 0.3:
            schema["minLength"] = random.randint(0, 3)
        if random.random() < 0.3:
            schema["maxLength"] = random.randint(2, 8)
        if random.random() < 0.2:
            schema["pattern"] = random.choice(PATTERNS)
        if random.random() < 0.2:
            schema["format"] = random.choice(FORMATS)
        return schema
    if kind in ("integer", "number"):
        return {"type": kind, **_bounds(random, kind)}
    if kind == "enum":
        return {"enum": [_value(random) for _ in range(random.randint(1, 4))]}
    if kind == "const":
        return {"const": _value(random)}
    if kind == "many":
        return {"type": random.sample(("string", "integer", "null", "boolean", "array"), 2)}
    return {"type": kind}


def _bounds(random: Random, kind: str) -> dict[str, Any]:
    low = random.randint(-20, 20) if kind == "integer" else round(random.uniform(-5, 5), 2)
    bounds: dict[str, Any] = {}
    if random.random() < 0.4:
        bounds[random.choice(("minimum", "exclusiveMinimum"))] = low
    if random.random() < 0.4:
        bounds[random.choice(("maximum", "exclusiveMaximum"))] = low + random.choice((1, 2.5, 100))
    if random.random() < 0.1:
        bounds["multipleOf"] = random.choice((1, 3, 0.5, 0.01))
    return bounds


def _value(random: Random, depth: int = 1) -> Any:
    kind = random.random()
    if depth and kind < 0.1:
        return [_value(random, 0) for _ in range(random.randint(0, 2))]
    if depth and kind < 0.2:
        return {random.choice(NAMES): _value(random, 0) for _ in range(random.randint(0, 2))}
    return random.choice((None, True, False, 0, 1, -7, 2.5, 100, *TEXTS))


def _wild_array(random: Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array"}
    if random.random() < 0.7:
        schema["items"] = wild_schema(random, depth - 1)
    if random.random() < 0.2:
        schema["prefixItems"] = [
            wild_schema(random, depth - 1) for _ in range(random.randint(1, 3))
        ]
    if random.random() < 0.3:
        schema["minItems"] = random.randint(0, 2)
    if random.random() < 0.3:
        schema["maxItems"] = random.randint(1, 4)
    if random.random() < 0.04:
        schema["uniqueItems"] = True
    if random.random() < 0.04:
        schema["contains"] = wild_schema(random, depth - 1)
    return schema


def _wild_object(random: Random, depth: int) -> dict[str, Any]:
    names = random.sample(NAMES, random.randint(0, 4))
    properties = {name: wild_schema(random, depth - 1) for name in names}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if random.random() < 0.1:
        del schema["type"]
    if random.random() < 0.6:
        schema["required"] = random.sample(NAMES, random.randint(0, 2)) + names[:1]
    if random.random() < 0.4:
        schema["additionalProperties"] = random.choice((False, wild_schema(random, depth - 1)))
    chance = 0.06
    if random.random() < chance:
        schema["patternProperties"] = {random.choice(PATTERNS): wild_schema(random, depth - 1)}
    if random.random() < chance:
        schema["minProperties"] = random.randint(0, 2)
    if random.random() < chance:
        schema["maxProperties"] = random.randint(1, 4)
    if random.random() < chance:
        schema["propertyNames"] = random.choice(
            ({"pattern": "^[a-z]+$"}, {"maxLength": 4}, {"enum": ["a", "b", "zz"]}, True)
        )
    if random.random() < chance:
        schema["dependentRequired"] = {random.choice(NAMES): random.sample(NAMES, 1)}
    if random.random() < chance:
        schema["dependentSchemas"] = {random.choice(NAMES): wild_schema(random, depth - 1)}
    if random.random() < chance:
        schema["unevaluatedProperties"] = False
    return schema


def _wild_combination(random: Random, depth: int) -> dict[str, Any]:
    kind = random.choice(("anyOf", "allOf", "oneOf", "anyOf", "not", "if", "$ref"))
    if kind == "not":
        return {"not": _scalar(random)}
    if kind == "$ref":
        inner = wild_schema(random, depth - 1)
        return {"$ref": "#/$defs/inner", "$defs": {"inner": inner}} if depth == 3 else {}
    if kind == "if":
        name = random.choice(NAMES)
        condition = {"properties": {name: {"const": random.choice(TEXTS)}}, "required": [name]}
        then = {"required": [random.choice(NAMES)]}
        other = {"properties": {random.choice(NAMES): False}}
        return {"type": "object", "if": condition, "then": then, "else": other}
    count = 2 if kind != "anyOf" else random.randint(1, 3)
    return {kind: [wild_schema(random, depth - 1) for _ in range(count)]}
