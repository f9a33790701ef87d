"""Grammars in Lark's syntax: their schemas are checked, and they set no options."""

from __future__ import annotations

import pytest

from octavo.core.structured_outputs import ShapeError, StructuredOutputsParams
from octavo.grammar.shapes import grammar_of
from tests.grammar.json_schema.walks import accepts, matcher_of


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        ('start: "a" B\nB: /[0-9]+/', ("a1",), ("a", "1")),
        ('start: %json {"type": "integer"} "x"', ("5x",), ("5", '"a"x')),
        ('start: %json {"oneOf": [{"type": "null"}, {"const": 1}]}', ("null", "1"), ("2",)),
        ('start: a "%json" // %json\na: /%llguidance/ # %json', ("%llguidance%json",), ("",)),
        ('start: "\\"%json" "b"', ('"%jsonb',), ("b",)),
        ('start: /[^b]/ "//" | /x%json y/', ("a//", "x%json y"), ("b//",)),
    ],
)
def test_a_grammar_allows_its_texts(
    grammar: str, right: tuple[str, ...], wrong: tuple[str, ...]
) -> None:
    matcher = matcher_of(StructuredOutputsParams(grammar=grammar))
    assert [text for text in right if not accepts(matcher, text)] == []
    assert [text for text in wrong if accepts(matcher, text)] == []


@pytest.mark.parametrize(
    ("grammar", "path", "words"),
    [
        ('%llguidance {}\nstart: "a"', "", "line 1: %llguidance sets options"),
        ('start: "a"\n\n%import common.WORD', "", "line 3: %import imports nothing"),
        ('start: "a"\n | %json {"uniqueItems": true}', "", "line 2, uniqueItems: only"),
        ('start: %json {"a"}', "", "line 1: %json is not followed by JSON"),
        ('start: %json {"const": -9223372036854775808}', "", "line 1, const: "),
        ("start: a", "", "unknown name"),
        ("write yes or no", "", "it was read as Lark's syntax, since it has no '::='"),
        ('start: "a', "", "lexer error"),
        ("start: <|nothing|>", "", "by their ids"),
        ("start: start", "", "no text"),
    ],
)
def test_a_grammar_that_cannot_be_is_refused(grammar: str, path: str, words: str) -> None:
    with pytest.raises(ShapeError) as caught:
        grammar_of(StructuredOutputsParams(grammar=grammar))
    assert (caught.value.field, caught.value.path) == ("grammar", path), caught.value
    assert words in caught.value.what
