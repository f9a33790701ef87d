"""The check of the values that a schema's keywords have, before anything is made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from octavo.grammar.json_schema.keywords import TYPES, Value

MAX_NUMBER = 2**53 - 1  # beyond it, programs read different numbers in the same text


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _are_schemas(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_schema, value))


def _are_schemas_by_name(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_schema, value.values()))


def _are_types(value: Any) -> bool:
    given = [value] if isinstance(value, str) else value
    return (
        isinstance(given, list)
        and bool(given)
        and all(isinstance(each, str) and each in TYPES for each in given)
    )


CHECKS: Mapping[Value, tuple[Callable[[Any], bool], str]] = {
    "any": (lambda value: True, "anything"),
    "boolean": (lambda value: isinstance(value, bool), "true or false"),
    "count": (_is_count, "a whole number from 0"),
    "list": (lambda value: isinstance(value, list) and bool(value), "a list of values"),
    "number": (_is_number, "a number"),
    "limit": (lambda value: isinstance(value, bool) or _is_number(value), "a number"),
    "text": (lambda value: isinstance(value, str), "a string"),
    "schema": (_is_schema, "a schema: an object, true or false"),
    "schema or list": (
        lambda value: all(map(_is_schema, value if isinstance(value, list) else [value])),
        "a schema or a list of schemas",
    ),
    "schemas": (_are_schemas, "a list of schemas that is not empty"),
    "schemas by name": (_are_schemas_by_name, "an object of schemas"),
    "schema or names": (
        lambda value: (
            isinstance(value, dict)
            and all(_is_schema(each) or _are_names(each) for each in value.values())
        ),
        "an object of schemas or lists of names",
    ),
    "names": (_are_names, "a list of strings"),
    "names by name": (
        lambda value: isinstance(value, dict) and all(map(_are_names, value.values())),
        "an object of lists of strings",
    ),
    "types": (_are_types, f"one of {', '.join(TYPES)}, or a list of them"),
}


def type_of(value: Any) -> str:
    """Return the type of a JSON value; a whole number is an integer."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if value == int(value) else "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"
