"""The grammar of a whole answer allows what the request asks for, and nothing else."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from octavo.core.structured_outputs import StructuredOutputsParams
from octavo.formats.description import Formats
from octavo.formats.registry import reasoning_format, tool_format
from octavo.grammar.checked import CheckedShape, job_of
from octavo.workers.answer_shape import AnswerJob, CallableTool, check_answer
from tests.formats.vocabulary import Vocabulary

MARKS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
VOCABULARY = Vocabulary(MARKS)
SIZE = len(VOCABULARY.tokens)
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
NUMBER = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
SHAPE = job_of(StructuredOutputsParams(json=json.dumps(NUMBER)), SIZE)
THOUGHT = "<think>\nIt is cold.\n</think>\n\n"


def tool(name: str, schema: dict[str, Any], *, strict: bool = False, index: int = 0) -> Any:
    return CallableTool(name, schema, strict, f"[{index}].function.parameters")


WEATHER = tool("weather", CITY)
STRICT = tool("weather", CITY, strict=True)
CLOCK = tool("clock", {"type": "object", "additionalProperties": False}, index=1)
QWEN = Formats(tool_format("hermes"), reasoning_format("qwen3"))


def job(**fields: Any) -> AnswerJob:
    """Return a job for a model in whose vocabulary all marks are special tokens."""
    values: dict[str, Any] = {
        "formats": replace(QWEN, reasoning=None),
        "tools": [WEATHER, CLOCK],
        "field": "tools",
        "must_call": False,
        "is_parallel": True,
        "only_these": False,
        "prompt_end": "",
        "tokens": {mark: VOCABULARY.ids[mark] for mark in MARKS},
        "shape": None,
        "vocabulary": SIZE,
        **fields,
    }
    return AnswerJob(**values)


def grammar(**fields: Any) -> str:
    """Return the grammar of a job, which a worker receives and answers as messages."""
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(job(**fields)), type=AnswerJob)
    made = check_answer(sent)
    assert not made.what, made
    return made.grammar


def refused(**fields: Any) -> CheckedShape:
    made = check_answer(job(**fields))
    assert made.what
    return made


def called(name: str, arguments: Any) -> str:
    written = {"name": name, "arguments": arguments}
    return f"<tool_call>\n{json.dumps(written)}\n</tool_call>"


OSLO, NOON = called("weather", {"city": "Oslo"}), called("clock", {})
WRONG = called("weather", {"town": "Oslo"})


def test_a_required_call_is_all_of_the_answer() -> None:
    text = grammar(must_call=True)
    for right in (OSLO, NOON, f"{OSLO}\n{NOON}"):
        assert VOCABULARY.allows(text, right), right
    for wrong in ("", "I look.", f"I look.{OSLO}", WRONG, called("other", {}), f"{OSLO} Done."):
        assert not VOCABULARY.allows(text, wrong), wrong
    alone = grammar(must_call=True, is_parallel=False)
    assert VOCABULARY.allows(alone, OSLO)
    assert not VOCABULARY.allows(alone, f"{OSLO}\n{NOON}")


def test_every_way_through_a_required_call_is_a_call() -> None:
    """Random walks through the grammar end with arguments of the schema."""
    text = grammar(must_call=True, tools=[tool("add", NUMBER)])
    source = random.Random(5)
    num_ended = 0
    for _ in range(20):
        walked = VOCABULARY.walk(text, source)
        for written in (walked or "").split("</tool_call>")[:-1]:
            call = json.loads(written.strip().removeprefix("<tool_call>"))
            assert call["name"] == "add"
            assert type(call["arguments"]["a"]) is int
            num_ended += 1
    assert num_ended > 5


def test_strict_tools_bind_their_own_arguments() -> None:
    """Text is free, and so are the arguments of the other tools."""
    assert check_answer(job()).grammar == ""
    text = grammar(tools=[STRICT, tool("free", NUMBER, index=1)])
    for right in ("", "Hello.", OSLO, f"I look.{OSLO}", called("free", {"b": 1})):
        assert VOCABULARY.allows(text, right), right
    assert not VOCABULARY.allows(text, WRONG)
    assert not VOCABULARY.allows(text, called("other", {}))


def test_tools_that_are_not_allowed_are_not_called() -> None:
    text = grammar(tools=[WEATHER], only_these=True)
    for right in ("Hello.", OSLO, WRONG):
        assert VOCABULARY.allows(text, right), right
    assert not VOCABULARY.allows(text, NOON)


def test_reasoning_comes_before_what_is_bound() -> None:
    for fields, answer in (
        ({"must_call": True}, OSLO),
        ({"tools": [], "shape": SHAPE}, '{"a": 1}'),
    ):
        begun = grammar(formats=QWEN, prompt_end="<think>\n", **fields)
        rest = THOUGHT.removeprefix("<think>\n")
        assert VOCABULARY.allows(begun, f"{rest}{answer}")
        assert not VOCABULARY.allows(begun, answer)
        free = grammar(formats=QWEN, **fields)
        assert VOCABULARY.allows(free, f"{THOUGHT}{answer}")
        assert VOCABULARY.allows(free, answer)
        assert not VOCABULARY.allows(free, f"{THOUGHT}No.")
        ended = grammar(formats=QWEN, prompt_end="<think>\n\n</think>\n\n", **fields)
        assert VOCABULARY.allows(ended, answer)
        assert not VOCABULARY.allows(ended, f"{THOUGHT}{answer}")


@pytest.mark.parametrize("formats", [QWEN, replace(QWEN, reasoning=None)])
def test_an_answer_is_a_call_or_has_the_shape(formats: Formats) -> None:
    text = grammar(formats=formats, shape=SHAPE)
    for right in ('{"a": 1}', OSLO, f"{OSLO}\n{NOON}"):
        assert VOCABULARY.allows(text, right), right
    for wrong in ("Hello.", '{"a": "b"}', f'{{"a": 1}}{OSLO}'):
        assert not VOCABULARY.allows(text, wrong), wrong
    required = grammar(formats=formats, shape=SHAPE, must_call=True)
    assert not VOCABULARY.allows(required, '{"a": 1}')


def test_what_cannot_be_enforced_is_refused_or_named() -> None:
    unique = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    found = refused(tools=[WEATHER, tool("f", unique, strict=True, index=1)])
    assert (found.field, found.path.startswith("[1].function.parameters")) == ("tools", True)
    made = check_answer(job(tools=[tool("f", unique)], must_call=True))
    assert made.grammar
    ((place, _),) = made.warnings
    assert place.startswith("tools[0].function.parameters.properties.a")
    assert refused(tools=[tool("f", {"type": "objct"})], must_call=True).field == "tools"


def test_jobs_of_old_clients_name_their_field() -> None:
    wrong = CallableTool("f", {"type": "objct"}, strict=False, place="[0].parameters")
    found = refused(tools=[wrong], must_call=True, field="functions")
    assert found.field == "functions"
    assert found.path.startswith("[0].parameters")


def test_a_format_without_quotes_enforces_the_formats_of_strings() -> None:
    """The format of a string is a pattern to the grammar, with quotes or without."""
    dated = {"type": "object", "properties": {"day": {"type": "string", "format": "date"}}}
    bare = Formats(tool_format("qwen3_coder"))
    made = check_answer(job(formats=bare, tokens={}, tools=[tool("f", dated, strict=True)]))
    assert (made.what, made.warnings) == ("", [])


def test_what_a_format_cannot_write_is_refused_or_named() -> None:
    """A notation that lists an object's members one by one enforces no number of them."""
    few = {"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 1}
    bare = Formats(tool_format("qwen3_coder"))
    where = ".minProperties"
    found = refused(formats=bare, tokens={}, tools=[tool("f", few, strict=True)])
    assert (found.field, found.path) == ("tools", f"[0].function.parameters{where}")
    made = check_answer(job(formats=bare, tokens={}, tools=[tool("f", few)], must_call=True))
    assert [place for place, _ in made.warnings] == [f"tools[0].function.parameters{where}"]


def test_the_keyword_of_a_tool_that_is_too_much_is_named_or_left_out() -> None:
    pairs = [
        {"anyOf": [{"required": [f"a{each}"]}, {"required": [f"b{each}"]}]} for each in range(12)
    ]
    tools = [
        tool("small", {"type": "object", "properties": {"a": {"type": "integer"}}}, strict=True),
        tool(
            "large", {"type": "object", "properties": {"x": {"allOf": pairs}}}, index=1, strict=True
        ),
    ]
    checked = refused(tools=tools, must_call=True)
    assert checked.path.endswith(".parameters.properties.x.allOf")
    loose = [tools[0], tool("large", tools[1].parameters, index=1)]
    ((place, what),) = check_answer(job(tools=loose, must_call=True)).warnings
    assert place == f"{checked.field}{checked.path}"
    assert what.endswith("it is left out")
