"""Schemas that are too much for the engine: the error names the keyword, and it can be left out."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.core.structured_outputs import ShapeError, StructuredOutputsParams
from octavo.grammar.shapes import grammar_of
from tests.grammar.json_schema.trial import judge
from tests.grammar.json_schema.walks import accepts, matcher_of

PAIRS = {
    "type": "object",
    "allOf": [
        {"anyOf": [{"required": [f"a{index}"]}, {"required": [f"b{index}"]}]} for index in range(12)
    ],
}


def conditions(count: int) -> dict[str, Any]:
    """Return a schema in which other properties depend on the values of so many."""
    parts = [
        {
            "if": {"properties": {f"a{index}": {"const": 1}}, "required": [f"a{index}"]},
            "then": {"properties": {f"b{index}": {"type": "integer"}}, "required": [f"b{index}"]},
        }
        for index in range(count)
    ]
    return {"type": "object", "allOf": parts}


CONDITIONS = conditions(16)
ONE_EACH = [
    {"anyOf": [{"properties": {f"a{index}": {"type": each}}} for each in ("string", "integer")]}
    for index in range(12)
]
CLASHING = {"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "^b"}]}
CASES: list[tuple[Any, str]] = [
    (PAIRS, ".allOf"),
    (CONDITIONS, ".allOf"),
    ({"properties": {"x": {"items": PAIRS}, "y": {"type": "string"}}}, ".properties.x.items.allOf"),
    (
        {"$ref": "#/$defs/p", "$defs": {"p": {"properties": {"z": PAIRS}}}},
        ".$defs.p.properties.z.allOf",
    ),
]


@pytest.mark.parametrize(("schema", "path"), CASES)
def test_the_keyword_that_is_too_much_is_named_and_left_out_where_it_may_be(
    schema: Any, path: str
) -> None:
    with pytest.raises(ShapeError) as caught:
        grammar_of(StructuredOutputsParams(json=schema))
    assert (caught.value.field, caught.value.path) == ("json", path)
    ((place, what),) = grammar_of(StructuredOutputsParams(json=schema, strict=False)).warnings
    assert place == f"json{path}"
    assert what.endswith("it is left out")


@pytest.mark.parametrize(
    ("schema", "allowed", "others"),
    [
        (
            conditions(8),
            ('{"a0":1,"b0":7,"a3":2}', "{}", '{"a5":1,"b5":0,"a7":"x"}'),
            ('{"a0":1}', '{"a0":1,"b0":"x"}', '{"a3":2,"a7":1}', "1"),
        ),
        (
            {"allOf": ONE_EACH},
            ('{"a0":1,"a11":"x"}', '{"a4":"x","b":null}', "{}", "1"),
            ('{"a0":null}', '{"a0":1,"a11":[]}'),
        ),
        (
            {
                "anyOf": [
                    {"required": ["a"], "properties": {"a": {"const": 1}}},
                    {"required": ["a"]},
                ]
            },
            ('{"a":2}', "1"),
            ("{}", '{"b":1}'),
        ),
        (
            {
                "type": "object",
                "anyOf": [
                    {"required": ["a"], "properties": {"a": {"const": 1}}},
                    {"properties": {"a": False}},
                ],
            },
            ("{}", '{"a":1}', '{"b":2}'),
            ('{"a":2}',),
        ),
    ],
)
def test_alternatives_of_one_property_do_not_multiply(
    schema: Any, allowed: tuple[str, ...], others: tuple[str, ...]
) -> None:
    matcher = matcher_of(StructuredOutputsParams(json=schema))
    assert [judge(schema, text) for text in allowed] == [None] * len(allowed)
    assert all(judge(schema, text) for text in others)
    assert all(accepts(matcher, text) for text in allowed)
    assert not any(accepts(matcher, text) for text in others)


def test_several_keywords_are_left_out() -> None:
    schema = {
        "properties": {"x": PAIRS, "y": CONDITIONS, "z": {"type": "integer"}},
        "required": ["z"],
        "additionalProperties": False,
    }
    shape = StructuredOutputsParams(json=schema, strict=False)
    places = {place for place, _ in grammar_of(shape).warnings}
    assert places == {"json.properties.x.allOf", "json.properties.y.allOf"}
    matcher = matcher_of(shape)
    assert accepts(matcher, '{"x":{},"z":1}')
    assert not accepts(matcher, '{"x":{}}'), "the rest is enforced"


@pytest.mark.parametrize("strict", [True, False])
def test_a_part_that_no_text_has_is_named_and_never_left_out(strict: bool) -> None:
    schema = {"type": "object", "properties": {"a": CLASHING}, "required": ["a"]}
    with pytest.raises(ShapeError, match="no text has this shape") as caught:
        grammar_of(StructuredOutputsParams(json=schema, strict=strict))
    assert caught.value.path == ".properties.a.allOf"
