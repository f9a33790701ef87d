"""Masks that are kept are those that the grammar engine computes for each text by itself."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import numpy as np
import pytest

from octavo.core.structured_outputs import StructuredOutputsParams
from octavo.grammar.json_place import MAX_KNOWN, place_in
from octavo.grammar.llguidance_engine import LLGuidanceEngine, LLGuidanceMatcher
from octavo.grammar.protocol import Forcing, Vocabulary
from octavo.grammar.shapes import grammar_of
from tests.grammar.tiny import allowed

END = 256
# Tokens that end a string and go on behind it, or hold several characters or a part of one.
PIECES = [
    '","',
    '":"',
    '","',
    '"}',
    '"]',
    '"}]',
    '"],"b":"',
    '",',
    '"',
    '"c":"',
    '","d":["',
    '"},"',
    'a"',
    'ab",',
    '}],"',
    '":{"a":"',
    "é",
    'é"',
    "ab",
    "abc",
    "abcd",
    "\\n",
    "\\u00",
    '{"',
    '"a"',
    "true",
    "12",
    '},{"',
    "abcdefgh",
    'a":"',
    '"},"',
    '":',
]
TOKENS = [
    *(bytes([byte]) for byte in range(256)),
    b"",
    b'", "',
    b"\xf0\x9f",
    b"\x98\x80",
    *(piece.encode() for piece in PIECES),
]
VOCABULARY = Vocabulary(
    TOKENS, frozenset({END}), frozenset({END}), lambda text: list(text.encode())
)
CHARACTERS = "abé😀"


def random_schema(chance: Random, depth: int = 3) -> Any:
    """Return a schema with many strings; a few of its parts restrict more than each value."""
    kind = chance.choice(("string",) * 3 + ("object", "array", "other") * bool(depth))
    if kind == "string":
        schema: dict[str, Any] = {"type": "string"}
        if chance.random() < 0.7:
            schema["maxLength"] = chance.randint(0, 6)
        if chance.random() < 0.3:
            schema["minLength"] = chance.randint(0, schema.get("maxLength", 4))
        if chance.random() < 0.1:
            schema["pattern"] = "^a*b*"
        return schema
    if kind == "array":
        array: dict[str, Any] = {"type": "array", "items": random_schema(chance, depth - 1)}
        if chance.random() < 0.5:
            array["maxItems"] = chance.randint(1, 3)
        if chance.random() < 0.5:
            array["minItems"] = chance.randint(0, array.get("maxItems", 2))
        return array
    if kind == "object":
        return random_object(chance, depth)
    choices = [random_schema(chance, depth - 1) for _ in range(2)]
    return chance.choice(({"anyOf": choices}, {"enum": ["a", "ab", 12]}, {"$ref": "#/$defs/node"}))


def random_object(chance: Random, depth: int) -> Any:
    """Return an object, open or closed; a few of them have combinations of keys."""
    names = chance.sample(["a", "b", "c", 'a"', "é", "a\\"], chance.randint(1, 4))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: random_schema(chance, depth - 1) for name in names},
        "required": [name for name in names if chance.random() < 0.5],
    }
    more = chance.choice((False, False, True, {"type": "string", "maxLength": 2}))
    if more is not True:
        schema["additionalProperties"] = more
    if chance.random() < 0.1:
        schema["anyOf"] = [{"required": [name]} for name in names]
    return schema


def random_grammar(chance: Random) -> str:
    """Return the grammar of an object with a definition."""
    node = {"type": "object", "properties": {"a": random_schema(chance, 0)}, "required": ["a"]}
    schema = {**random_object(chance, 3), "$defs": {"node": node}}
    return grammar_of(
        StructuredOutputsParams(
            json=json.dumps(schema), disable_any_whitespace=chance.random() < 0.7
        )
    ).text


def fresh_mask(engine: LLGuidanceEngine, text: str, tokens: list[int]) -> set[int]:
    """Return the mask behind these tokens as the library computes it."""
    row = np.zeros(engine.num_words, np.uint32)
    alone = engine.compile_alone(text)
    assert alone.consume_tokens(tokens)
    alone.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
    assert not alone.is_error()
    return allowed(row, len(TOKENS))


def next_token(chance: Random, mask: set[int]) -> int | None:
    """Choose a token, rather one that makes a text of usual characters longer."""
    usual = {*CHARACTERS.encode(), *b'"{}[],:'} | set(range(END + 1, len(TOKENS)))
    choices = sorted((mask & usual) or mask - {END})
    return chance.choice(choices) if choices else None


@pytest.mark.parametrize("seed", range(6))
def test_a_mask_that_is_read_again_is_the_one_that_would_be_computed(seed: int) -> None:
    chance = Random(seed)
    forcing: Forcing = "canonical" if seed % 2 else "off"
    assert sum(compare_masks(chance, forcing) for _ in range(3)) >= 10


def compare_masks(chance: Random, forcing: Forcing) -> int:
    """Write texts of a random grammar; return how often a mask was read again, and was right."""
    engine, text = LLGuidanceEngine(VOCABULARY, forcing=forcing), random_grammar(chance)
    row, num_read = np.zeros(engine.num_words, np.uint32), 0
    for _ in range(12):
        matcher, written = engine.compile(text), list[int]()
        for _ in range(40):
            key = matcher.mask_key()
            if key is not None and engine.masks.read(key, row):
                num_read += 1
                mask = fresh_mask(engine, text, written)
                assert allowed(row, len(TOKENS)) == mask, (text, written)
            matcher.fill(row)
            token = next_token(chance, allowed(row, len(TOKENS)))
            if token is None:
                break
            matcher.accept([token])
            written.append(token)
            if chance.random() < 0.1:
                count = chance.randint(0, min(len(written), 3))
                matcher = chance.choice((matcher, matcher.copy()))
                matcher.roll_back(count)
                del written[len(written) - count :]
    return num_read


def test_many_masks_are_read_again() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 4}}}
    text = grammar_of(StructuredOutputsParams(json=json.dumps(schema))).text
    engine = LLGuidanceEngine(VOCABULARY, num_threads=2)
    matchers = [engine.compile(text) for _ in range(6)]
    for index, matcher in enumerate(matchers):
        matcher.accept([*list(b'{"a": "'), ord("abc"[index % 3])])
    assert len({matcher.mask_key() for matcher in matchers}) == 1
    rows = np.zeros((6, engine.num_words), np.uint32)
    assert (
        engine.fill_all(rows, [(each, place) for place, each in enumerate(matchers)]) == [None] * 6
    )
    mask = fresh_mask(engine, text, list(b'{"a": "a'))
    assert [allowed(row, len(TOKENS)) for row in rows] == [mask] * 6
    engine.forget()
    assert not engine.masks.read(matchers[0].mask_key() or (), rows[0])


def key_of(matcher: LLGuidanceMatcher, text: str) -> Any:
    """Return the key of the mask behind a text."""
    made = matcher.copy()
    made.accept(list(text.encode()))
    return made.mask_key()


def test_only_what_determines_a_mask_distinguishes_texts() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"type": "string", "maxLength": 9}},
            "b": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        },
    }
    text = grammar_of(StructuredOutputsParams(json=json.dumps(schema))).text
    matcher = LLGuidanceEngine(VOCABULARY).compile(text)
    first = key_of(matcher, '{"a": ["x", "yé')
    assert first is not None
    assert key_of(matcher, '{"a": ["", "abc", "ü!') == first
    assert key_of(matcher, '{"a": ["x", "yéa') != first
    assert key_of(matcher, '{"a": ["x", "\\n') is None, "escapes are characters of another length"
    assert key_of(matcher, '{"a": ["x", "123456789') is None, "it is full"
    assert key_of(matcher, '{"b": ["x') is None, "which alternative holds may depend on it"
    assert key_of(matcher, '{"c": "x') is None


def test_a_long_way_back_is_found_from_the_beginning() -> None:
    schema = {"type": "string", "maxLength": 2 * MAX_KNOWN + 1}
    text = grammar_of(StructuredOutputsParams(json=json.dumps(schema))).text
    matcher = LLGuidanceEngine(VOCABULARY).compile(text)
    short = key_of(matcher, '"' + 3 * "a")
    assert short is not None
    matcher.accept(list(b'"' + (2 * MAX_KNOWN) * b"a"))
    assert matcher.mask_key() != short
    matcher.roll_back(2 * MAX_KNOWN - 3)
    assert matcher.mask_key() == short


@pytest.mark.parametrize(
    "grammar",
    [
        'start: %json {"type": "string"}\nother: "a"',
        'start: %json {"type": "string"}',  # with whitespace of any kind
        'start: %json {"type": "string", "x-guidance": {"whitespace_pattern": "[\\" ]*"}}',
        "start: /a*/",
    ],
)
def test_nothing_is_known_of_other_grammars(grammar: str) -> None:
    assert place_in(grammar) is None
