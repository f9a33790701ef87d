"""Tests that what a format writes, its grammar allows, and its parser reads agree."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct, convert

from octavo.formats.description import Formats, write_calls
from octavo.formats.grammar import after_thinking, calls_grammar, unenforced
from octavo.formats.parser import make_parser
from octavo.formats.protocol import Call, FormatError, Tool
from octavo.formats.registry import (
    choose,
    reasoning_format,
    reasoning_names,
    tool_format,
    tool_names,
)
from tests.formats.transcript import TOOLS, Message, message_of
from tests.formats.vocabulary import Vocabulary

# In some vocabularies marks are special tokens, in others they are text.
SPECIAL = [
    mark
    for name in tool_names()
    for mark in tool_format(name).marks
    if re.fullmatch(r"<[^ =]*>|\[[A-Z_/]+\]", mark)
]
HARMONY = ["<|channel|>", "<|start|>", "<|end|>", "<|return|>", "<|constrain|>"]
PLAIN, RICH = Vocabulary(), Vocabulary([*SPECIAL, *HARMONY, "｜DSML｜", "<think>", "</think>"])
VOCABULARIES = pytest.mark.parametrize("vocabulary", [PLAIN, RICH], ids=["plain", "special"])
FORMATS = pytest.mark.parametrize("name", tool_names())

WORDS = st.text("ab \"'\\/<>{}[]=,:é\n", max_size=8).filter(lambda text: text == text.strip())
ARGUMENTS = st.fixed_dictionaries(
    {"city": WORDS},
    optional={
        "days": st.integers(-99, 99),
        "metric": st.booleans(),
        "at": st.fixed_dictionaries({"lat": st.floats(-9, 9).map(lambda value: round(value, 2))}),
        "tags": st.lists(WORDS, max_size=3),
        # Formats that write bare values cannot tell these strings from JSON of the schema's types.
        "note": st.none() | WORDS.filter(lambda text: not re.fullmatch('null|None|".*"', text)),
    },
)


def formats_of(name: str) -> Formats:
    """Return a tool format with the reasoning format that it needs."""
    return choose("", (), tools=name)


def message(formats: Formats, pieces: Sequence[str], prompt_end: str = "") -> Message:
    """Return the message that a parser finds."""
    parser = make_parser(formats, TOOLS, prompt_end=prompt_end)
    deltas = [delta for piece in pieces for delta in parser.feed(piece, False)]
    return message_of([*deltas, *parser.feed("", True)])


def arguments_of(found: Message) -> list[tuple[str, object]]:
    """Return the names and the arguments of the calls."""
    return [(call.name, json.loads(call.arguments)) for call in found.calls]


@FORMATS
@settings(max_examples=20, deadline=None)
@given(first=ARGUMENTS, size=st.integers(1, 20))
def test_a_parser_reads_what_its_format_writes(
    name: str, first: dict[str, object], size: int
) -> None:
    """Written calls are read again with the same arguments, however the text is cut."""
    formats = formats_of(name)
    assert formats.tools is not None
    calls = [Call("get_weather", json.dumps(first)), Call("now", "{}")]
    text = write_calls(formats.tools, calls)
    found = message(formats, [text[at : at + size] for at in range(0, len(text), size)])
    assert arguments_of(found) == [("get_weather", first), ("now", {})]
    assert not found.text


@FORMATS
@VOCABULARIES
@pytest.mark.parametrize("choice", ["required", "auto"])
def test_a_grammar_allows_what_its_format_writes(
    name: str, vocabulary: Vocabulary, choice: Literal["auto", "required"]
) -> None:
    """A grammar allows right calls, and neither a wrong type nor an unknown function."""
    formats = formats_of(name)
    assert formats.tools is not None
    tools = [Tool(tool.name, tool.parameters, strict=True) for tool in TOOLS]
    grammar = calls_grammar(formats, tools, choice, tokens=vocabulary.ids)

    def written(function: str, **arguments: object) -> str:
        assert formats.tools is not None
        text = write_calls(formats.tools, [Call(function, json.dumps(arguments))])
        for stop in formats.tools.stops:
            text = text.removesuffix(stop)
        return text

    right = written("get_weather", city="Paris", days=2, metric=True, tags=["a", "b"])
    assert vocabulary.allows(grammar, right)
    assert vocabulary.allows(grammar, written("get_weather", city="Pa", note=None))
    assert vocabulary.allows(grammar, written("get_time", zone="UTC"))
    assert vocabulary.allows(grammar, written("get_time"))
    assert not vocabulary.allows(grammar, written("get_weather", city="Paris", days=[]))
    assert not vocabulary.allows(grammar, written("get_weather", days=2))
    assert not vocabulary.allows(grammar, written("unknown", city="Paris"))
    assert not vocabulary.allows(grammar, right[: len(right) // 2])


class Weather(Struct):
    """The arguments of the first tool."""

    city: str
    days: int = 0
    metric: bool = False
    at: dict[str, object] = {}
    tags: list[str] = []
    note: str | None = None


class Time(Struct):
    """The arguments of the second tool."""

    zone: str = ""


ARGUMENTS_OF = {"get_weather": Weather, "get_time": Time, "now": dict[str, object]}


@FORMATS
@pytest.mark.parametrize("is_special", [False, True])
def test_every_text_of_a_grammar_is_calls_with_right_arguments(name: str, is_special: bool) -> None:
    """Text that a grammar allows is read as calls, and their arguments match the tools' schemas."""
    formats = formats_of(name)
    # The marks of gpt-oss are always special tokens.
    is_special = is_special or name == "openai"
    vocabulary = RICH if is_special else Vocabulary((), formats.marks)
    grammar = calls_grammar(formats, TOOLS, "required", tokens=vocabulary.ids)
    source = random.Random(name)
    texts = [text for _ in range(8) if (text := vocabulary.walk(grammar, source))]
    assert texts, "some walk ends"
    for text in texts:
        found = message(formats, [text])
        assert found.calls, text
        assert not found.text, text
        for call in found.calls:
            json.loads(call.arguments)
            convert(json.loads(call.arguments), ARGUMENTS_OF[call.name])


