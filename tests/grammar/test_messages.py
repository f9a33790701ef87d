"""The bounds of grammars are named when a text exceeds them, with their numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from llguidance import LLParserLimits

from octavo.core.structured_outputs import ShapeError, StructuredOutputsParams
from octavo.grammar import llguidance_engine
from octavo.grammar.llguidance_engine import LLGuidanceEngine
from octavo.grammar.protocol import GrammarError, Vocabulary
from octavo.grammar.shapes import grammar_of

ENDS = frozenset({256})
BYTES = Vocabulary([*(bytes([each]) for each in range(256)), b""], ENDS, ENDS, lambda text: [])
GRAMMAR = 'start: /((a|b)*a(a|b){6}c)*/ x\nx: "a" x x | "k" x | "a"\n'
WIDE = 'start: x\nx: x x x | "a"\n'


@pytest.mark.parametrize(
    ("limit", "grammar", "words"),
    [
        ({"max_grammar_size": 5}, GRAMMAR, "it has more than 5 symbols"),
        ({"initial_lexer_fuel": 5}, GRAMMAR, "more than 5 units of work"),
        ({"step_lexer_fuel": 5}, GRAMMAR, "more work for a token than is allowed"),
        ({"max_lexer_states": 25}, GRAMMAR, "its patterns have 25 states, of at most 25"),
        ({"step_max_items": 50}, WIDE, "more than 50 ways to read them"),
        ({"max_items_in_row": 40}, WIDE, "can be read in 41 ways, and at most 40 are followed"),
    ],
)
def test_a_bound_that_is_exceeded_is_named(
    monkeypatch: pytest.MonkeyPatch, limit: dict[str, int], grammar: str, words: str
) -> None:
    limits: Any = {"step_max_items": 50_000, "verbose_errors": False, **limit}
    monkeypatch.setattr(llguidance_engine, "LIMITS", LLParserLimits(**limits))
    row = np.zeros(9, np.uint32)

    def write() -> None:
        matcher = LLGuidanceEngine(BYTES).compile(grammar)
        for character in "abbabaaabcabab" if grammar == GRAMMAR else "a" * 40:
            matcher.fill(row)
            matcher.accept([ord(character)])

    with pytest.raises(GrammarError, match=words):
        write()


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ("start: a b\na: \nb: /(/", "line 3: "),
        ('start: a %json {\n "type":\n "null"}\na: [', "line 4: "),
        ("start: a\na: <[70000]>", "line 2: the model has no token with the id 70000"),
    ],
)
def test_an_error_in_a_grammar_has_the_line_of_the_client_s_text(grammar: str, words: str) -> None:
    with pytest.raises(ShapeError) as caught:
        grammar_of(StructuredOutputsParams(grammar=grammar))
    assert caught.value.field == "grammar"
    assert caught.value.what.startswith(words)


@pytest.mark.parametrize(
    ("schema", "keyword", "words"),
    [
        (
            {"pattern": "^([a-z]+ ?){20,400}$", "minLength": 500, "maxLength": 1500},
            "pattern",
            "it is too complex",
        ),
        (
            {"patternProperties": {"a": {"type": "string"}, "^b": {"type": "null"}}},
            "patternProperties",
            "a name can match both /a/ and /^b/",
        ),
        ({"multipleOf": 10**15}, "multipleOf", "multipleOf has too many digits"),
        (
            {"pattern": r"^(?=[^a]*a.{50})(?=.*b.{40})(?=.*c.{30}).*$"},
            "pattern",
            "it is too complex",
        ),
    ],
)
def test_an_error_of_a_schema_is_in_the_words_of_the_schema(
    schema: Any, keyword: str, words: str
) -> None:
    with pytest.raises(ShapeError) as caught:
        grammar_of(StructuredOutputsParams(json={"type": ["string", "object", "number"], **schema}))
    assert caught.value.path == f".{keyword}"
    assert caught.value.what.startswith(words)
    assert "compile" not in caught.value.what
    assert "Regex" not in caught.value.what
