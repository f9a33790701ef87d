"""Schemas as users send them, by name: with libraries' unions, references and patterns.

They were written without a look at what is enforced.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
STRING, INTEGER, NUMBER, BOOLEAN, NULL = (
    {"type": each} for each in ("string", "integer", "number", "boolean", "null")
)


def record(properties: Schema, required: list[str] | None = None, **more: Any) -> Schema:
    """Return the schema of an object, closed and with all properties if nothing else is said."""
    names = list(properties) if required is None else required
    closed = {"additionalProperties": False, **more}
    return {"type": "object", "properties": properties, "required": names, **closed}


def listed(items: Any, **more: Any) -> Schema:
    """Return the schema of an array."""
    return {"type": "array", "items": items, **more}


def one_of(*values: Any) -> Schema:
    """Return the schema of listed values."""
    return {"enum": list(values)}


def ref(name: str) -> Schema:
    """Return a reference to a definition."""
    return {"$ref": f"#/$defs/{name}"}


def text(pattern: str = "", **more: Any) -> Schema:
    """Return the schema of a string."""
    return {"type": "string", **({"pattern": pattern} if pattern else {}), **more}


def maybe(schema: Any) -> Schema:
    """Return the schema of a value or null."""
    return {"anyOf": [schema, NULL]}


UNION = {
    "cat": record({"t": {"const": "cat", "type": "string"}, "lives": INTEGER}, ["t"]),
    "dog": record({"t": {"const": "dog", "type": "string"}, "name": STRING}),
}
SENT: dict[str, Any] = {
    "steps of a proof": record(
        {"steps": listed(record({"explanation": STRING, "output": STRING})), "final_answer": STRING}
    ),
    "components that nest": {
        **record(
            {"type": one_of("div", "form"), "label": STRING, "children": listed({"$ref": "#"})}
        ),
        "description": "a part of a page",
    },
    "a linked list": {
        **record({"list": ref("node")}),
        "$defs": {"node": record({"value": NUMBER, "next": maybe(ref("node"))})},
    },
    "a condition of a query": record(
        {
            "column": STRING,
            "operator": one_of("=", ">", "!="),
            "value": {"anyOf": [STRING, NUMBER, record({"column_name": STRING})]},
        }
    ),
    "ratings": record({"r": {**NUMBER, "minimum": 0, "maximum": 5, "multipleOf": 0.5}}),
    "a user and a zip code": record(
        {"user": text("^@[a-zA-Z0-9_]+$"), "zip": text(r"^\d{5}(?:[-\s]\d{4})?$")}
    ),
    "points": {"type": "array", "prefixItems": [INTEGER, INTEGER], "items": False, "minItems": 2},
    "any JSON": {
        **ref("j"),
        "$defs": {
            "j": {
                "anyOf": [
                    *(NULL, BOOLEAN, NUMBER, STRING, listed(ref("j"))),
                    {"type": "object", "additionalProperties": ref("j")},
                ]
            }
        },
    },
    "an expression": {
        **ref("e"),
        "$defs": {
            "e": {"oneOf": [NUMBER, record({"op": one_of("+", "-"), "l": ref("e"), "r": ref("e")})]}
        },
    },
    "a rule of logic": {
        **ref("r"),
        "$defs": {
            "r": {
                "anyOf": [
                    record({"all": listed(ref("r"), minItems=1)}),
                    record({"not": ref("r")}),
                    record({"field": STRING, "value": {"type": ["string", "number", "boolean"]}}),
                ]
            }
        },
    },
    "a reference by anchor": {
        "$ref": "#n",
        "$defs": {"x": {"$anchor": "n", **record({"n": maybe({"$ref": "#n"}), "k": INTEGER})}},
    },
    "a reference with siblings": {
        **record({"a": {**ref("s"), "maxLength": 4, "description": "short"}}),
        "$defs": {"s": text(minLength=2)},
    },
    "a union by a field": {
        "oneOf": [ref("cat"), ref("dog")],
        "discriminator": {"propertyName": "t", "mapping": {"cat": "#/$defs/cat"}},
        "$defs": UNION,
    },
    "a union by a field that is optional": {
        "oneOf": [
            record({"t": {"const": "a"}, "v": STRING}, ["v"]),
            record({"t": {"const": "b"}}, []),
        ]
    },
    "a union by a nested field": {
        "oneOf": [
            record({"meta": record({"v": {"const": 1}}), "data": STRING}),
            record({"meta": record({"v": {"const": 2}}), "data": INTEGER}),
        ]
    },
    "coordinates": {
        "oneOf": [
            record({"type": one_of("Point"), "at": listed(NUMBER, minItems=2, maxItems=4)}),
            record({"type": one_of("Line"), "at": listed(listed(NUMBER, minItems=2), minItems=2)}),
        ]
    },
    "services by name": record(
        {
            "services": {
                "type": "object",
                "patternProperties": {"^[a-zA-Z0-9._-]+$": record({"image": STRING}, ["image"])},
                "additionalProperties": False,
                "minProperties": 1,
            }
        }
    ),
    "names of two kinds": {
        "type": "object",
        "patternProperties": {"^s_": STRING, "^n_": NUMBER},
        "additionalProperties": False,
        "minProperties": 1,
    },
    "a name under a pattern": {
        "type": "object",
        "properties": {"x-a": text(maxLength=3)},
        "patternProperties": {"^x-": text(minLength=2)},
        "required": ["x-a"],
    },
    "names in lower case": {
        "type": "object",
        "propertyNames": text("^[a-z]+$"),
        "additionalProperties": INTEGER,
        "maxProperties": 2,
    },
    "both or none": record({"lat": NUMBER, "lon": NUMBER}, [])
    | {"dependentRequired": {"lat": ["lon"], "lon": ["lat"]}},
    "what a field brings with it": {
        "type": "object",
        "properties": {"card": NUMBER},
        "dependentSchemas": {"card": {"properties": {"address": STRING}, "required": ["address"]}},
    },
    "a code by country": record({"country": one_of("US", "CA"), "code": STRING})
    | {
        "if": {"properties": {"country": {"const": "US"}}},
        "then": {"properties": {"code": text(r"^\d{5}$")}},
        "else": {"properties": {"code": text(r"^[A-Z]\d[A-Z] \d[A-Z]\d$")}},
    },
    "a value by kind": record({"kind": one_of("a", "b", "c"), "value": {}})
    | {
        "allOf": [
            {
                "if": {"properties": {"kind": {"const": kind}}},
                "then": {"properties": {"value": value}},
            }
            for kind, value in (("a", STRING), ("b", INTEGER), ("c", listed(INTEGER)))
        ]
    },
    "a guardian of the young": record(
        {"age": {**INTEGER, "minimum": 0, "maximum": 99}, "g": STRING}, ["age"]
    )
    | {
        "if": {"properties": {"age": {"exclusiveMaximum": 18}}},
        "then": {"required": ["g"]},
    },
    "this or that": record({"email": text(format="email"), "phone": STRING}, [])
    | {"anyOf": [{"required": ["email"]}, {"required": ["phone"]}]},
    "one of three": record({"a": STRING, "b": STRING, "c": STRING}, [])
    | {"oneOf": [{"required": [each]} for each in "abc"]},
    "not both": record({"a": STRING, "b": STRING}, []) | {"not": {"required": ["a", "b"]}},
    "twelve pairs": record({f"p{each}": {"anyOf": [STRING, INTEGER]} for each in range(12)}),
    "eight rules": record({"k": one_of(*"abcdefgh"), **dict.fromkeys("ABCDEFGH", STRING)}, ["k"])
    | {
        "allOf": [
            {"if": {"properties": {"k": {"const": each}}}, "then": {"required": [each.upper()]}}
            for each in "abcdefgh"
        ]
    },
    "a base and more": {
        "allOf": [ref("base"), {"properties": {"name": STRING}, "required": ["name"]}],
        "unevaluatedProperties": False,
        "$defs": {"base": {"type": "object", "properties": {"id": INTEGER}, "required": ["id"]}},
    },
    "two patterns": text(allOf=[{"pattern": "[A-Z]"}, {"pattern": "[0-9]"}], maxLength=12),
    "a password": text(r"^(?=.*[a-z])(?=.*\d)[A-Za-z\d]{8,16}$"),
    "a name of a package": text("^(?:@[a-z0-9-*~][a-z0-9-*._~]*/)?[a-z0-9-~][a-z0-9-._~]*$"),
    "a schedule": text(r"^(\*|[0-5]?\d) (\*|[01]?\d|2[0-3]) (\*|[1-9]|1[0-2]) (\*|[0-6])$"),
    "a date of this century": text("^20", format="date"),
    "times": listed(record({"start": text(format="time"), "tz": one_of("UTC")}), maxItems=2),
    "rights by role": {
        "type": "object",
        "propertyNames": text("^[a-z_]+$"),
        "additionalProperties": listed(one_of("r", "w", "x"), uniqueItems=True, minItems=1),
    },
    "rules of a firewall": listed(
        record({"net": text(format="cidrv4"), "port": {**INTEGER, "minimum": 1, "maximum": 65535}}),
        maxItems=3,
    ),
    "constants": record({"o": {"const": {"a": [1, {"b": None}]}}, "z": {"const": 0}}),
    "odd letters": one_of("é", "日本", '"quoted"', "back\\slash", "new\nline", ""),
    "many constants": one_of(*(f"value number {each}" for each in range(300))),
    "a dynamic reference": {
        "$id": "https://example.com/tree",
        "$dynamicAnchor": "node",
        **record({"children": listed({"$dynamicRef": "#node"}), "value": INTEGER}, ["value"]),
    },
    "many fields": record(
        {f"f{each}": (STRING, INTEGER, NUMBER, BOOLEAN)[each % 4] for each in range(20)}
    ),
}
# Schemas that cannot be enforced, with the place that the error names.
REFUSED: dict[str, tuple[Any, str]] = {
    "a set of texts": (
        record({"tags": listed(STRING, uniqueItems=True)}),
        ".properties.tags.uniqueItems",
    ),
    "two names of any": ({"additionalProperties": INTEGER, "minProperties": 2}, ".minProperties"),
    "patterns that overlap": (
        {"patternProperties": {"a": STRING, "^b": INTEGER}},
        ".patternProperties",
    ),
    "a format of its own": (text(format="vin"), ".format"),
    "a keyword of its own": (record({"a": text(minimumLength=2)}), ".properties.a.minimumLength"),
    "a text twice": (text(r"^(a|b)\1$"), ".pattern"),
    "twelve choices": (
        {
            "allOf": [
                {"anyOf": [{"required": [f"a{n}"]}, {"required": [f"b{n}"]}]} for n in range(12)
            ]
        },
        ".allOf",
    ),
}
