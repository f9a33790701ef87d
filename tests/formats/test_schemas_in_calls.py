"""Tests that calls match their tools' schemas in formats that do not write arguments as JSON."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from octavo.core.structured_outputs import ShapeError
from octavo.formats.description import Formats, write_calls
from octavo.formats.grammar import calls_grammar, unenforced
from octavo.formats.parser import make_parser
from octavo.formats.protocol import Call, Tool
from octavo.formats.registry import choose, tool_format, tool_names
from octavo.grammar.json_schema.simplify import simplified
from octavo.grammar.protocol import GrammarError
from octavo.grammar.trial import try_grammar
from tests.formats.transcript import message_of
from tests.formats.vocabulary import Vocabulary

KINDS = ("KeyedBody", "PythonBody", "TaggedBody")
NAMES = [each for each in tool_names() if type(tool_format(each).forms[0].body).__name__ in KINDS]
PLAIN = Vocabulary()
COUNT = 40  # random schemas of each format
STRING, INTEGER, NULL = {"type": "string"}, {"type": "integer"}, {"type": "null"}
DIGITS = {"type": "string", "pattern": "^[0-9]{5}$"}
WRONG: list[tuple[dict[str, Any], Any]] = [  # schemas, each with a value that is not valid
    ({"pattern": "^b", "anyOf": [STRING, NULL]}, "a"),
    ({"minLength": 3, "anyOf": [STRING, INTEGER]}, "a"),
    ({"minimum": 3, "maximum": 5, "oneOf": [INTEGER, NULL]}, 1),
    ({"allOf": [STRING], "minLength": 3}, "a"),
    ({"type": "string", "enum": ["a", "bbb"], "minLength": 2}, "a"),
    ({"type": "string", "enum": ["a", "bbb"], "pattern": "^b"}, "a"),
    ({"type": "string", "enum": ["a", 1]}, 1),
    ({"anyOf": [DIGITS, {"type": "integer", "maximum": 10}]}, 12345),
    ({"anyOf": [STRING, {"type": "array", "items": INTEGER}]}, ["a"]),
    ({"type": ["string", "integer"], "enum": ["7", 8]}, 7),
]


def is_possible(name: str, schema: dict[str, Any], arguments: dict[str, Any]) -> bool:
    """Return whether a format's grammar allows these arguments, and names no keyword it ignores."""
    formats, tool = choose("", (), tools=name), Tool("f", schema, strict=True)
    assert formats.tools is not None
    if unenforced(formats.tools, tool):
        return False
    grammar = calls_grammar(formats, [tool], "required", tokens=PLAIN.ids)
    text = write_calls(formats.tools, [Call("f", json.dumps(arguments))])
    for stop in formats.tools.stops:
        text = text.removesuffix(stop)
    return PLAIN.allows(grammar, text)


@pytest.mark.parametrize("name", ["qwen3_coder", "deepseek_v32", "gemma4", "pythonic"])
def test_no_format_accepts_what_a_schema_forbids(name: str) -> None:
    """A value that breaks its schema is no call, or the keyword that would forbid it is named."""
    for member, value in WRONG:
        schema = {"type": "object", "properties": {"x": member}, "required": ["x"]}
        assert not is_possible(name, schema, {"x": value}), (member, value)
    others = {"type": "object", "additionalProperties": INTEGER}
    assert not is_possible(name, others, {"y": "abc"})


def test_values_that_cannot_be_written_are_named() -> None:
    """A listed value that contains the mark of its end is named with its path, as are siblings."""
    for member, path in (
        ({"enum": ["a\n</parameter>", "b"]}, "properties.x.enum"),
        ({"type": ["string", "integer"], "enum": ["7", 8]}, "properties.x.enum"),
        ({"minLength": 3, "anyOf": [STRING, INTEGER]}, "properties.x.anyOf"),
        ({"anyOf": [DIGITS, {"type": "integer", "maximum": 10}]}, "properties.x.anyOf"),
        ({"type": "string", "allOf": [{"enum": ["a"]}]}, "properties.x.allOf.0"),
    ):
        tool = Tool("f", {"type": "object", "properties": {"x": member}})
        assert unenforced(tool_format("qwen3_coder"), tool) == [path]
    quoted = {"type": "object", "properties": {"x": {"enum": ['a<|"|>', "b"]}}}
    assert unenforced(tool_format("gemma4"), Tool("f", quoted)) == ["properties.x.enum"]


