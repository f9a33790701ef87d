"""The table of JSON Schema's keywords: what becomes of each, and which values it may have.

It was found by experiment with llguidance; `tests/grammar/json_schema` repeats the experiments
against the `jsonschema` package. Nothing that is not in this table reaches the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Fate = Literal["enforced", "rewritten", "note", "partly", "refused"]
Value = Literal[
    "any",
    "boolean",
    "count",
    "limit",
    "list",
    "names",
    "names by name",
    "number",
    "schema",
    "schema or list",
    "schema or names",
    "schemas",
    "schemas by name",
    "text",
    "types",
]
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
ALL = frozenset(TYPES)
_ANY = ""
_OF_ARRAYS = "array"
_OF_OBJECTS = "object"
_OF_STRINGS = "string"
_OF_NUMBERS = "number"


@dataclass(frozen=True, slots=True)
class Keyword:
    """One keyword.

    `enforced`: the engine does what the standard says. `rewritten`: it is expressed by enforced
    keywords. `partly`: so, where that is possible, else refused. `note`: it restricts no text.
    `refused`: it restricts texts in a way that cannot be enforced.
    """

    fate: Fate
    value: Value
    of: str = _ANY  # the type of the values that it restricts; empty: all
    why: str = ""  # the reason for the fate, where it is not obvious


def _notes(*names: str, value: Value = "any") -> dict[str, Keyword]:
    return dict.fromkeys(names, Keyword("note", value))


KEYWORDS: Mapping[str, Keyword] = {
    # any type
    "type": Keyword("enforced", "types"),
    "enum": Keyword("enforced", "list", why="the engine writes the keys of objects in their order"),
    "const": Keyword("enforced", "any"),
    "anyOf": Keyword("enforced", "schemas"),
    "allOf": Keyword("enforced", "schemas"),
    "oneOf": Keyword("partly", "schemas", why="the alternatives must exclude each other"),
    "not": Keyword("partly", "schema", why="the opposite of the schema must be expressible"),
    "if": Keyword("partly", "schema", why="the opposite of the condition must be expressible"),
    "then": Keyword("rewritten", "schema"),
    "else": Keyword("rewritten", "schema"),
    "$ref": Keyword("rewritten", "text", why="within the schema only"),
    "$dynamicRef": Keyword("partly", "text", why="where only one place can be meant"),
    "$recursiveRef": Keyword("partly", "text", why="where only one place can be meant"),
    # numbers
    "minimum": Keyword("enforced", "number", _OF_NUMBERS),
    "maximum": Keyword("enforced", "number", _OF_NUMBERS),
    "exclusiveMinimum": Keyword("enforced", "limit", _OF_NUMBERS),
    "exclusiveMaximum": Keyword("enforced", "limit", _OF_NUMBERS),
    "multipleOf": Keyword("enforced", "number", _OF_NUMBERS),
    # strings
    "minLength": Keyword("enforced", "count", _OF_STRINGS),
    "maxLength": Keyword("enforced", "count", _OF_STRINGS),
    "pattern": Keyword("partly", "text", _OF_STRINGS, "without lookaround and back references"),
    "format": Keyword("partly", "text", why="the formats that are regular; see formats.py"),
    "contentEncoding": Keyword("partly", "text", _OF_STRINGS, "those that are regular"),
    # arrays
    "items": Keyword("enforced", "schema or list", _OF_ARRAYS),
    "prefixItems": Keyword("enforced", "schemas", _OF_ARRAYS),
    "additionalItems": Keyword("enforced", "schema", _OF_ARRAYS),
    "minItems": Keyword("enforced", "count", _OF_ARRAYS),
    "maxItems": Keyword("enforced", "count", _OF_ARRAYS),
    "uniqueItems": Keyword("partly", "boolean", _OF_ARRAYS, "for arrays of few listed values"),
    "contains": Keyword("partly", "schema", _OF_ARRAYS, "for arrays of few items"),
    "minContains": Keyword("partly", "count", _OF_ARRAYS),
    "maxContains": Keyword("refused", "count", _OF_ARRAYS),
    "unevaluatedItems": Keyword("partly", "schema", _OF_ARRAYS, "beside prefixItems and items"),
    # objects
    "properties": Keyword("enforced", "schemas by name", _OF_OBJECTS, "in this order"),
    "required": Keyword("enforced", "names", _OF_OBJECTS),
    "additionalProperties": Keyword("enforced", "schema", _OF_OBJECTS, "after the others"),
    "patternProperties": Keyword(
        "partly", "schemas by name", _OF_OBJECTS, "if the patterns exclude each other"
    ),
    "propertyNames": Keyword("partly", "schema", _OF_OBJECTS, "as a pattern, a length or an enum"),
    "minProperties": Keyword("partly", "count", _OF_OBJECTS),
    "maxProperties": Keyword("partly", "count", _OF_OBJECTS),
    "dependentRequired": Keyword("rewritten", "names by name", _OF_OBJECTS),
    "dependentSchemas": Keyword("rewritten", "schemas by name", _OF_OBJECTS),
    "dependencies": Keyword("rewritten", "schema or names", _OF_OBJECTS),
    "unevaluatedProperties": Keyword("partly", "schema", _OF_OBJECTS, "where all are known"),
    # what only describes, or belongs to a document
    **_notes("title", "description", "$comment", "$id", "id", "$schema", "$anchor"),
    **_notes("$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "$defs", "definitions"),
    **_notes("default", "examples", "deprecated", "readOnly", "writeOnly"),
    **_notes("contentMediaType", "contentSchema"),  # of what a string holds, not of the string
    # OpenAPI's and those of tools that write schemas; `nullable` only allows more
    **_notes("example", "nullable", "discriminator", "xml", "externalDocs", "propertyOrdering"),
    **_notes(
        "components",
        "enumNames",
        "enumDescriptions",
        "markdownDescription",
        "errorMessage",
        "strict",
    ),
}
EXTENSIONS = ("x-", "$comment")  # how the names of notes of other tools begin
