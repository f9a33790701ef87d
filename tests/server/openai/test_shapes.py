"""The fields in which clients describe the shape of an answer, under the names of all servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.core.plan import NO_TOKEN, StepPlan, StepResult
from octavo.dialects.common.schema.chat import ChatRequest, Message
from octavo.dialects.common.shapes import own_places
from octavo.transport.errors import invalid
from tests.server.engine import ChainRunner, FakeEngine
from tests.server.make import LIMIT, Client, once_written, serving
from tests.server.openai.calls import error_of, streamed

MESSAGES = [{"role": "user", "content": "x"}]
PROMPTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": MESSAGES},
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
UNIQUE = {"type": "array", "uniqueItems": True}  # cannot be enforced
TAGS = {
    "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}],
    "triggers": ["<f"],
}
NEW_TAGS = {"format": {"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": "."}}


def json_schema(schema: Any, **others: Any) -> dict[str, Any]:
    """Return OpenAI's description of a schema."""
    described = {"name": "it", "schema": schema, **others}
    return {"type": "json_schema", "json_schema": described}


class NotingRunner(ChainRunner):
    """A runner that keeps the grammar of each sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.grammars: list[str] = []

    def run(self, plan: StepPlan) -> StepResult:
        self.grammars += [new.sampling.grammar for new in plan.opened]
        return super().run(plan)


WAYS: dict[str, tuple[dict[str, Any], str]] = {
    "json_object": ({"response_format": {"type": "json_object"}}, '"object"'),
    "json_object with a schema": (
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        '"integer"',
    ),
    "json_object with a value": (
        {"response_format": {"type": "json_object", "value": SCHEMA}},
        '"integer"',
    ),
    "json": ({"response_format": {"type": "json", "value": SCHEMA}}, '"integer"'),
    "regex with a value": ({"response_format": {"type": "regex", "value": "a{3}"}}, "a{3}"),
    "json_schema": ({"response_format": json_schema(SCHEMA, strict=True)}, '"integer"'),
    "json_schema, any": ({"response_format": json_schema({})}, "%json"),
    "structural_tag": ({"response_format": {"type": "structural_tag", **TAGS}}, "lazy"),
    "new structural_tag": ({"response_format": {"type": "structural_tag", **NEW_TAGS}}, "lazy"),
    "vLLM json": ({"structured_outputs": {"json": SCHEMA}}, '"integer"'),
    "vLLM json text": ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, '"integer"'),
    "vLLM regex": ({"structured_outputs": {"regex": "a+b"}}, "/a+b/"),
    "vLLM choice": ({"structured_outputs": {"choice": ["yes", "no"]}}, "/yes|no/"),
    "vLLM grammar": ({"structured_outputs": {"grammar": 'root ::= "a"'}}, '"a"'),
    "vLLM json_object": ({"structured_outputs": {"json_object": True}}, '"object"'),
    "vLLM structural_tag": ({"structured_outputs": {"structural_tag": TAGS}}, "lazy"),
    "vLLM compact": (
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
        '"whitespace_flexible": false',
    ),
    "vLLM closed": (
        {"structured_outputs": {"json": SCHEMA, "disable_additional_properties": True}},
        '"additionalProperties": false',
    ),
    "vLLM whitespace": (
        {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " ?"}},
        '"whitespace_pattern": "\\\\x20?"',
    ),
    "guided_json": ({"guided_json": SCHEMA}, '"integer"'),
    "guided_json with whitespace": (
        {"guided_json": SCHEMA, "guided_whitespace_pattern": "\n?"},
        '"whitespace_pattern": "\\\\x0A?"',
    ),
    "guided_json_object": ({"guided_json_object": True}, '"object"'),
    "guided_regex": ({"guided_regex": "a+b", "guided_decoding_backend": "xgrammar"}, "/a+b/"),
    "guided_choice": ({"guided_choice": ["yes", "no"]}, "/yes|no/"),
    "guided_grammar": ({"guided_grammar": 'start: "a"'}, 'start: "a"'),
    "llama.cpp grammar": ({"grammar": 'root ::= "a" root | "b"'}, "rule_0"),
    "llama.cpp json_schema": ({"json_schema": SCHEMA}, '"integer"'),
    "SGLang json_schema": ({"json_schema": json.dumps(SCHEMA)}, '"integer"'),
    "SGLang regex": ({"regex": "a+b"}, "/a+b/"),
    "SGLang ebnf": ({"ebnf": 'root ::= "a"'}, '"a"'),
    "SGLang structural_tag": ({"structural_tag": json.dumps(TAGS)}, "lazy"),
}


@pytest.mark.parametrize("path", PROMPTS)
def test_each_way_to_ask_for_a_shape_reaches_the_engine_as_a_grammar(
    directory: Path, path: str
) -> None:
    runner = NotingRunner()

    async def main() -> None:
        async with serving(directory, FakeEngine(directory, runner=runner), strict=True) as client:
            for name, (fields, part) in WAYS.items():
                body = {**PROMPTS[path], "max_tokens": 1, **fields}
                response = await client.post(path, json=body)
                assert response.status_code == 200, (name, response.text)
                assert "warnings" not in response.json()
                assert part in runner.grammars.pop(), name
            response = await client.post(path, json={**PROMPTS[path], "max_tokens": 1})
            assert response.status_code == 200
            assert runner.grammars == [""]

    asyncio.run(main())


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}},
        {"response_format": None},
        {"guided_json": None, "guided_regex": "", "guided_choice": [], "grammar": ""},
        {"json_schema": "", "regex": "", "ebnf": "", "structural_tag": ""},
        {"guided_json_object": False, "guided_json": False, "json_schema": False},
    ],
)
def test_some_values_ask_for_no_shape(directory: Path, fields: dict[str, Any]) -> None:
    runner = NotingRunner()

    async def main() -> None:
        async with serving(directory, FakeEngine(directory, runner=runner), strict=True) as client:
            assert "choices" in await client.complete(max_tokens=1, **fields)
            assert runner.grammars == [""]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        (
            {"response_format": json_schema({"properties": {"a": UNIQUE}})},
            "response_format.json_schema.schema.properties.a.uniqueItems",
            "properties.a.uniqueItems: only arrays",
        ),
        ({"json_schema": UNIQUE}, "json_schema.uniqueItems", "only arrays"),
        (
            {"response_format": {"type": "json_object", "schema": {"requierd": []}}},
            "response_format.schema.requierd",
            "did you mean 'required'?",
        ),
        ({"guided_json": "{"}, "guided_json", "it is not JSON"),
        ({"guided_json": "[]"}, "guided_json", "a list was given"),
        ({"guided_json": {"type": "strng"}}, "guided_json.type", '"strng" is not one of null'),
        ({"guided_json": {"$ref": "#/$defs/x"}}, "guided_json.$ref", "leads nowhere"),
        ({"guided_json": {"allOf": [{"a b": 1}]}}, "guided_json.allOf[0]['a b']", "unknown"),
        ({"json_schema": {"const": 10**30}}, "json_schema", "more than 64 bits"),
        ({"guided_regex": "(?=a(?=b))"}, "guided_regex", "assertions within"),
        ({"regex": "a" * 20_000}, "regex", "20000 characters; at most 16384"),
        ({"regex": "a" * 140_000}, "regex", "140000 characters; at most 131072"),
        ({"guided_choice": ["a", ""]}, "guided_choice[1]", "not empty"),
        ({"guided_choice": ["a"] * 5000}, "guided_choice", "<= 4096, got 5000"),
        ({"grammar": "root ::= x"}, "grammar", "rule 'x' is not defined"),
        ({"ebnf": 'root ::= "a" [b'}, "ebnf", "line 1: a quote or a bracket is not closed"),
        ({"guided_grammar": "start: x"}, "guided_grammar", "guided_grammar: line 1: unknown name"),
        ({"guided_grammar": "%llguidance {}"}, "guided_grammar", "line 1: %llguidance sets"),
        (
            {"guided_grammar": 'start: "a"\n | %json {"not": {"contains": {}}}'},
            "guided_grammar",
            "guided_grammar: line 2, not: the opposite of this",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
        (
            {"response_format": {"type": "regex", "value": {}}},
            *("response_format.value", "as a string"),
        ),
        (
            {"response_format": {"type": "json_schema", "schema": SCHEMA}},
            "response_format.json_schema",
            "is missing; schema belongs under json_schema",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"nmae": "x", "schema": {}},
                }
            },
            "response_format.json_schema.nmae",
            "did you mean 'name'?",
        ),
        (
            {"response_format": {"type": "text", "jsonschema": {}}},
            "response_format.jsonschema",
            "did you mean 'json_schema'?",
        ),
        ({"structured_outputs": {"jsn": SCHEMA}}, "structured_outputs.jsn", "mean 'json'?"),
        ({"structured_outputs": {}}, "structured_outputs", "none is given"),
        ({"structured_outputs": {"disable_fallback": True}}, "structured_outputs", "none is given"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
            "missing",
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type", "got 'xml'"),
        (
            {"response_format": {"type": "json"}},
            "response_format.type",
            "got 'json'; did you mean 'json_object'?",
        ),
        ({"response_format": {}}, "response_format.type", "missing"),
        ({"response_format": "json"}, "response_format", "got string"),
        (
            {"response_format": {"type": "structural_tag", "structures": [{}], "triggers": ["<"]}},
            "response_format.structures[0].begin",
            "it must be text",
        ),
        (
            {"response_format": {"type": "structural_tag", "format": {"type": "what"}}},
            "response_format.format.type",
            "one of const_string",
        ),
        ({"response_format": {"type": "structural_tag"}}, "response_format.structures", "list"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", "not closed"),
        (
            {"structured_outputs": {"regex": "a", "choice": ["b"]}},
            "structured_outputs.choice",
            "regex and choice are given",
        ),
        ({"structured_outputs": {"strict": False}}, "structured_outputs", "none is given"),
        (
            {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": "("}},
            "structured_outputs.whitespace_pattern",
            "not closed",
        ),
        (
            {"guided_json": SCHEMA, "guided_whitespace_pattern": "[a-z]*"},
            "guided_whitespace_pattern",
            "must consist of blanks, tabs and line breaks",
        ),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "which is missing"),
        ({"guided_json": SCHEMA, "regex": "a"}, "regex", "guided_json and regex describe"),
        (
            {"response_format": {"type": "json_object"}, "grammar": 'root ::= "a"'},
            "response_format",
            "grammar and response_format describe",
        ),
    ],
)
def test_a_shape_that_cannot_be_is_refused_with_its_place(
    directory: Path, fields: dict[str, Any], param: str, words: str
) -> None:
    error = error_of(directory, **fields)
    assert error["param"] == param, error
    assert words in error["message"], error


def test_what_is_not_enforced_is_named_if_the_client_agrees(directory: Path) -> None:
    shape = json_schema({"type": "object", "properties": {"a": UNIQUE}}, strict=False)
    place = "response_format.json_schema.schema.properties.a.uniqueItems"

    async def main() -> None:
        async with serving(directory) as client:
            for path, prompt in PROMPTS.items():
                body = {**prompt, "max_tokens": 2, "response_format": shape}
                (warning,) = (await client.post(path, json=body)).json()["warnings"]
                assert warning.startswith(f"{place}: only arrays")
                assert warning.endswith("it is left out")
                first, *others = await streamed(client, path, **body)
                assert (first["warnings"], first["choices"]) == ([warning], [])
                assert not any("warnings" in chunk for chunk in others)

    asyncio.run(main())


def test_a_shape_is_checked_once(directory: Path) -> None:
    """Later requests with an equal one, right or wrong, ask no worker."""
    asked: list[Any] = []

    async def post(client: Client, schema: Any) -> int:
        body = {"prompt": "x", "max_tokens": 1, "response_format": json_schema(schema)}
        return int((await client.post("/v1/completions", json=body)).status_code)

    async def main() -> None:
        async with serving(directory) as client:
            pool = client.server.prompt_pool
            check = pool.check_shape

            async def noting(job: Any, owner: str = "") -> Any:
                asked.append(job)
                return await check(job, owner)

            pool.check_shape = noting  # type: ignore[method-assign]
            for _ in range(3):
                assert await post(client, SCHEMA) == 200
                assert await post(client, UNIQUE) == 400
            assert len(asked) == 2
            assert await post(client, {**SCHEMA, "title": "it"}) == 200
            assert len(asked) == 3

    asyncio.run(main())


class ImpossibleRunner(ChainRunner):
    """A runner in which no text can go on, unless it is said to be possible."""

    is_possible: Callable[[], object] = staticmethod(lambda: False)

    def run(self, plan: StepPlan) -> StepResult:
        made = super().run(plan)
        if self.is_possible():
            return made
        return made._replace(
            tokens=(NO_TOKEN,) * len(plan.slots),
            errors=tuple((slot, "the text cannot keep its shape") for slot in plan.slots),
            impossible=plan.slots,
        )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": json_schema(SCHEMA)}, "response_format.json_schema.schema"),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs.regex"),
        ({"guided_choice": ["a"], "allowed_token_ids": [5]}, "guided_choice"),
        ({"allowed_token_ids": [5]}, "allowed_token_ids"),
        ({"bad_words": ["a"]}, "bad_words"),
    ],
)
def test_a_text_that_cannot_go_on_is_the_request_s_fault(
    directory: Path, fields: dict[str, Any], param: str
) -> None:
    """The answer is a 400 with the field; a stream that has begun ends with the same error."""
    runner = ImpossibleRunner()
    engine = FakeEngine(directory, runner=runner)

    async def main() -> None:
        # The status of a stream is that of its first token, however late it comes.
        async with serving(directory, engine, status_seconds=LIMIT) as client:
            body = {"messages": MESSAGES, "max_tokens": 200, **fields}
            for streams in (False, True):
                answer = await client.post("/v1/chat/completions", json={**body, "stream": streams})
                assert answer.status_code == 400, answer.text
                error = answer.json()["error"]
                assert (error["type"], error["param"]) == ("invalid_request_error", param)
                assert error["message"].endswith("the text cannot keep its shape")
            is_written = once_written(client)
            runner.is_possible = lambda: not is_written()
            *_, last = await streamed(client, "/v1/chat/completions", **body)
            assert last["error"] == error

    asyncio.run(main())


def test_a_large_body_has_its_shape_too(directory: Path) -> None:
    """The worker that reads it sends the shape back."""
    runner = NotingRunner()
    properties = {f"p{index}": {"type": "integer"} for index in range(300)}
    schema = {"properties": properties, "required": ["p0"]}

    async def main() -> None:
        async with serving(directory, FakeEngine(directory, runner=runner)) as client:
            body = {"prompt": "x" * 100, "max_tokens": 1, "json_schema": schema}
            body["metadata"] = {"x": "y" * (300 << 10)}
            response = await client.post("/v1/completions", json=body)
            assert response.status_code == 200, response.text
            assert '"p299"' in runner.grammars[0]

    asyncio.run(main())


def test_an_error_of_a_grammar_of_calls_alone_keeps_its_name() -> None:
    messages = [Message(role="user", content="x")]
    error = invalid("compiling the shape took more than 2 s", "structured_outputs")
    error = error.renamed(own_places(ChatRequest(messages=messages)))
    assert error.param == "structured_outputs"


ASKED_ELSEWHERE: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x", "structured_outputs": {"regex": "a+"}},
    "/v1/responses": {
        "input": "x",
        "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
    },
    "/api/chat": {"messages": MESSAGES, "format": SCHEMA},
    "/api/generate": {"prompt": "x", "format": SCHEMA},
}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("path", ASKED_ELSEWHERE)
def test_each_dialect_with_shapes_says_that_a_text_cannot_keep_its_shape(
    directory: Path, path: str, streams: bool
) -> None:
    """The status is 400, and the next request without a shape is answered."""
    runner = ImpossibleRunner()
    engine = FakeEngine(directory, runner=runner)

    async def main() -> None:
        # The status of a stream is that of its first token, however late it comes.
        async with serving(directory, engine, status_seconds=LIMIT) as client:
            model = (await client.get("/v1/models")).json()["data"][0]["id"]
            body = {"model": model, **ASKED_ELSEWHERE[path], "stream": streams}
            answer = await client.post(path, json=body)
            assert answer.status_code == 400, answer.text
            assert "the text cannot keep its shape" in answer.text
            runner.is_possible = lambda: True
            plain = await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2})
            assert plain.status_code == 200, plain.text

    asyncio.run(main())
