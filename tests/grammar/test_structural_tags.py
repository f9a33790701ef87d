"""Structural tags: which texts they allow, and what of them is refused, with its path."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.core.structured_outputs import ShapeError, StructuredOutputsParams
from octavo.grammar.shapes import grammar_of
from tests.grammar.json_schema.walks import accepts, matcher_of

ANY = {"type": "any_text"}
YES = {"type": "const_string", "value": "yes"}
NUMBER = {"type": "regex", "pattern": "[0-9]+"}
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
OLD = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<f=a>", "schema": {"type": "object"}, "end": "</f>"},
        {"begin": "<f=b>", "schema": SCHEMA, "end": "</f>"},
    ],
    "triggers": ["<f="],
}
THINK = {"type": "tag", "begin": "<t>", "content": ANY, "end": "</t>"}


def form(**described: Any) -> dict[str, Any]:
    return {"type": "structural_tag", "format": described}


CASES: list[tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]] = [
    (
        OLD,
        ("", "hello", "a < b", 'x <f=a>{}</f> y <f=b>{"x":1}</f>', '<f=b>{"x":1}</f>'),
        ("<f=c>", "<f=b>{}</f>", "<f=a>{}"),
    ),
    (form(**THINK), ("<t>hm</t>", "<t></t>"), ("<t>hm", "<t>a</t>b", "a")),
    (
        form(type="sequence", elements=[THINK, {"type": "or", "elements": [YES, NUMBER]}]),
        ("<t>a</t>yes", "<t></t>12"),
        ("<t>a</t>no", "yes", "<t>a</t>"),
    ),
    (form(type="json_schema", json_schema=SCHEMA), ('{"x":1}',), ("{}",)),
    (form(type="json_schema"), ("1", "{}"), ("x",)),
    (form(type="grammar", grammar='root ::= "x" root | "y"'), ("xxy",), ("x",)),
    (form(**ANY), ("", "é\n"), ()),
    (
        form(
            type="triggered_tags",
            triggers=["<a"],
            tags=[{"begin": "<a>", "content": NUMBER, "end": "</a>"}],
            at_least_one=True,
            stop_after_first=True,
        ),
        ("x<a>1</a>", "<a>22</a>"),
        ("x", "<a>1</a>x", "<a>b</a>"),
    ),
    (
        form(
            type="triggered_tags",
            triggers=["<a"],
            tags=[{"begin": "<a>", "content": ANY, "end": "</a>"}],
            stop_after_first=True,
        ),
        ("x", "x<a>1</a>"),
        ("<a>1</a>x",),
    ),
    (
        form(
            type="tags_with_separator",
            separator=",",
            tags=[{"type": "tag", "begin": "<", "content": NUMBER, "end": ">"}],
        ),
        ("", "<1>", "<1>,<22>"),
        ("<1><2>", "<1>,"),
    ),
    (
        form(
            type="tags_with_separator",
            separator="",
            at_least_one=True,
            stop_after_first=True,
            tags=[{"type": "tag", "begin": "<", "content": NUMBER, "end": ">"}],
        ),
        ("<1>",),
        ("", "<1><2>"),
    ),
]


@pytest.mark.parametrize(("tags", "right", "wrong"), CASES)
def test_tags_allow_their_texts(
    tags: dict[str, Any], right: tuple[str, ...], wrong: tuple[str, ...]
) -> None:
    matcher = matcher_of(StructuredOutputsParams(structural_tag=tags))
    assert [text for text in right if not accepts(matcher, text)] == []
    assert [text for text in wrong if accepts(matcher, text)] == []


@pytest.mark.parametrize(
    ("tags", "path", "words"),
    [
        ({"structures": []}, ".structures", "a list"),
        ({"structures": [1], "triggers": ["<"]}, ".structures[0]", "an object"),
        ({"structures": [{"begin": "", "end": ""}], "triggers": ["<"]}, ".structures[0].begin", ""),
        ({**OLD, "triggers": []}, ".triggers", "a list"),
        ({**OLD, "triggers": [""]}, ".triggers", "not empty"),
        ({**OLD, "triggers": ["<g"]}, ".structures[0].begin", "none of the triggers"),
        ({**OLD, "extra": 1}, ".extra", "unknown"),
        (
            {**OLD, "structures": [{"begin": "<f=", "schema": {"type": "x"}, "end": ""}]},
            ".structures[0].schema.type",
            "is not one of null",
        ),
        (form(type="what"), ".format.type", "one of const_string"),
        (form(type="sequence", elements=[ANY, YES]), ".format.elements[0]", "it has no end"),
        (form(type="sequence", elements=[]), ".format.elements", "a list"),
        (form(type="regex", pattern="("), ".format.pattern", "not closed"),
        (form(type="grammar", grammar="root"), ".format.grammar", "no GBNF"),
        (form(type="tag", begin="<", content=1, end=">"), ".format.content", "an object"),
        (form(type="tag", begin="<", content=ANY), ".format.end", "text"),
        (form(type="json_schema", style="xml"), ".format.style", "only JSON"),
        (
            form(type="triggered_tags", tags=[THINK], triggers=["<"], at_least_one=1),
            ".format.at_least_one",
            "true or false",
        ),
        ({"format": [1]}, ".format", "an object"),
    ],
)
def test_what_is_wrong_is_refused_with_its_path(
    tags: dict[str, Any], path: str, words: str
) -> None:
    with pytest.raises(ShapeError) as caught:
        grammar_of(StructuredOutputsParams(structural_tag=tags))
    assert (caught.value.field, caught.value.path) == ("structural_tag", path), caught.value
    assert words in caught.value.what


def test_formats_are_not_nested_without_a_bound() -> None:
    tags: dict[str, Any] = YES
    for _ in range(30):
        tags = {"type": "sequence", "elements": [tags]}
    with pytest.raises(ShapeError, match="nested more than"):
        grammar_of(StructuredOutputsParams(structural_tag={"format": tags}))
