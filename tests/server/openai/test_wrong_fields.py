"""Requests with a wrong field are refused with its name, what is wrong, and the numbers."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from octavo.dialects.common.dialect import OPENAI
from octavo.dialects.common.schema.unsupported import SHAPES
from octavo.server.routes import ROUTES
from octavo.serving.schema.rules import Unsupported
from octavo.transport.route import Route
from tests.server.engine import FakeEngine
from tests.server.make import Client, serving
from tests.server.openai.calls import error_of, run

MESSAGES = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"temperature": 3}, "temperature", "expected number <= 2.0, got 3"),
        ({"temperature": -0.25}, "temperature", "expected number >= 0.0, got -0.25"),
        ({"top_k": -2}, "top_k", "expected integer >= -1, got -2"),
        ({"temperature": "hot"}, "temperature", "expected number or null, got string"),
        ({"temperature": "0.5"}, "temperature", "expected number or null, got string"),
        ({"max_tokens": "5"}, "max_tokens", "got string"),
        ({"stream": "true"}, "stream", "got string"),
        ({"top_p": 0}, "top_p", "> 0.0"),
        ({"n": 0}, "n", ">= 1, got 0"),
        ({"n": 129}, "n", "<= 128, got 129"),
        ({"n": 2, "temperature": 0}, "n", "the same text"),
        ({"max_tokens": -1}, "max_tokens", ">= 0, got -1"),
        ({"max_tokens": 10**400}, "max_tokens", "got 1" + "0" * 31 + "…"),
        ({"max_tokens": 0}, "max_tokens", "needs echo"),
        ({"min_tokens": 9, "max_tokens": 50, "logprobs": 21}, "logprobs", "max_logprobs=20"),
        ({"logprobs": -1}, "logprobs", "logprobs=-1, the whole vocabulary of 300 tokens, is more"),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "the whole vocabulary of 300 tokens"),
        ({"min_tokens": 9, "max_tokens": 4}, "min_tokens", "more than max_tokens=4"),
        ({"min_tokens": 255}, "min_tokens", "that the context leaves"),
        (
            {"max_tokens": 250},
            "max_tokens",
            "max_tokens=250 and a prompt of 7 tokens make 257",
        ),
        ({"max_tokens": 5000}, "max_tokens", "context has 256: lower max_tokens to 249 or less"),
        ({"prompt": [[1], [5] * 200], "max_tokens": 57}, "max_tokens", "prompt[1]: max_tokens=57"),
        ({"prompt": [5] * 256, "max_tokens": 9}, "prompt", "has 256 tokens"),
        ({"seed": 2**63}, "seed", "<= 9223372036854775807, got 9223372036854775808"),
        ({"stop": ["x"] * 17}, "stop", "length <= 16, got 17"),
        ({"stop": ""}, "stop", "length >= 1, got 0"),
        ({"stop": ["a", "b" * 257]}, "stop[1]", "length <= 256, got 257"),
        ({"stop_token_ids": [4, 300, 7, 999]}, "stop_token_ids", "are no tokens: 300, 999; the"),
        ({"allowed_token_ids": [4, 301, 302]}, "allowed_token_ids", "no tokens: 301, 302; the"),
        ({"logit_bias": {"900": 1, "5": 2, "301": 3}}, "logit_bias", "no tokens: 301, 900; the"),
        ({"logit_bias": {"x": 1, "7": 1, "²": 2}}, "logit_bias", "no token ids: 'x', '²'; token"),
        (
            {"logit_bias": {"1": 101, "7": 100, "8": -100.5}},
            "logit_bias",
            "number <= 100.0, got 101 under '1'; expected number >= -100.0, got -100.5 under '8'",
        ),
        ({"logit_bias": {str(n): 999 for n in range(70)}}, "logit_bias", "'63'; and 6 more"),
        ({"logit_bias": {str(n): 1 for n in range(1025)}}, "logit_bias", "<= 1024, got 1025"),
        ({"logit_bias": {"1": 2, "7": "x"}}, "logit_bias", "number, got string under '7'"),
        ({"logit_bias": {"7": None}}, "logit_bias", "got null under '7'"),
        ({"logit_bias": {"7": [[1]]}}, "logit_bias", "got array under '7'"),
        (
            {"logit_bias": {"x": 101, "900": "y", "7": True}},
            "logit_bias",
            (
                "no token ids: 'x'; token ids are whole numbers, such as '42'; ids that are no "
                "tokens: 900; the vocabulary has 300 tokens, with ids from 0 to 299; expected "
                "number <= 100.0, got 101 under 'x'; expected number, got string under '900'; "
                "expected number, got boolean under '7'"
            ),
        ),
        ({"truncation_side": "mid"}, "truncation_side", "one of 'left', 'right', got 'mid'"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "leaves nothing"),
        ({"truncate_prompt_tokens": 257}, "truncate_prompt_tokens", "model reads: 256 tokens"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "no token could be chosen"),
        ({"prompt": []}, "prompt", "empty list"),
        ({"prompt": ""}, "prompt", "no tokens"),
        ({"prompt": [1, "x"]}, "prompt", "mixes"),
        ({"prompt": [1, 300]}, "prompt", "300"),
        ({"prompt": [-1]}, "prompt[0]", ">= 0"),
        ({"prompt": None}, "prompt", "got null"),
        ({"prompt": ["x"] * 2049}, "prompt", "2049"),
        ({"prompt": ["x"] * 1025, "n": 2}, "prompt", "more than 2048"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream=true"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs", "not streamed"),
        ({"suffix": "end"}, "suffix", "suffix"),
        ({"best_of": 2}, "best_of", "best_of: the best answer is not selected; use n"),
        ({"stream_options": 5}, "stream_options", "stream_options: expected object"),
        ({"length_penalty": 2}, "length_penalty", "use_beam_search=true"),
        ({"json_mode": True}, "json_mode", "use response_format or structured_outputs"),
        ({"deadline_ms": 0}, "deadline_ms", ">= 1, got 0"),
        ({"priority": 2_000_000}, "priority", "<= 1000000, got 2000000"),
        ({"cache_salt": ""}, "cache_salt", ">= 1, got 0"),
        ({"prompt": [5] * 256}, "prompt", "max_model_len=256"),
        ({"prompt": [[1], [5] * 256]}, "prompt[1]", "prompt[1] has 256 tokens"),
        ({"prompt": [[1], [2], [1, 300]]}, "prompt[2]", "prompt[2]: prompt_token_ids[1] is 300"),
        ({"prompt": ["x", ""]}, "prompt[1]", "prompt[1] has no tokens"),
    ],
)
def test_the_wrong_field_is_named(directory: Path, fields: Any, param: str, words: str) -> None:
    error = error_of(directory, **fields)
    assert error["param"] == param, error
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"
    assert error["message"].count(f"{param}:") <= 1
    assert "`" not in error["message"]


OWN_ROUTES = [
    each
    for each in ROUTES
    if each.request is not None
    and each.dialect in (None, OPENAI)
    and not each.path.startswith(("/v1/files", "/v1/batches"))  # forms, and what has a directory
    and not each.path.endswith("_lora_adapter")  # refused whole, unless the operator allows them
]


@pytest.mark.parametrize("route", OWN_ROUTES)
def test_every_field_that_is_wrong_is_named_once(directory: Path, route: Route) -> None:
    """The message uses the terms of JSON for every field; fields of any type are skipped."""

    messages = [{"role": "user", "content": "x"}]
    least: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "x", "max_tokens": 1},
        "/v1/fim/completions": {"prompt": "x", "max_tokens": 1},
        "/v1/chat/completions": {"messages": messages, "max_tokens": 1},
        "/chat/completions": {"messages": messages, "max_tokens": 1},
        "/v1/chat/completions/input_tokens": {"messages": messages},
        "/chat/completions/input_tokens": {"messages": messages},
        "/v1/completions/derender": {"generate_responses": [{"request_id": "x", "choices": []}]},
        "/v1/chat/completions/derender": {
            "generate_response": {"request_id": "x", "choices": []},
        },
        "/inference/v1/abort_requests": {"request_ids": ["x"]},
        "/generative_scoring": {"query": "x", "items": ["y"], "label_token_ids": [1]},
        "/tokenize": {},
        "/detokenize": {"tokens": []},
        "/v1/completions/render": {"prompt": "x"},
        "/v1/chat/completions/render": {"messages": messages},
        "/v1/chat/completions/batch": {"messages": [messages], "max_tokens": 1},
        "/inference/v1/generate": {"token_ids": [1], "sampling_params": {"max_tokens": 1}},
    }

    values = (
        b'{"a": [1]}',
        b"[[{}]]",
        b'"wrong"',
        b"-7.5",
        b"1e400",
        b'"\xff"',
        b"[" * 30 + b"]" * 30,
    )

    async def main() -> None:
        assert route.request is not None
        async with serving(directory) as client:
            for name in route.request.__struct_fields__:
                for wrong in values:
                    rest = {key: each for key, each in least[route.path].items() if key != name}
                    text = json.dumps(rest).replace("{", ", " if rest else "", 1).encode()
                    body = b'{"%b": %b%b' % (name.encode(), wrong, text)
                    response = await client.post(route.path, content=body)
                    if response.status_code == 200:
                        continue
                    error = response.json()["error"]
                    message = error["message"]
                    if "give either" in message:  # a conversation, or a text?
                        continue
                    assert re.split(r"[.\[]", error["param"])[0] == name, (wrong, error)
                    assert len(re.findall(rf"\b{name}\b", message)) == 1, message
                    assert not re.search(r"\b(str|int|float|bool|enum)\b|\.\.\.|`", message)

    asyncio.run(main())


def test_an_answer_that_does_not_fit_is_refused_with_the_numbers(directory: Path) -> None:
    """Defaults take what the context leaves; a length that was asked for is refused."""
    assert run(directory, prompt=[5] * 250)["usage"]["completion_tokens"] == 6
    assert run(directory, prompt=[5] * 250, max_tokens=6)["usage"]["completion_tokens"] == 6
    error = error_of(directory, prompt=[5] * 250, max_tokens=7)
    assert error["code"] == "context_length_exceeded"
    for number in ("max_tokens=7", "250 tokens", "make 257", "has 256", "to 6 or less"):
        assert number in error["message"]

    async def main() -> None:
        engine = FakeEngine(directory, longest_tokens=48)
        async with serving(directory, engine) as client:
            for name in ("max_tokens", "max_completion_tokens"):
                error = (await client.chat(**{name: 48}))["error"]
                assert (error["param"], error["code"]) == (name, "context_length_exceeded")
                assert f"{name}=48 and a prompt" in error["message"]
                assert f": lower {name} to " in error["message"]
                assert "the KV cache holds 48" in error["message"]
            both = {"max_tokens": 5, "max_completion_tokens": 48}
            assert (await client.chat(**both))["error"]["param"] == "max_completion_tokens"
            assert "choices" in await client.chat(max_tokens=20)

    asyncio.run(main())


def test_the_servers_own_limit_shortens_answers(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory, max_output_tokens=5) as client:
            answer = await client.complete(max_tokens=200)
            assert answer["usage"]["completion_tokens"] == 5

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "prompt"),
    [("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", {"messages": MESSAGES})],
)
def test_every_other_field_that_asks_for_a_shape_is_refused(
    directory: Path, path: str, prompt: dict[str, Any]
) -> None:
    """An answer without the shape would be wrong without a sign; null and the like are taken."""
    body = {**prompt, "max_tokens": 1}

    async def check(client: Client, name: str, rule: Unsupported) -> None:
        for value in ("json", {"type": "json_object"}, {"type": "object"}, ["a"], True, 1):
            response = await client.post(path, json={**body, name: value})
            assert response.status_code == 400, (name, value, response.text)
            error = response.json()["error"]
            assert (error["param"], error["code"]) == (name, "unsupported_parameter")
            assert "use response_format or structured_outputs" in error["message"]
        harmless = {**body, name: json.loads(rule.harmless)}
        for nothing in ({**body, name: None}, harmless):
            response = await client.post(path, json=nothing)
            assert response.status_code == 200, (nothing, response.text)

    async def main() -> None:
        async with serving(directory) as client:
            for name, rule in SHAPES.items():
                await check(client, name, rule)

    asyncio.run(main())


@pytest.mark.parametrize(
    "name", ["responseSchema", "guided_jsn", "json_schema_name", "regexp", "lark_grammar", "EBNF"]
)
def test_an_unknown_field_whose_name_asks_for_a_shape_is_refused(
    directory: Path, name: str
) -> None:
    error = error_of(directory, **{name: {"type": "object"}})
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    nothings: tuple[Any, ...] = (None, {}, "", False)
    for nothing in nothings:
        assert "choices" in run(directory, max_tokens=1, **{name: nothing})


def test_the_body_of_a_python_client_is_not_hidden_in_a_field(directory: Path) -> None:
    error = error_of(directory, extra_body={"guided_regex": "a+"})
    assert error["param"] == "extra_body"
    assert "write its fields into the body itself" in error["message"]
