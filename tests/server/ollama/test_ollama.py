"""Ollama's dialect: answers whole and in lines, options, shapes, tools, reasoning, refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from octavo.server.openapi import document
from octavo.server.routes import DEFAULT_DIALECT, ROUTES
from tests.server.make import Client, once_written, serving
from tests.server.openai.scripted import AGENT, TOOLS, make_files, scripted_engine

Test = Callable[[Client], Awaitable[None]]
HELLO: Any = [{"role": "user", "content": "Hello"}]
SHORT = {"num_predict": 9, "temperature": 0}
CHAT: dict[str, Any] = {"model": "tiny", "messages": HELLO, "options": SHORT}
PROMPT: dict[str, Any] = {"model": "tiny", "prompt": "The quick", "options": SHORT}
WHOLE = document(ROUTES, DEFAULT_DIALECT)
DOCUMENTED = Draft202012Validator({**WHOLE, "$ref": "#/components/schemas/OllamaAnswer"})
NUMBERS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


def run(directory: Path, test: Test, **options: Any) -> None:
    """Run a test with a client of a server."""

    async def main() -> None:
        async with serving(directory, **options) as client:
            await test(client)

    asyncio.run(main())


async def answers(client: Client, path: str, body: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Return an answer as a whole and in lines."""
    whole = await client.post(path, json={**body, "stream": False})
    assert (whole.status_code, whole.headers["content-type"]) == (200, "application/json")
    stream = await client.post(path, json=body)
    assert stream.headers["content-type"] == "application/x-ndjson"
    assert stream.text.endswith("}\n")
    lines = [json.loads(line) for line in stream.text.splitlines()]
    for each in (whole.json(), *lines):
        DOCUMENTED.validate(each)
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    for last in (whole.json(), lines[-1]):
        assert all(last[name] >= 0 for name in NUMBERS)
        assert last["total_duration"] > 0
        assert (last["model"], last["created_at"][-1]) == ("tiny", "Z")
    assert whole.json()["eval_count"] == lines[-1]["eval_count"]
    assert whole.json()["done_reason"] == lines[-1]["done_reason"]
    return whole.json(), lines


def test_both_routes_say_the_same_whole_and_in_lines(directory: Path) -> None:
    async def test(client: Client) -> None:
        whole, lines = await answers(client, "/api/chat", CHAT)
        assert whole["message"]["role"] == "assistant"
        text = "".join(line["message"]["content"] for line in lines)
        assert text == whole["message"]["content"]
        assert len(lines) > 5
        body = {"messages": HELLO, "temperature": 0, "max_tokens": 9}
        same = (await client.post("/v1/chat/completions", json=body)).json()
        assert same["choices"][0]["message"]["content"] == text
        assert (whole["done_reason"], whole["eval_count"]) == ("length", 9)
        assert whole["prompt_eval_count"] == same["usage"]["prompt_tokens"]
        generated, parts = await answers(client, "/api/generate", {**PROMPT, "raw": True})
        assert "".join(part["response"] for part in parts) == generated["response"]
        told = await client.complete(temperature=0, max_tokens=9)
        assert generated["response"] == told["choices"][0]["text"]
        system, _ = await answers(client, "/api/generate", {**PROMPT, "system": "Be brief."})
        messages = [{"role": "system", "content": "Be brief."}]
        messages.append({"role": "user", "content": "The quick"})
        chat, _ = await answers(client, "/api/chat", {**CHAT, "messages": messages})
        assert system["response"] == chat["message"]["content"]
        stopped = {**PROMPT, "raw": True, "options": {**SHORT, "stop": generated["response"][3]}}
        assert (await answers(client, "/api/generate", stopped))[0]["done_reason"] == "stop"

    run(directory, test)


def test_an_answer_of_one_token_has_a_duration_to_divide_by(directory: Path) -> None:
    async def test(client: Client) -> None:
        body = {**PROMPT, "raw": True, "options": {"num_predict": 1}}
        whole, lines = await answers(client, "/api/generate", body)
        for last in (whole, lines[-1]):
            assert last["eval_count"] == 1
            assert last["eval_duration"] > 0

    run(directory, test)