@VOCABULARIES
@pytest.mark.parametrize("name", reasoning_names())
def test_a_grammar_lets_the_model_think_first(name: str, vocabulary: Vocabulary) -> None:
    """Calls may come after thinking that the model or the prompt opens, if it is not closed."""
    formats = choose(
        "", (), tools="openai" if name == "openai_gptoss" else "hermes", reasoning=name
    )
    assert formats.tools is not None
    assert formats.reasoning is not None
    opening, closing = formats.reasoning.open[0].strip(), formats.reasoning.close[0].strip()
    call = write_calls(formats.tools, [Call("now", "{}")]).removesuffix("<|call|>")

    def allows(prompt_end: str, text: str) -> bool:
        grammar = calls_grammar(
            formats, TOOLS, "required", prompt_end=prompt_end, tokens=vocabulary.ids
        )
        return vocabulary.allows(grammar, text)

    assert allows("assistant\n", call)
    assert allows("assistant\n", f"{opening}\nWell.\n{closing}\n\n{call}")
    assert not allows("assistant\n", f"{opening}\nWell.\n{call}")
    assert allows(f"{opening}\n", f"Well.\n{closing}\n\n{call}")
    assert not allows(f"{opening}\n", call)
    assert allows(f"{opening}\n\n{closing}\n\n", call)
    assert not allows(f"{opening}\n\n{closing}\n\n", f"{opening}\nWell.\n{closing}\n\n{call}")


@VOCABULARIES
@pytest.mark.parametrize("name", reasoning_names())
def test_a_shape_begins_after_the_thinking(name: str, vocabulary: Vocabulary) -> None:
    """A grammar constrains the answer alone, which stands in the marks of its format."""
    reasoning = reasoning_format(name)
    opening, closing = reasoning.open[0].strip(), reasoning.close[0].strip()

    def allows(prompt_end: str, thoughts: str, answer: str) -> bool:
        grammar = after_thinking(
            reasoning, 'start: "yes" | "no"', prompt_end=prompt_end, tokens=vocabulary.ids
        )
        text = f"{thoughts}{reasoning.answer_open}{answer}{reasoning.answer_close}"
        return vocabulary.allows(grammar, text)

    assert allows("", f"{opening}\nWell.\n{closing}", "yes")
    assert not allows("", f"{opening}\nWell.\n{closing}", "maybe")
    assert allows("", "", "no")
    assert allows(opening, f"Well.\n{closing}", "yes")
    assert not allows(opening, "", "yes")


