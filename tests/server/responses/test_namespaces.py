"""Functions in namespaces: one name for the model, two for the client; and the raw messages."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from octavo.dialects.common.schema.tools import MAX_TOOLS, MAX_TOOLS_BYTES
from octavo.dialects.responses.namespaces import flattened
from octavo.dialects.responses.schema import InputFunction, NamespacedFunction
from octavo.transport.errors import ApiError
from tests.server.durable.make import in_loop
from tests.server.engine import FakeEngine
from tests.server.make import Client, serving
from tests.server.openai.scripted import called, make_files, scripted_engine, writing
from tests.server.responses.make import PATH, events_of

TOOL: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CLOCK: dict[str, Any] = {"type": "function", "name": "clock"}
GEO: dict[str, Any] = {
    "type": "namespace",
    "name": "geo",
    "description": "About places.",
    "tools": [TOOL],
}
CALL = called("geo__weather", {"city": "Oslo"})


async def refusal(client: Client, **fields: Any) -> Any:
    """Return the field of a request that is refused."""
    refused = await client.post(PATH, json={"input": "x"} | fields)
    assert refused.status_code == 400
    return refused.json()["error"]["param"]


@in_loop
async def test_a_call_has_its_name_and_its_namespace_apart(tmp_path: Path) -> None:
    async with writing(tmp_path, CALL) as client:
        for choice in ("auto", "required", {"type": "function", "name": "weather"}):
            body = {"input": "Oslo?", "tools": [CLOCK, GEO], "tool_choice": choice}
            whole = (await client.post(PATH, json=body)).json()
            (call,) = [each for each in whole["output"] if each["type"] == "function_call"]
            assert (call["name"], call["namespace"]) == ("weather", "geo")
            assert json.loads(call["arguments"]) == {"city": "Oslo"}
            events = events_of((await client.post(PATH, json={**body, "stream": True})).text)
            items = [each["item"] for each in events if "item" in each]
            calls = [each for each in items if each["type"] == "function_call"]
            assert len(calls) == 2
            assert all((each["name"], each["namespace"]) == ("weather", "geo") for each in calls)
        shown = whole["tools"][1]
        assert {name: shown[name] for name in GEO if name != "tools"} == {
            name: GEO[name] for name in GEO if name != "tools"
        }
        assert shown["tools"] == [{**TOOL, "strict": None}]


@in_loop
async def test_the_model_reads_one_name_in_the_tools_and_in_earlier_calls(tmp_path: Path) -> None:
    make_files(tmp_path)
    script = [("<tool_response>", "It is cold."), ("", CALL)]
    async with serving(tmp_path, scripted_engine(tmp_path, script)) as client:
        body: dict[str, Any] = {
            "input": "Oslo?",
            "tools": [GEO],
            "enable_response_messages": True,
        }
        first = (await client.post(PATH, json=body)).json()
        assert '"name": "geo__weather"' in first["input_messages"][0]["message"]
        assert "About places." in first["input_messages"][0]["message"]
        (call,) = first["output"]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "cold"}
        user = {"role": "user", "content": "Oslo?"}
        for more in (
            {"input": [result], "previous_response_id": first["id"]},
            {"input": [user, call, result]},
        ):
            second = (await client.post(PATH, json={**body, **more})).json()
            (read,) = second["input_messages"]
            assert "geo__weather" in read["message"].split("Oslo?")[1]
        follow = {"input": [user], "tools": [GEO], "previous_response_id": second["id"]}
        third = (await client.post(PATH, json={**follow, "enable_response_messages": True})).json()
        assert "geo__weather" in third["input_messages"][0]["message"].split("Oslo?")[1]


@in_loop
async def test_raw_messages_have_all_text_and_all_tokens(tmp_path: Path) -> None:
    make_files(tmp_path)
    text = "<think>\nHm.\n</think>\n\nIt is cold."
    async with serving(tmp_path, scripted_engine(tmp_path, [("", text)])) as client:
        body: dict[str, Any] = {"input": "Oslo?", "enable_response_messages": True}
        whole = (await client.post(PATH, json=body)).json()
        events = events_of((await client.post(PATH, json={**body, "stream": True})).text)
        assert "input_messages" not in events[0]["response"]
        for response in (whole, events[-1]["response"]):
            (given,), (made,) = response["input_messages"], response["output_messages"]
            assert given["type"] == made["type"] == "raw_message_tokens"
            assert "Oslo?" in given["message"]
            usage = response["usage"]
            assert len(given["tokens"]) == usage["input_tokens"]
            assert len(made["tokens"]) == usage["output_tokens"]
            assert "Hm." in made["message"]
            assert "It is cold." in made["message"]
        kept = (await client.get(f"{PATH}/{whole['id']}")).json()
        assert kept["output_messages"] == whole["output_messages"]
        quiet = (await client.post(PATH, json={"input": "Oslo?"})).json()
        assert "output_messages" not in quiet
        assert await refusal(client, **body, include_reasoning=False) == "enable_response_messages"


TWICE = {**GEO, "name": "other"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{**GEO, "tools": None}]}, "tools[0].tools"),
        ({"tools": [{**GEO, "name": None}]}, "tools[0].name"),
        ({"tools": [CLOCK, {**GEO, "tools": [{**TOOL, "name": None}]}]}, "tools[1].tools[0].name"),
        ({"tools": [{**GEO, "tools": [{"type": "custom"}]}]}, "tools[0].tools[0].type"),
        ({"tools": [{**GEO, "tools": [TOOL, TOOL]}]}, "tools[0].tools[1].name"),
        ({"tools": [{**GEO, "name": "g" * 122}]}, "tools[0].tools[0].name"),
        (
            {"tools": [{**GEO, "tools": [{**TOOL, "parameters": {"type": "array"}}]}]},
            "tools[0].tools[0].parameters.type",
        ),
        (
            {"tools": [GEO, TWICE], "tool_choice": {"type": "function", "name": "weather"}},
            "tool_choice.name",
        ),
        (
            {"tools": [GEO], "tool_choice": {"type": "function", "name": "clock"}},
            "tool_choice.name",
        ),
        (
            {
                "tools": [
                    {**GEO, "tools": [{**CLOCK, "name": f"f{n}"} for n in range(MAX_TOOLS)]},
                    CLOCK,
                ]
            },
            "tools",
        ),
    ],
)
@in_loop
async def test_a_refusal_names_the_function(tmp_path: Path, fields: Any, param: str) -> None:
    make_files(tmp_path)
    async with serving(tmp_path, FakeEngine(tmp_path)) as client:
        assert await refusal(client, **fields) == param


def test_many_functions_do_not_multiply_a_long_description() -> None:
    functions = [NamespacedFunction(type="function", name=f"f{n}") for n in range(MAX_TOOLS)]
    long = "d" * (MAX_TOOLS_BYTES // 2)
    tool = InputFunction(type="namespace", name="n", description=long, tools=functions)
    tracemalloc.start()
    try:
        with pytest.raises(ApiError) as refused:
            flattened([tool])
        assert refused.value.param == "tools"
        assert tracemalloc.get_traced_memory()[1] < 8 * MAX_TOOLS_BYTES
    finally:
        tracemalloc.stop()
