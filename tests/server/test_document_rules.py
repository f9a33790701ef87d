"""The OpenAPI document states the rules for prompts and messages that the server applies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from octavo.server.openapi import document
from octavo.server.routes import DEFAULT_DIALECT, ROUTES
from tests.server.make import serving

SCHEMAS: dict[str, Any] = document(ROUTES, DEFAULT_DIALECT)["components"]["schemas"]
TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "array": list,
    "object": dict,
    "boolean": bool,
    "null": type(None),
}


def is_valid(value: Any, schema: dict[str, Any]) -> bool:
    """Evaluate the keywords of JSON Schema that matter here; bounds of numbers do not."""
    if "$ref" in schema:
        return is_valid(value, SCHEMAS[schema["$ref"].rpartition("/")[2]])
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    checks = [
        not kinds or any(isinstance(value, TYPES[kind]) for kind in kinds),
        "enum" not in schema or value in schema["enum"],
        "const" not in schema or value == schema["const"],
        "not" not in schema or not is_valid(value, schema["not"]),
        all(is_valid(value, each) for each in schema.get("allOf", ())),
        "anyOf" not in schema or any(is_valid(value, each) for each in schema["anyOf"]),
        "oneOf" not in schema or sum(is_valid(value, each) for each in schema["oneOf"]) == 1,
    ]
    if isinstance(value, dict):
        checks.append(all(name in value for name in schema.get("required", ())))
        known = schema.get("properties", {})
        checks += [is_valid(value[name], known[name]) for name in value if name in known]
    if isinstance(value, list):
        checks.append(schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 10**9))
        checks += [is_valid(item, schema.get("items", {})) for item in value]
    return all(checks)


def say(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", **fields}]}


BODIES: list[tuple[str, str, dict[str, Any], bool]] = [
    ("/v1/completions", "CompletionRequest", {"prompt": prompt}, right)
    for prompt, right in (
        ("x", True),
        (["x", "y"], True),
        ([5, 6], True),
        ([[5], [6, 7]], True),
        (["x", [5]], True),
        ([], False),
        ([[]], False),
        ([5, "x"], False),
        ([[5], 6], False),
        (5, False),
        (None, False),
    )
]
for path, name in (("/v1/chat/completions", "ChatRequest"), ("/tokenize", "TokenizeRequest")):
    BODIES += [
        (path, name, say(content="x"), True),
        (path, name, say(content=[{"type": "text", "text": "x"}]), True),
        (path, name, say(refusal="x"), True),
        (path, name, say(content="x", tool_calls=[], audio=None, prefix=False), True),
        (path, name, {"messages": [{"role": "user", "content": "x"}, {"role": "assistant"}]}, True),
        (path, name, say(), False),
        (path, name, say(content=None), False),
        (path, name, say(content=[]), False),
        (path, name, say(content="x", role="tool"), True),
        (path, name, say(role="tool"), False),
        (path, name, say(content="x", tool_calls=[{}]), False),
        (path, name, say(content="x", prefix=True), False),
        (path, name, {"messages": []}, False),
        (path, name, {"messages": None}, False),
        (path, name, {}, False),
    ]
BODIES += [
    ("/tokenize", "TokenizeRequest", {"prompt": "x"}, True),
    ("/tokenize", "TokenizeRequest", {"prompt": "x", "messages": None}, True),
    ("/tokenize", "TokenizeRequest", {"prompt": None}, False),
    ("/tokenize", "TokenizeRequest", {"prompt": "x", **say(content="x")}, False),
    ("/score", "ScoreRequest", {"text_1": "x", "text_2": ["x"]}, True),
    ("/score", "ScoreRequest", {"queries": "x", "items": ["x"], "documents": None}, True),
    ("/score", "ScoreRequest", {"queries": "x", "items": ["x"], "documents": "x"}, False),
    ("/score", "ScoreRequest", {"text_1": "x", "data_2": "x"}, False),
    ("/score", "ScoreRequest", {"text_1": "x", "text_2": None}, False),
]


@pytest.mark.parametrize("path", sorted({path for path, *_ in BODIES}))
def test_the_document_and_the_server_agree(directory: Path, path: str) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            for where, name, body, is_right in BODIES:
                if where != path:
                    continue
                assert is_valid(body, SCHEMAS[name]) == is_right, body
                more = {} if path in ("/tokenize", "/score") else {"max_tokens": 1}
                response = await client.post(path, json={**body, **more})
                assert response.status_code == (200 if is_right else 400), (body, response.text)

    asyncio.run(main())


def test_an_answer_of_several_kinds_has_each_in_the_document() -> None:
    """A kept stream may be that of a whole answer, and a kept response may be sent as events."""
    paths = document(ROUTES, DEFAULT_DIALECT)["paths"]
    for path in ("/v1/streams/{id}", "/v1/responses/{id}"):
        content = paths[path]["get"]["responses"]["200"]["content"]
        assert content.keys() == {"application/json", "text/event-stream"}