def test_free_text_is_constrained_only_where_a_strict_tool_is_called() -> None:
    """Text is free with a free choice, and the arguments of a strict tool are not."""
    formats = formats_of("hermes")
    assert calls_grammar(formats, TOOLS, "auto", tokens={}) is None
    strict = [Tool("now"), Tool("get_time", TOOLS[1].parameters, strict=True)]
    grammar = calls_grammar(formats, strict, "auto", tokens=RICH.ids)
    call = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'
    assert RICH.allows(grammar, "The time is unknown.")
    assert RICH.allows(grammar, "I call. " + call.format("now", '{"any": [1, 2]}') + "\nDone.")
    assert RICH.allows(grammar, "I call. " + call.format("get_time", '{"zone": "UTC"}'))
    assert not RICH.allows(grammar, "I call. " + call.format("get_time", '{"zone": 1}'))


@FORMATS
def test_only_one_call_is_allowed_without_parallel_calls(name: str) -> None:
    """A grammar for one call ends behind it."""
    formats = formats_of(name)
    assert formats.tools is not None
    grammar = calls_grammar(formats, TOOLS, "required", parallel=False, tokens=RICH.ids)
    one, two = (write_calls(formats.tools, [Call("now", "{}")] * count) for count in (1, 2))
    for stop in formats.tools.stops:
        one, two = one.removesuffix(stop), two.removesuffix(stop)
    assert RICH.allows(grammar, one)
    assert not RICH.allows(grammar, two)


def test_strings_in_marks_follow_their_schema() -> None:
    """Enumerations, patterns and lengths hold for strings that stand without quotes."""
    schema = {
        "type": "object",
        "properties": {
            "unit": {"enum": ["km", "mi"]},
            "code": {"type": "string", "pattern": "^[A-Z]{2}/[0-9]+$"},
            "word": {"type": "string", "minLength": 2, "maxLength": 3},
            "both": {"type": "string", "allOf": [{"pattern": "^[ab]+$"}, {"pattern": "b$"}]},
            "path": {"type": "string", "pattern": r"^\/[a-z/]+$"},
            "ends": {"type": "string", "pattern": r"^a|b$|c\\$"},
        },
    }
    tools = [Tool("f", schema)]
    for name, vocabulary in (("qwen3_coder", PLAIN), ("glm45", RICH)):
        formats = formats_of(name)
        assert formats.tools is not None
        grammar = calls_grammar(formats, tools, "required", tokens=vocabulary.ids)
        for arguments, is_right in (
            ({"unit": "km", "code": "AB/12", "word": "ab"}, True),
            ({"unit": "m"}, False),
            ({"code": "AB/"}, False),
            ({"code": "xAB/1"}, False),
            ({"word": "a"}, False),
            ({"word": "abcd"}, False),
            ({"both": "aab"}, True),
            ({"both": "aba"}, False),
            ({"both": "acb"}, False),
            ({"path": "/a/b"}, True),
            ({"path": "a/b"}, False),
            ({"ends": "ax"}, True),
            ({"ends": "xb"}, True),
            ({"ends": "xc\\"}, True),
            ({"ends": "xa"}, False),
            ({"ends": "xc$"}, False),
        ):
            text = write_calls(formats.tools, [Call("f", json.dumps(arguments))])
            assert vocabulary.allows(grammar, text) == is_right, text


def test_keywords_that_a_grammar_ignores_are_named() -> None:
    """The paths of such keywords are known; formats that write JSON have none."""
    when = {"type": "string", "format": "date", "description": "The day."}
    rows = {"type": "array", "minItems": 1, "items": {"type": "string", "format": "uri"}}
    schema = {
        "type": "object",
        "properties": {"when": {"$ref": "#/$defs/when"}, "rows": rows},
        "minProperties": 1,
        "$defs": {"when": when},
    }
    ignored = {
        "hermes": [],
        "kimi_k2": [],
        "pythonic": ["minProperties"],
        "qwen3_coder": ["minProperties", "properties.when.format"],
        "gemma4": [
            "minProperties",
            "properties.when.format",
            "properties.rows.items.format",
        ],
    }
    for name, paths in ignored.items():
        assert unenforced(tool_format(name), Tool("f", schema)) == paths