def test_strings_stand_beside_other_types() -> None:
    """Strings that cannot be mistaken for a value of another type remain possible."""
    lists = {"anyOf": [STRING, {"type": "array", "items": INTEGER}]}
    for member, value, is_right in (
        (lists, "a", True),
        (lists, [1], True),
        (lists, " [a]", False),
        ({"anyOf": [DIGITS, NULL]}, "12345", True),
        ({"type": ["string", "null"], "minLength": 2}, "ab", True),
        ({"enum": ["a", 1]}, 1, True),
    ):
        schema = {"type": "object", "properties": {"x": member}, "required": ["x"]}
        assert is_possible("qwen3_coder", schema, {"x": value}) == is_right, (member, value)


def some_member(source: Random, depth: int = 0) -> dict[str, Any]:
    """Return a random schema of an argument, with keywords beside each other."""
    lengths = {"minLength": source.randrange(3), "maxLength": 4}
    parts: list[dict[str, Any]] = [
        {"type": source.choice(["string", "integer", "null", "boolean", ["string", "integer"]])},
        {"pattern": source.choice(["^[ab1]+$", "^[0-9]{2}$", "a$"]), "type": "string"},
        lengths,
        {"minimum": 3, "maximum": 12},
        {"enum": source.sample(["a", "7", "bb", "", 7, 12, None, True, "true"], 4)},
        {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
    ]
    if depth < 2:
        some = [some_member(source, depth + 1) for _ in range(2)]
        parts += [{"anyOf": some}, {"allOf": some[:1]}, {"oneOf": some}, {"anyOf": some}]
    return {
        key: value for one in source.sample(parts, 2 - (depth > 0)) for key, value in one.items()
    }


def faults(formats: Formats, schema: dict[str, Any], vocabulary: Vocabulary, seed: int) -> int:
    """Walk the calls of a tool, and check their arguments; return how many there were."""
    assert formats.tools is not None
    try:
        core = simplified(schema, "tools", path="", strict=True).core
    except ShapeError:
        return 0
    if not isinstance(core, dict):
        return 0
    tool = Tool("f", core, strict=True)
    if unenforced(formats.tools, tool):
        return 0
    grammar = calls_grammar(formats, [tool], "required", parallel=False, tokens=vocabulary.ids)
    assert grammar is not None
    try:
        try_grammar(grammar, len(vocabulary.tokens))
    except GrammarError:  # no arguments have this shape
        return 0
    texts = [vocabulary.walk(grammar, Random(seed + each), 400) for each in range(2)]
    for text in filter(None, texts):
        calls = message_of(make_parser(formats, [tool]).feed(text, True)).calls
        arguments = json.loads(calls[0].arguments)
        errors = [error.message for error in Draft202012Validator(schema).iter_errors(arguments)]
        assert not errors, (schema, core, text, arguments, errors)
    return len(texts) - texts.count(None)


@pytest.mark.parametrize("name", NAMES)
def test_random_calls_match_their_schemas(name: str) -> None:
    """The arguments of a call that a grammar allows are valid, as the reference judges them."""
    formats = choose("", (), tools=name)
    vocabulary = Vocabulary((), formats.marks)
    num_texts = 0
    for number in range(COUNT):
        member = some_member(Random(number))
        schema = {"type": "object", "properties": {"x": member}, "required": ["x"]}
        num_texts += faults(formats, schema, vocabulary, number)
    assert num_texts > 3
