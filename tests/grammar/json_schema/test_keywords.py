"""Each keyword of the table against the reference: what the grammar allows, the schema allows."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from decimal import Decimal
from itertools import permutations
from typing import Any

import pytest
from jsonschema import Draft4Validator, Draft7Validator, Draft202012Validator

from octavo.core.structured_outputs import ShapeError, StructuredOutputsParams
from octavo.grammar.json_schema.keywords import KEYWORDS
from octavo.grammar.shapes import grammar_of
from tests.grammar.json_schema.trial import judge
from tests.grammar.json_schema.walks import accepts, matcher_of

OBJECTS = ("{}", '{"a":1}', '{"b":1}', '{"a":1,"b":2}', '{"a":"x"}', '{"a":1,"b":2,"c":3}')
ARRAYS = ("[]", "[1]", '["a"]', "[1,2]", "[1,1]", '[1,"a"]', "[1,2,3]", "[[]]")
TEXTS = ('""', '"a"', '"b"', '"ab"', '"abc"', '"\\n"', '"é"', '"😀😀"', '"1"', '"a\\"b"')
NUMBERS = ("0", "1", "-1", "2", "3", "4.5", "5", "6", "0.1", "0.3", "100", "-3")
OTHERS = ("null", "true", "false")
ALL = (*OBJECTS, *ARRAYS, *TEXTS, *NUMBERS, *OTHERS)
# Schemas by keyword. Of the values above the grammar must allow exactly those that are valid.
EXACT: dict[str, list[Any]] = {
    "type": [{"type": each} for each in ("null", "boolean", "integer", "string", "array")]
    + [{"type": "object"}, {"type": "number"}, {"type": ["integer", "null"]}],
    "enum": [{"enum": [1, "a", None]}, {"enum": [[1], {"a": 1}]}, {"enum": ["é", True, 0.1]}],
    "const": [{"const": 1}, {"const": 'a"b'}, {"const": None}, {"const": {"a": 1}}],
    "anyOf": [{"anyOf": [{"type": "null"}, {"minimum": 3}]}],
    "allOf": [{"allOf": [{"type": "integer"}, {"minimum": 2}]}, {"allOf": [{}, True]}],
    "oneOf": [
        {"oneOf": [{"type": "null"}, {"type": "integer"}]},
        {"type": "integer", "oneOf": [{"maximum": 3}, {"minimum": 2}]},
        {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"oneOf": [{"enum": ["a", "b"]}, {"enum": ["b", "ab"]}]},
        {"oneOf": [True, {"type": "string"}]},
        {"type": "number", "oneOf": [{"maximum": 2}, {"minimum": 2}]},
    ],
    "not": [
        {"not": {"type": "string"}},
        {"not": {"const": "a"}, "type": "string"},
        {"not": {"enum": ["a", "abc"]}, "type": "string"},
        {"not": {"required": ["a"]}, "type": "object"},
        {"type": "integer", "not": {"minimum": 3}},
        {"type": "integer", "not": {"enum": [1, 3]}},
        {"type": "string", "not": {"maxLength": 1}},
        {"type": "array", "not": {"maxItems": 1}},
        {"type": "object", "not": {"properties": {"a": {"const": 1}}, "required": ["a"]}},
        {"not": False},
        {"type": "integer", "not": {"not": {"minimum": 3}}},
        {"not": {"anyOf": [{"type": "string"}, {"type": "object"}]}, "type": ["string", "null"]},
    ],
    "if": [
        {
            "type": "object",
            "if": {"properties": {"a": {"const": 1}}, "required": ["a"]},
            "then": {"required": ["b"]},
            "else": {"required": ["c"]},
        },
        {"type": "integer", "if": {"minimum": 3}, "then": {"maximum": 5}},
        {"type": "object", "if": {"not": {"required": ["a"]}}, "then": {"required": ["b"]}},
    ],
    "then": [{"then": {"type": "null"}}],
    "else": [{"else": {"type": "null"}}],
    "$ref": [
        {"$ref": "#/$defs/x", "$defs": {"x": {"type": "integer"}}},
        {"$ref": "#/$defs/x~1y%20z", "$defs": {"x/y z": {"type": "integer"}}},
        {"$ref": "#here", "$defs": {"x": {"$anchor": "here", "type": "integer"}}},
        {"$id": "http://a/b", "$ref": "c", "$defs": {"x": {"$id": "c", "type": "integer"}}},
        {"properties": {"a": {"$ref": "#/properties/b"}, "b": {"type": "integer"}}},
        {"$ref": "#/$defs/x", "minimum": 3, "$defs": {"x": {"type": "integer"}}},
        {"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"type": "integer"}]}},
    ],
    "$dynamicRef": [
        {"$dynamicRef": "#x", "$defs": {"x": {"$dynamicAnchor": "x", "type": "integer"}}}
    ],
    "minimum": [{"minimum": 2}, {"type": "integer", "minimum": 1.5}, {"minimum": -1}],
    "maximum": [{"maximum": 2}, {"type": "integer", "maximum": 4.9}],
    "exclusiveMinimum": [{"exclusiveMinimum": 2}, {"exclusiveMinimum": 0.1}],
    "exclusiveMaximum": [{"exclusiveMaximum": 2}],
    "multipleOf": [{"multipleOf": 3}, {"multipleOf": 0.1}, {"type": "integer", "multipleOf": 2}],
    "minLength": [{"minLength": 2}],
    "maxLength": [{"maxLength": 1}],
    "pattern": [{"pattern": "^a"}, {"pattern": "b$"}, {"pattern": "^[ab]+$"}, {"pattern": "a|^b$"}],
    "items": [{"items": {"type": "integer"}}, {"items": False}],
    "prefixItems": [{"prefixItems": [{"type": "integer"}, {"type": "string"}]}],
    "minItems": [{"minItems": 2}, {"minItems": 2.0}],
    "maxItems": [{"maxItems": 1}, {"maxItems": 0}],
    "uniqueItems": [
        {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True},
        {"type": "array", "maxItems": 1, "uniqueItems": True},
        {"uniqueItems": False},
        {
            "type": "array",
            "items": {"type": "integer", "minimum": 1, "maximum": 2},
            "uniqueItems": True,
        },
        {"type": "array", "items": {"anyOf": [{"const": 1}, {"enum": ["a"]}]}, "uniqueItems": True},
        {
            "type": "array",
            "prefixItems": [{"type": "integer"}, {"type": "string"}, True],
            "maxItems": 2,
            "uniqueItems": True,
        },
        {"type": "string", "uniqueItems": True},
    ],
    "contains": [
        {"contains": {"type": "string"}},
        {"type": "array", "contains": {"const": 2}},
        {"contains": {"type": "null"}, "minContains": 0},
        {"contains": {"type": "integer"}, "minContains": 2},
    ],
    "unevaluatedItems": [
        {"unevaluatedItems": False},
        {"prefixItems": [{"type": "integer"}], "unevaluatedItems": {"type": "string"}},
        {"items": {"type": "integer"}, "unevaluatedItems": False},
    ],
    "properties": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"a": False}}],
    "required": [{"required": ["b"]}, {"type": "object", "required": ["a", "b"]}],
    "additionalProperties": [
        {"properties": {"a": True}, "additionalProperties": False},
        {"type": "object", "additionalProperties": {"type": "integer"}},
    ],
    "patternProperties": [
        {"patternProperties": {"^a": {"type": "integer"}}},
        {"patternProperties": {"^a": True}, "additionalProperties": False},
        {"patternProperties": {"^a": {"type": "integer"}}, "properties": {"b": {"minimum": 2}}},
    ],
    "propertyNames": [
        {"propertyNames": {"pattern": "^[ab]$"}},
        {"propertyNames": {"enum": ["a", "b"]}},
        {"propertyNames": {"maxLength": 0}},
        {"propertyNames": {"const": "a"}, "properties": {"a": {"type": "integer"}}},
        {"propertyNames": False},
        {"propertyNames": {"pattern": "^a$"}, "additionalProperties": {"type": "string"}},
    ],
    "minProperties": [
        {"minProperties": 1},
        {"properties": {"a": {}, "b": {}}, "minProperties": 2, "additionalProperties": False},
        {"properties": {"a": {}}, "required": ["a"], "minProperties": 1},
    ],
    "maxProperties": [
        {"maxProperties": 1},
        {"properties": {"a": {}, "b": {}}, "maxProperties": 1, "additionalProperties": False},
        {"properties": {"a": {}, "b": {}}, "maxProperties": 1},
        {"properties": {"a": {}}, "maxProperties": 2},
        {"properties": {"a": {}, "b": {}}, "maxProperties": 2, "minProperties": 1},
    ],
    "dependentRequired": [{"dependentRequired": {"a": ["b"], "b": ["a"]}}],
    "dependentSchemas": [{"dependentSchemas": {"a": {"required": ["b"]}, "c": False}}],
    "unevaluatedProperties": [
        {"properties": {"a": True}, "unevaluatedProperties": False},
        {"allOf": [{"properties": {"a": True}}], "unevaluatedProperties": False},
        {"properties": {"a": True}, "unevaluatedProperties": {"type": "integer"}},
    ],
}
OLDER: dict[str, list[tuple[Any, Any]]] = {
    "items": [({"items": [{"type": "integer"}, {"type": "string"}]}, Draft7Validator)],
    "additionalItems": [
        ({"items": [{"type": "integer"}], "additionalItems": {"type": "string"}}, Draft7Validator),
        ({"items": {"type": "integer"}, "additionalItems": False}, Draft7Validator),
    ],
    "dependencies": [
        ({"dependencies": {"a": ["b"]}}, Draft7Validator),
        ({"dependencies": {"a": {"required": ["b"]}}}, Draft7Validator),
    ],
    "exclusiveMinimum": [({"minimum": 2, "exclusiveMinimum": True}, Draft4Validator)],
    "exclusiveMaximum": [({"maximum": 2, "exclusiveMaximum": False}, Draft4Validator)],
}
REFUSED: dict[str, Any] = {
    "maxContains": {"contains": {}, "maxContains": 1},
    "minContains": {"contains": {}, "minContains": 4},
    "unevaluatedItems": {"contains": {}, "unevaluatedItems": False},
    "contentEncoding": {"contentEncoding": "rot13"},
    "$recursiveRef": {"$recursiveRef": "#/nowhere"},
}


def valid(schema: Any, validator: Any) -> set[str]:
    """Return those of all texts that the reference finds valid."""
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    judge = validator(exact)
    return {text for text in ALL if judge.is_valid(json.loads(text, parse_float=Decimal))}


def orders(text: str) -> list[str]:
    """Return a text, and for an object that with its properties in every other order.

    Properties are written in the order of the schema, which is none of its rules.
    """
    value = json.loads(text, parse_float=Decimal)
    if not isinstance(value, dict):
        return [text]
    return [json.dumps(dict(each)) for each in permutations(value.items())]


CASES = [
    *((name, each, Draft202012Validator) for name, listed in EXACT.items() for each in listed),
    *((name, schema, draft) for name, listed in OLDER.items() for schema, draft in listed),
]


@pytest.mark.parametrize(("name", "schema", "validator"), CASES)
def test_the_grammar_allows_what_the_schema_allows(name: str, schema: Any, validator: Any) -> None:
    matcher = matcher_of(StructuredOutputsParams(json=schema))
    allowed = {text for text in ALL if any(accepts(matcher, each) for each in orders(text))}
    assert allowed == valid(schema, validator), name


UUID = "12345678-1234-1234-1234-123456789abc"
SIX = {"type": "array", "items": {"enum": [1, 2, 3, "a", None, True]}, "uniqueItems": True}
STRING_OR_NULL = {"type": "string"}, {"type": "null"}
CLOSED = {"type": "object", "additionalProperties": False}
NARROWED: list[tuple[Any, tuple[str, ...], tuple[str, ...]]] = [
    (SIX, ("[]", '[1, 3, "a"]', "[null, true]"), ("[1, 1]", "[3, 1]")),
    ({**SIX, "maxItems": 2}, ('["a", 1]',), ("[1, 2, 3]", "[2, 2]")),
    ({"not": {"type": "string", "pattern": "b"}}, ("1", "null", "[]"), ('"ab"',)),
    ({"not": {"type": "integer", "minimum": 7, "multipleOf": 0.5}}, ("3", '"a"'), ("7", "8")),
    ({"oneOf": [{}, {"format": "uuid"}]}, ('"ab"',), (f'"{UUID}"', "1")),
    (
        {"oneOf": [{"type": "number"}, {"type": "integer"}]},
        ("1.5", "-0.25"),
        ("1", "1.0", "-2", '"a"'),
    ),
    (
        {"oneOf": [{"type": "number", "minimum": 100}, {"type": "integer", "maximum": 200}]},
        ("100.5", "99", "-3"),
        ("100", "150"),
    ),
    (
        {"type": "string", "oneOf": [{"format": "date"}, {"format": "date-time"}]},
        ('"2024-02-29"', '"2024-02-29T01:02:03Z"'),
        ('"2023-02-29"', '"a"'),
    ),
    (
        {"type": "string", "oneOf": [{"format": "email"}, {"format": "uri"}]},
        ('"a@b.c"', '"http://a/b"'),
        ('"mailto:a@b.c"', '"a"'),
    ),
    ({"type": "string", "oneOf": [{"pattern": "^a"}, {"pattern": "^b"}]}, ('"a"', '"b"'), ('"c"',)),
    ({"type": "string", "oneOf": [{"pattern": "a"}, {"pattern": "b"}]}, ('"a"', '"b"'), ('"ab"',)),
    ({"type": "string", "oneOf": [{"const": "a"}, {"pattern": "^b"}]}, ('"a"', '"b"'), ('"c"',)),
    (
        {"type": "string", "oneOf": [{"format": "hostname"}, {"format": "ipv4"}]},
        ('"a.b"', '"a1"'),
        ('"1.2.3.4"', '"@"'),
    ),
    ({"type": "string", "not": {"pattern": "b|^a$"}}, ('"aa"', '""'), ('"ab"', '"a"', '"a\\n"')),
    (
        {
            "properties": {"a": {"type": "string"}},
            "required": ["a"],
            "if": {"properties": {"a": {"pattern": "^x"}}},
            "then": {"required": ["b"]},
        },
        ('{"a":"y"}', '{"a":"x","b":1}'),
        ('{"a":"x"}',),
    ),
    (
        {"type": "array", "items": {"enum": list(range(20))}, "uniqueItems": True, "maxItems": 2},
        ("[]", "[7]", "[19, 3]", "[3, 19]"),
        ("[3, 3]", "[1, 2, 3]", "[20]"),
    ),
    ({"type": "string", "contentEncoding": "base64"}, ('"YQ=="', '""'), ('"YQ"', '"é"', '"a"')),
    ({"oneOf": [{"multipleOf": 5}, {"multipleOf": 3}]}, ("5", "-9"), ("0", "15", "1", "-30")),
    (
        {"type": "number", "oneOf": [{"multipleOf": 0.5}, {"multipleOf": 0.3}]},
        ("0.5", "-0.3", "2.0"),
        ("0", "1.5", "0.1"),
    ),
    ({"type": "integer", "not": {"multipleOf": 2}}, ("1", "-3"), ("0", "2", "1.5")),
    ({"type": "number", "not": {"type": "integer"}}, ("1.5", "-0.25"), ("1", "1.0", '"a"')),
    (
        {"oneOf": [{"type": "array", "items": each} for each in STRING_OR_NULL]},
        ('["a"]', "[null, null]"),
        ("[]", '["a", null]'),
    ),
    (
        {"oneOf": [{"type": "object", "additionalProperties": each} for each in STRING_OR_NULL]},
        ('{"a":"x"}', '{"a":null}'),
        ("{}", '{"a":null,"b":"x"}', "1"),
    ),
    (
        {"oneOf": [{"type": "array", "prefixItems": [{}, each]} for each in STRING_OR_NULL]},
        ("[1, null]", '[1, "a"]'),
        ("[]", "[1]", "[1, 2]"),
    ),
    (
        {"oneOf": [CLOSED | {"properties": {name: {}, "c": {}}} for name in "ab"]},
        ('{"a":1}', '{"b":1,"c":2}'),
        ("{}", '{"c":1}', '{"a":1,"b":1}'),
    ),
    ({"type": "string", "contentEncoding": "base16"}, ('"00FF"',), ('"0"', '"g0"')),
    ({"contentEncoding": "base32"}, ('"ME======"', "1"), ('"ME"',)),
]


@pytest.mark.parametrize(("schema", "allowed", "others"), NARROWED)
def test_a_part_of_what_a_schema_allows_is_better_than_a_refusal(
    schema: Any, allowed: tuple[str, ...], others: tuple[str, ...]
) -> None:
    """Each text of the part is valid, and it has texts of its kind."""
    matcher = matcher_of(StructuredOutputsParams(json=schema))
    assert all(accepts(matcher, text) for text in allowed)
    assert not any(accepts(matcher, text) for text in others)
    assert not [
        judge(schema, text) for text in ALL if accepts(matcher, text) and judge(schema, text)
    ]


def test_definitions_whose_long_names_begin_alike_are_told_apart() -> None:
    first, second = f"k8s.{'v' * 64}.First", f"k8s.{'v' * 64}.Second"
    schema = {
        "properties": {each: {"$ref": f"#/$defs/{each}"} for each in (first, second)},
        "$defs": {first: {"type": "string"}, second: {"type": "integer"}},
    }
    matcher = matcher_of(StructuredOutputsParams(json=schema))
    assert accepts(matcher, json.dumps({first: "a", second: 1}))
    assert not accepts(matcher, json.dumps({first: "a", second: "a"}))


def test_items_that_differ_in_the_order_of_names_alone_are_equal() -> None:
    """The number 1 and the truth value are different items."""
    values = [{"a": 1, "b": 2}, {"b": 2.0, "a": 1}, [True], [1]]
    schema = {"type": "array", "items": {"enum": values}, "uniqueItems": True}
    matcher = matcher_of(StructuredOutputsParams(json=schema))
    first, second = '{"a": 1, "b": 2}', '{"b": 2, "a": 1}'
    assert not any(
        accepts(matcher, f"[{each}, {other}]") for each, other in permutations((first, second))
    )
    assert accepts(matcher, "[[1], [true]]")
    assert sum(accepts(matcher, f"[{each}]") for each in (first, second)) == 1


@pytest.mark.parametrize("is_merged", [False, True])
def test_exclusive_bounds_beside_fractions_hold(is_merged: bool) -> None:
    """Numbers are allowed as their bounds say, on both sides of zero and far from it."""
    for whole in (0, 1, 7, 16_384, 2**40):
        for sign, far, near in (
            (1, "maximum", "exclusiveMinimum"),
            (1, "exclusiveMaximum", "minimum"),
            (1, "exclusiveMaximum", "exclusiveMinimum"),
            (-1, "minimum", "exclusiveMaximum"),
            (-1, "exclusiveMinimum", "maximum"),
            (-1, "exclusiveMinimum", "exclusiveMaximum"),
        ):
            parts = {near: sign * whole}, {far: sign * (whole + 0.5)}
            merged = {"allOf": [{"$ref": "#/$defs/a"}, parts[1]], "$defs": {"a": parts[0]}}
            schema = merged if is_merged else {"type": "number", **parts[0], **parts[1]}
            matcher = matcher_of(StructuredOutputsParams(json=schema))
            for text, is_allowed in (
                (f"{whole}", "exclusive" not in near),
                (f"{whole}.0", "exclusive" not in near),
                (f"{whole}.5", "exclusive" not in far),
                (f"{whole}.25", True),
                (f"{whole}.001", True),
                (f"{whole}.501", False),
                (f"{whole + 1}", False),
            ):
                signed = f"{'-' if sign < 0 else ''}{text}"
                if text == "0.0" and is_allowed:
                    continue  # the engine writes a zero without a fraction
                assert accepts(matcher, signed) == is_allowed, (schema, signed)


@pytest.mark.parametrize(
    ("pattern", "blank"),
    [(r"\s*", " \n\t\r"), ("[ \n]?", "\n"), (r"( {2}|\t)?", "  "), (r"[\r\n]+| ", "\r\n")],
)
def test_whitespace_is_what_json_allows(pattern: str, blank: str) -> None:
    matcher = matcher_of(StructuredOutputsParams(json={}, whitespace_pattern=pattern))
    assert accepts(matcher, f"[1,{blank}2]")
    assert not accepts(matcher, "[1,\f2]")


@pytest.mark.parametrize(
    "pattern", ["x", "[a-z]*", "a*b", "x| ", ".", "[^a]", r"\S", r"[\t-\r]", r"\f", "[ ,]", "(?i) "]
)
def test_whitespace_that_json_does_not_allow_is_refused(pattern: str) -> None:
    for shape in (
        StructuredOutputsParams(json={}, whitespace_pattern=pattern),
        StructuredOutputsParams(json_object=True, whitespace_pattern=pattern),
    ):
        with pytest.raises(ShapeError, match="blanks, tabs and line breaks"):
            grammar_of(shape)


def test_an_opposite_that_leaves_nothing_is_refused() -> None:
    many = {**SIX, "items": {"enum": list(range(12))}}
    for schema, path in (
        ({"type": "string", "not": {"type": "string", "pattern": r"\p{L}"}}, ".not"),
        (many, ".uniqueItems"),
    ):
        with pytest.raises(ShapeError) as caught:
            grammar_of(StructuredOutputsParams(json=schema))
        assert caught.value.path == path


@pytest.mark.parametrize(
    "alternatives",
    [
        [{"type": "array", "items": {"type": each}} for each in ("number", "integer")],
        [{"type": "integer", "multipleOf": 7}, {"type": "integer", "multipleOf": 7}],
        [{"properties": {"a": {"type": "string"}}, "items": {"type": "integer"}}] * 2,
    ],
)
def test_alternatives_that_cannot_be_kept_apart_are_not_called_impossible(
    alternatives: list[Any],
) -> None:
    shape = StructuredOutputsParams(json={"items": {"oneOf": alternatives}})
    with pytest.raises(ShapeError) as caught:
        grammar_of(shape)
    assert caught.value.path == ".items.oneOf"
    assert "no text" not in caught.value.what
    ((place, _),) = grammar_of(replace(shape, strict=False)).warnings
    assert place == "json.items.oneOf"


def test_every_keyword_that_restricts_texts_is_tested() -> None:
    restricting = {name for name, each in KEYWORDS.items() if each.fate != "note"}
    assert restricting <= EXACT.keys() | OLDER.keys() | REFUSED.keys() | {"format"}


@pytest.mark.parametrize("name", [name for name, each in KEYWORDS.items() if each.fate == "note"])
def test_a_note_restricts_nothing(name: str) -> None:
    if name in ("$id", "id", "$schema", "$anchor", "$dynamicAnchor"):
        value: Any = "http://a/b" if "nchor" not in name else "b"
    else:
        value = {}
    noted = grammar_of(StructuredOutputsParams(json={"type": "integer", name: value}))
    assert noted == grammar_of(StructuredOutputsParams(json={"type": "integer"}))


@pytest.mark.parametrize(("name", "schema"), REFUSED.items())
def test_a_keyword_that_cannot_be_enforced_is_refused_by_name(name: str, schema: Any) -> None:
    inner = {"properties": {"a b": {"anyOf": [schema]}}}
    with pytest.raises(ShapeError) as caught:
        grammar_of(StructuredOutputsParams(json=inner))
    assert caught.value.path == f".properties['a b'].anyOf[0].{name}"


@pytest.mark.parametrize("name", [name for name in REFUSED if name != "$recursiveRef"])
def test_what_cannot_be_enforced_is_left_out_with_a_warning(name: str) -> None:
    shape = StructuredOutputsParams(json={"items": REFUSED[name]}, strict=False)
    ((place, what),) = grammar_of(shape).warnings
    assert place == f"json.items.{name}"
    assert what.endswith("it is left out")


def test_a_keyword_that_is_left_out_has_its_near_name_at_the_end() -> None:
    shape = StructuredOutputsParams(json={"minLenght": 2}, strict=False)
    ((place, what),) = grammar_of(shape).warnings
    assert place == "json.minLenght"
    assert what == "the keyword is unknown; it is left out; did you mean 'minLength'?"


def test_arrays_of_thousands_of_values_are_counted_no_further_than_needed() -> None:
    """The number of such arrays has more digits than Python writes."""
    values = {"enum": list(range(15_000))}
    lengths = {"minItems": 7500, "maxItems": 7500}
    schema = {"type": "array", "uniqueItems": True, "items": values, **lengths}
    with pytest.raises(ShapeError) as caught:
        grammar_of(StructuredOutputsParams(json=schema))
    assert caught.value.path == ".uniqueItems"


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
@pytest.mark.parametrize("count", [30, 300])
def test_references_that_multiply_are_followed_once(keyword: str, count: int) -> None:
    """The schema compiles, or is refused; neither takes long."""
    definitions: dict[str, Any] = {
        f"d{each}": {keyword: [{"$ref": f"#/$defs/d{each + 1}"}] * 2} for each in range(count)
    }
    definitions[f"d{count}"] = {"type": "integer"}
    schema = {"$ref": "#/$defs/d0", "$defs": definitions}
    with contextlib.suppress(ShapeError):
        assert accepts(matcher_of(StructuredOutputsParams(json=schema)), "1")


def test_a_reference_to_itself_is_refused() -> None:
    for schema in ({"$ref": "#"}, {"allOf": [{"$ref": "#"}]}, {"oneOf": [{"$ref": "#"}]}):
        with pytest.raises(ShapeError):
            grammar_of(StructuredOutputsParams(json=schema))