def test_lists_in_the_notation_of_gemma_have_bounds() -> None:
    """The number of items holds, and their schema does."""
    rows = {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "integer"}}
    formats = formats_of("gemma4")
    assert formats.tools is not None
    tools = [Tool("f", {"type": "object", "properties": {"rows": rows}})]
    grammar = calls_grammar(formats, tools, "required", tokens=PLAIN.ids)
    for items, is_right in (([], False), ([1], True), ([1, 2], True), ([1, 2, 3], False)):
        text = write_calls(formats.tools, [Call("f", json.dumps({"rows": items}))])
        assert PLAIN.allows(grammar, text) == is_right, text


CHOICES = {
    "type": "object",
    "properties": {
        "node": {"$ref": "#/$defs/node"},
        "maybe": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
        "mixed": {"enum": ["a", 1]},
        "either": {"anyOf": [{"type": "string", "pattern": "^[a-z]+$"}, {"type": "integer"}]},
    },
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
            "required": ["x"],
            "additionalProperties": False,
        },
        "loop": {"anyOf": [{"$ref": "#/$defs/loop"}] * 9},
    },
}


@FORMATS
def test_choices_and_references_hold_in_every_format(name: str) -> None:
    """Members with several types, and schemas that refer to themselves, are enforced and read."""
    formats = formats_of(name)
    assert formats.tools is not None
    tools = [Tool("f", CHOICES)]
    grammar = calls_grammar(formats, tools, "required", tokens=PLAIN.ids)
    for arguments, is_right in (
        ({"node": {"x": 1, "next": {"x": 2}}}, True),
        ({"node": {"x": 1, "next": {"y": 2}}}, False),
        ({"maybe": {"x": 1}, "either": "abc"}, True),
        ({"maybe": None, "mixed": "a"}, True),
        ({"maybe": 1}, False),
        ({"mixed": 1, "either": 2}, True),
        ({"mixed": 2}, False),
        ({"either": "A"}, False),
    ):
        text = write_calls(formats.tools, [Call("f", json.dumps(arguments))])
        for stop in formats.tools.stops:
            text = text.removesuffix(stop)
        assert PLAIN.allows(grammar, text) == is_right, text
        if is_right:
            parser = make_parser(formats, tools)
            assert arguments_of(message_of(parser.feed(text, True))) == [("f", arguments)]


@pytest.mark.parametrize("name", ["qwen3_coder", "pythonic", "gemma4"])
def test_schemas_that_lead_back_to_themselves_end(name: str) -> None:
    """A choice that consists of itself gives a grammar, or none, in little time."""
    loop = {"$ref": "#/$defs/loop"}
    schema = {"type": "object", "properties": {"a": loop}, "$defs": CHOICES["$defs"]}
    tool = Tool("f", schema)
    assert calls_grammar(formats_of(name), [tool], "required", tokens={})
    assert unenforced(tool_format(name), tool) == []
    feed = make_parser(formats_of(name), [tool]).feed
    assert message_of(feed("[f(a=1)]", True)).calls or name != "pythonic"


def test_required_members_without_a_schema_are_written() -> None:
    """A grammar demands a member that is required, though its schema is not given."""
    tools = [Tool("f", {"type": "object", "required": ["x"]})]
    for name in ("qwen3_coder", "pythonic", "functiongemma"):
        formats = formats_of(name)
        assert formats.tools is not None
        grammar = calls_grammar(formats, tools, "required", tokens=PLAIN.ids)
        right, wrong = (
            write_calls(formats.tools, [Call("f", one)]) for one in ('{"x": "a"}', "{}")
        )
        assert PLAIN.allows(grammar, right)
        assert not PLAIN.allows(grammar, wrong)


def test_calls_without_a_format_are_refused() -> None:
    """The error names the flag that gives a format."""
    with pytest.raises(FormatError, match="--tool-call-parser"):
        calls_grammar(Formats(), TOOLS, "required", tokens={})
