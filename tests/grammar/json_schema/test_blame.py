"""Schemas that are too much for the engine: the error names the keyword, and it can be left out."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.core.structured_outputs import ShapeError, StructuredOutputsParams
from octavo.grammar.shapes import grammar_of
from tests.grammar.json_schema.walks import accepts, matcher_of

PAIRS = {
    "type": "object",
    "allOf": [
        {"anyOf": [{"required": [f"a{index}"]}, {"required": [f"b{index}"]}]} for index in range(12)
    ],
}
CONDITIONS = {
    "type": "object",
    "allOf": [
        {
            "if": {"properties": {f"a{index}": {"const": 1}}, "required": [f"a{index}"]},
            "then": {"required": [f"b{index}"]},
        }
        for index in range(8)
    ],
}
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