def test_options_mean_what_they_mean_elsewhere(directory: Path) -> None:
    theirs = {
        "temperature": 0.7,
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.1,
        "seed": 4,
        "repeat_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.2,
        "num_predict": 30,
        "num_ctx": 2048,
        "repeat_last_n": 64,
        "typical_p": 0.7,
        "mirostat": 2,
        "mirostat_tau": 3.0,
        "mirostat_eta": 0.2,
        "tfs_z": 1.0,
    }
    ours = {
        "temperature": 0.7,
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.1,
        "seed": 4,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.2,
        "repeat_last_n": 64,
        "typical_p": 0.7,
        "mirostat": 2,
        "mirostat_tau": 3.0,
        "mirostat_eta": 0.2,
        "max_tokens": 30,
    }

    async def test(client: Client) -> None:
        body = {**PROMPT, "raw": True, "stream": False, "options": theirs, "keep_alive": "5m"}
        answer = (await client.post("/api/generate", json=body)).json()
        assert answer["response"] == (await client.complete(**ours))["choices"][0]["text"]
        endless = {**body, "options": {"num_predict": -1}, "model": "tiny:latest"}
        assert (await client.post("/api/generate", json=endless)).json()["eval_count"] > 100

    run(directory, test)


@pytest.mark.parametrize(
    ("path", "change", "status", "words"),
    [
        ("chat", {"model": "llama3"}, 404, "'llama3' does not exist"),
        ("chat", {"model": None}, 400, "model"),
        ("chat", {"options": {"temperature": -1}}, 400, "options.temperature"),
        ("chat", {"options": {"num_predict": 0}}, 400, "options.num_predict"),
        ("chat", {"options": {"mirostat": 3}}, 400, "options.mirostat"),
        ("chat", {"options": {"tfs_z": 0.9}}, 400, "options.tfs_z"),
        ("chat", {"options": {"typical_p": 2}}, 400, "options.typical_p"),
        ("chat", {"options": {"repeat_last_n": -2}}, 400, "options.repeat_last_n"),
        ("chat", {"options": {"stop": [""]}}, 400, "options.stop"),
        ("chat", {"messages": [{**HELLO[0], "images": ["aGk="]}]}, 400, "messages[0].images"),
        ("chat", {"messages": [{"role": "user", "content": "x " * 900}]}, 400, "messages"),
        ("chat", {"format": {"type": "nothing"}}, 400, "format"),
        ("chat", {"format": "yaml"}, 400, "format: expected 'json' or an object, got 'yaml'"),
        ("chat", {"format": "json_schema"}, 400, "got 'json_schema'; did you mean 'json'?"),
        ("chat", {"format": "{" * 99}, 400, f"got {'{' * 64 + '…'!r}"),
        ("chat", {"think": "deeply"}, 400, "think"),
        ("generate", {"images": ["aGk="]}, 400, "images"),
        ("generate", {"suffix": "end"}, 400, "suffix"),
        ("generate", {"template": "{{ .Prompt }}"}, 400, "template"),
        ("generate", {"context": [1, 2]}, 400, "context"),
        ("generate", {"raw": True, "system": "x"}, 400, "system"),
        ("generate", {"logprobs": True}, 400, "logprobs"),
        ("generate", {"raw": True, "prompt": "x " * 900}, 400, "prompt"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_name(
    path: str, change: dict[str, Any], status: int, words: str, directory: Path
) -> None:
    async def test(client: Client) -> None:
        body = {**(CHAT if path == "chat" else PROMPT), **change}
        refused = await client.post(f"/api/{path}", json=body)
        assert refused.status_code == status, refused.text
        assert refused.json().keys() == {"error"}
        assert words in refused.json()["error"]

    run(directory, test)


def test_a_request_without_a_prompt_loads_the_model(directory: Path) -> None:
    async def test(client: Client) -> None:
        for path, part in (("generate", "response"), ("chat", "message")):
            loaded = (await client.post(f"/api/{path}", json={"model": "tiny"})).json()
            assert (loaded["done"], loaded["done_reason"], part in loaded) == (True, "load", True)
            body = {"model": "tiny:latest", "keep_alive": 0}
            assert (await client.post(f"/api/{path}", json=body)).json()["done_reason"] == "unload"
            missing = await client.post(f"/api/{path}", json={"model": "llama3"})
            assert missing.status_code == 404
            assert "error" in (await client.post(f"/api/{path}", content=b"{")).json()
            wrong = await client.post(f"/api/{path}", json={"model": "tiny", "think": [1]})
            assert (wrong.status_code, wrong.json()["error"][:6]) == (400, "think:")

    run(directory, test)


def test_the_model_is_described(directory: Path) -> None:
    async def test(client: Client) -> None:
        (card,) = (await client.get("/api/tags")).json()["models"]
        assert (card["name"], card["model"]) == ("tiny", "tiny")
        (running,) = (await client.get("/api/ps")).json()["models"]
        assert (running["digest"], running["context_length"]) == (card["digest"], 256)
        shown = (await client.post("/api/show", json={"model": "tiny"})).json()
        assert shown["capabilities"] == ["completion", "embedding", "tools"]
        assert shown["model_info"]["general.architecture"] == "chain"
        assert shown["model_info"]["chain.context_length"] == 256
        assert shown["details"] == card["details"]
        assert shown["template"]
        assert (await client.post("/api/show", json={"name": "tiny"})).json() == shown
        assert (await client.post("/api/show", json={"model": "x"})).status_code == 404
        assert (await client.post("/api/show", json={})).status_code == 400
        assert (await client.get("/api/version")).json()["version"]
        assert shown["details"]["parameter_size"] == "134.5M"
        assert shown["details"]["quantization_level"] == "BF16"
        for name in ("tiny", "tiny:latest"):
            pulled = await client.post("/api/pull", json={"name": name})
            assert pulled.headers["content-type"] == "application/x-ndjson"
            assert pulled.text == '{"status":"success"}\n'
        assert (await client.post("/api/pull", json={"stream": False})).status_code == 400
        refused = await client.post("/api/pull", json={"model": "llama3", "stream": False})
        assert "'tiny', and no other; ask for that one" in refused.json()["error"]
        for name in ("pull", "push", "create", "copy"):
            refused = await client.post(f"/api/{name}", json={"model": "llama3"})
            assert refused.status_code == 400
            assert f"/api/{name} is not supported" in refused.json()["error"]
        assert (await client.request("DELETE", "/api/delete")).status_code == 400
        assert (await client.post("/api/blobs/sha256:0")).status_code == 404

    run(directory, test)


def test_an_agent_thinks_calls_and_answers(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        body = {"model": "tiny", "messages": list(HELLO), "tools": TOOLS, "think": True}
        whole, lines = await answers(client, "/api/chat", body)
        message = whole["message"]
        assert message["thinking"].strip() == "I need the weather."
        assert message["content"].strip() == "I look."
        functions = [call["function"] for call in message["tool_calls"]]
        assert [(each["name"], each["arguments"]) for each in functions] == [
            ("weather", {"city": "Oslo"}),
            ("clock", {}),
        ]
        assert whole["done_reason"] == "stop"
        streamed = [
            call["function"] for line in lines for call in line["message"].get("tool_calls", ())
        ]
        assert streamed == functions
        for part in ("thinking", "content"):
            text = "".join(line["message"].get(part, "") for line in lines)
            assert text == message[part]
        results = [
            {"role": "tool", "tool_name": "clock", "content": "noon"},
            {"role": "tool", "tool_name": "weather", "content": "3 degrees"},
        ]
        body["messages"] = [*HELLO, message, *results]
        answer, _ = await answers(client, "/api/chat", body)
        assert answer["message"]["content"].strip() == "It is 3 degrees in Oslo."
        shown = (await client.post("/api/show", json={"model": "tiny"})).json()
        assert {"completion", "tools", "thinking"} <= set(shown["capabilities"])

    directory = make_files(tmp_path)
    run(directory, test, engine=scripted_engine(directory, AGENT))


def test_an_error_in_a_stream_is_its_last_line(directory: Path) -> None:
    async def test(client: Client) -> None:
        runner: Any = client.server.llm.runner  # type: ignore[attr-defined]
        is_written = once_written(client)

        def fail_later() -> None:
            if is_written():
                runner.poisoned.add("bad-")

        runner.before_step = fail_later
        body = {**PROMPT, "options": {"num_predict": 200}}
        sent = await client.post("/api/generate", json=body, headers={"x-request-id": "bad-1"})
        assert sent.status_code == 200
        *lines, last = [json.loads(line) for line in sent.text.splitlines()]
        assert all(not line["done"] for line in lines)
        assert last == {"error": "the engine failed on this request"}

    run(directory, test)


def test_the_format_is_the_shape_of_the_answer(tmp_path: Path) -> None:
    """The engine here does not apply grammars, so that the test looks at what it was given."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    directory = make_files(tmp_path, "{{ messages[0].content }}")
    engine = scripted_engine(directory, [("", '{"a": 1}')])

    async def test(client: Client) -> None:
        grammars: list[str] = client.server.llm.runner.grammars  # type: ignore[attr-defined]
        for wanted in (schema, "json", ""):
            await answers(client, "/api/chat", {**CHAT, "format": wanted})
        assert [bool(each) for each in grammars] == [True, True, True, True, False, False]
        assert grammars[0] == grammars[1] != grammars[2]

    run(directory, test, engine=engine)


def test_vectors_are_those_of_openais_route(directory: Path) -> None:
    texts = ["The quick", "brown fox"]

    async def test(client: Client) -> None:
        theirs = (await client.post("/v1/embeddings", json={"input": texts})).json()
        expected = [each["embedding"] for each in theirs["data"]]
        answer = (await client.post("/api/embed", json={"model": "tiny", "input": texts})).json()
        for found, vector in zip(answer["embeddings"], expected, strict=True):
            assert found == pytest.approx(vector)
        assert answer["prompt_eval_count"] == theirs["usage"]["prompt_tokens"]
        one = {"model": "tiny", "input": texts[0], "keep_alive": "5m", "options": {"num_ctx": 5}}
        alone = (await client.post("/api/embed", json=one)).json()
        assert alone["embeddings"] == answer["embeddings"][:1]
        old = await client.post("/api/embeddings", json={"model": "tiny", "prompt": texts[0]})
        assert old.json() == {"embedding": answer["embeddings"][0]}
        long = {"model": "tiny", "input": ["x", "x " * 900]}
        assert (await client.post("/api/embed", json=long)).status_code == 200
        for change, words in (
            ({"truncate": False}, "input[1]"),
            ({"input": []}, "input"),
            ({"input": "x", "dimensions": 10**6}, "dimensions"),
            ({"model": "llama3"}, "llama3"),
        ):
            refused = await client.post("/api/embed", json={**long, **change})
            assert refused.status_code in (400, 404)
            assert words in refused.json()["error"]

    run(directory, test)


def test_json_may_be_sent_as_a_form(directory: Path) -> None:
    """`curl -d` names its body so; other sites are refused by their origin all the same."""

    async def test(client: Client) -> None:
        form = {"content-type": "application/x-www-form-urlencoded"}
        body = json.dumps({**PROMPT, "stream": False}).encode()
        assert (await client.post("/api/generate", content=body, headers=form)).status_code == 200
        foreign = {**form, "origin": "https://elsewhere.example"}
        response = await client.post("/api/generate", content=body, headers=foreign)
        assert response.status_code == 403

    run(directory, test)
