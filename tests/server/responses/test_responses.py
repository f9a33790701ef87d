"""/v1/responses: items, events, errors, what is kept and what continues it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from octavo.dialects.responses.conversation import conversation_job
from octavo.dialects.responses.schema import ResponsesRequest
from octavo.serving.answers.tool_use import NO_TOOLS
from tests.server.engine import FakeEngine
from tests.server.make import LIMIT, Client, serving, translation_context
from tests.server.openai.scripted import AGENT, OSLO, make_files, scripted_engine, writing
from tests.server.responses.make import PATH, assembled, events_of, said, text_of

HELLO: dict[str, Any] = {"input": "Hello", "max_output_tokens": 7, "temperature": 0}
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "strict": False,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CLOCK: dict[str, Any] = {"type": "function", "name": "clock"}


def run(directory: Path, test: Callable[[Client], Awaitable[None]], **options: Any) -> None:
    """Run a test with a client of a server."""

    async def main() -> None:
        async with serving(directory, FakeEngine(directory), **options) as client:
            await test(client)

    asyncio.run(main())


async def both(client: Client, **body: Any) -> dict[str, Any]:
    """Return the response to a request, whole and as events, which must say the same."""
    whole = await client.post(PATH, json=body)
    assert whole.status_code == 200, whole.text
    stream = await client.post(PATH, json={**body, "stream": True})
    assert stream.headers["content-type"].startswith("text/event-stream")
    response = assembled(events_of(stream.text))
    assert said(response) == said(whole.json())
    assert response["usage"]["output_tokens"] == whole.json()["usage"]["output_tokens"]
    made: dict[str, Any] = whole.json()
    return made


def test_a_stream_adds_up_to_the_whole_response(directory: Path) -> None:
    async def test(client: Client) -> None:
        response = await both(client, **HELLO, instructions="Be brief.", metadata={"a": "b"})
        assert response["id"].startswith("resp_")
        assert (response["object"], response["model"]) == ("response", "tiny")
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert (response["instructions"], response["metadata"]) == ("Be brief.", {"a": "b"})
        (message,) = response["output"]
        assert (message["type"], message["role"]) == ("message", "assistant")
        assert response["usage"]["output_tokens"] == 7

    run(directory, test)


def test_log_probabilities_come_with_the_text(directory: Path) -> None:
    async def test(client: Client) -> None:
        include = ["message.output_text.logprobs"]
        response = await both(client, **HELLO, include=include, top_logprobs=2)
        (part,) = response["output"][0]["content"]
        assert len(part["logprobs"]) == 7
        assert all(len(each["top_logprobs"]) == 2 for each in part["logprobs"])

    run(directory, test)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"input": 5}, "input"),
    ({"input": []}, "input"),
    ({"input": [{"content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        "input[0].content[0].type",
    ),
    ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"include": ["everything"]}, "include[0]"),
    ({"background": True, "store": False}, "background"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
    (
        {"text": {"format": {"type": "json_schema", "schema": {"type": "text"}}}},
        "text.format.schema.type",
    ),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"stop": [""]}, "stop[0]"),
    ({"logit_bias": {"99999999": 1}}, "logit_bias"),
]


def test_a_wrong_request_is_refused_with_the_field(directory: Path) -> None:
    async def test(client: Client) -> None:
        for change, field in WRONG:
            answer = await client.post(PATH, json={**HELLO, **change})
            assert answer.status_code == 400, (change, answer.text)
            error = answer.json()["error"]
            assert (error["type"], error["param"]) == ("invalid_request_error", field), error
        assert len(client.server.responses) == 0

    run(directory, test)


def conversation(**fields: Any) -> Any:
    """Return the conversation that a worker gets for a request."""
    request = msgspec.convert(fields, ResponsesRequest)
    job = conversation_job(request, translation_context(), NO_TOOLS, b"")
    assert job.conversation is not None
    return job.conversation


def test_the_items_of_an_answer_are_one_message() -> None:
    made = conversation(
        instructions="Help.",
        input=[
            {"role": "developer", "content": "In verse."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {
                "type": "reasoning",
                "id": "rs",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "A tool knows."}],
            },
            {
                "type": "message",
                "role": "assistant",
                "id": "m",
                "status": "completed",
                "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
            },
            {"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{}"},
            {"type": "function_call", "call_id": "b", "name": "clock", "arguments": ""},
            {"type": "function_call_output", "call_id": "a", "output": "snow"},
            {
                "type": "function_call_output",
                "call_id": "b",
                "output": [{"type": "input_text", "text": "noon"}],
            },
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Now."}]},
            {"role": "assistant", "content": "Cold."},
            {"role": "assistant", "content": "Very."},
        ],
        reasoning={"effort": "none"},
    )
    system, developer, user, answer, first, second, third, fourth = made.messages
    assert system == {"role": "system", "content": "Help."}
    assert developer == {"role": "developer", "content": "In verse."}
    assert user == {"role": "user", "content": "Hi"}
    assert answer["reasoning_content"] == "A tool knows."
    assert answer["content"] == "I look."
    called = [(each["id"], each["function"]["name"]) for each in answer["tool_calls"]]
    assert called == [("a", "weather"), ("b", "clock")]
    assert first == {"role": "tool", "tool_call_id": "a", "content": "snow"}
    assert second == {"role": "tool", "tool_call_id": "b", "content": "noon"}
    assert third == {"role": "assistant", "content": "Cold.", "reasoning_content": "Now."}
    assert fourth == {"role": "assistant", "content": "Very."}
    assert made.variables == {
        "reasoning_effort": "none",
        "enable_thinking": False,
        "thinking": False,
    }


def test_an_agent_calls_tools_and_continues_its_own_response(tmp_path: Path) -> None:
    async def main() -> None:
        directory = make_files(tmp_path)
        async with serving(directory, scripted_engine(directory, AGENT)) as client:
            body = {"input": "How warm is it in Oslo?", "tools": [WEATHER, CLOCK]}
            response = await both(client, **body)
            kinds = [item["type"] for item in response["output"]]
            assert kinds == ["reasoning", "message", "function_call", "function_call"]
            thought, message, weather, clock = response["output"]
            assert thought["content"][0]["text"].strip() == "I need the weather."
            assert message["content"][0]["text"].strip() == "I look."
            assert json.loads(weather["arguments"]) == {"city": "Oslo"}
            assert (clock["name"], clock["arguments"]) == ("clock", "{}")
            assert response["status"] == "completed"
            assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
            results = [
                {"type": "function_call_output", "call_id": each["call_id"], "output": "3 degrees"}
                for each in (weather, clock)
            ]
            known = {"previous_response_id": response["id"], "tools": [WEATHER, CLOCK]}
            second = await both(client, input=results, **known)
            assert text_of(second) == "It is 3 degrees in Oslo."
            # The same from the items themselves.
            items = [{"role": "user", "content": body["input"]}, *response["output"], *results]
            third = await both(client, input=items, tools=[WEATHER, CLOCK], store=False)
            assert text_of(third) == text_of(second)
            used = [each["usage"]["input_tokens"] for each in (second, third)]
            assert used[0] == used[1]
            listed = await client.get(f"{PATH}/{second['id']}/input_items?order=asc&limit=100")
            kinds = [item["type"] for item in listed.json()["data"]]
            assert kinds == [
                *("message", "reasoning", "message", "function_call", "function_call"),
                *("function_call_output", "function_call_output"),
            ]
            quiet = await both(client, **body, include_reasoning=False)
            assert [item["type"] for item in quiet["output"]] == kinds[2:5]

    asyncio.run(main())


def test_a_tool_that_must_be_called_is_called(tmp_path: Path) -> None:
    async def main() -> None:
        async with writing(tmp_path, OSLO) as client:
            choice = {"type": "function", "name": "weather"}
            body = {"input": "Oslo?", "tools": [WEATHER, CLOCK]}
            response = await both(client, **body, tool_choice=choice)
            (call,) = [each for each in response["output"] if each["type"] == "function_call"]
            assert call["name"] == "weather"
            assert response["tool_choice"] == {**choice, "mode": "auto", "tools": None}
            some = {"type": "allowed_tools", "mode": "required", "tools": [{"name": "clocks"}]}
            wrong = await client.post(PATH, json={**body, "tool_choice": some})
            assert wrong.json()["error"]["param"] == "tool_choice.tools[0].name"

    asyncio.run(main())


def test_a_response_is_kept_for_the_key_that_made_it(directory: Path) -> None:
    async def test(client: Client) -> None:
        client.headers["authorization"] = "Bearer first-key"
        other = {"authorization": "Bearer second-key"}
        made = (await client.post(PATH, json=HELLO)).json()
        where = f"{PATH}/{made['id']}"
        assert (await client.get(where)).json() == made
        listed = (await client.get(f"{where}/input_items")).json()
        (item,) = listed["data"]
        assert item["content"] == [{"type": "input_text", "text": "Hello"}]
        assert (listed["first_id"], listed["has_more"]) == (item["id"], False)
        for path in (where, f"{where}/input_items"):
            assert (await client.get(path, headers=other)).status_code == 404
        assert (await client.delete(where, headers=other)).status_code == 404
        follow = {**HELLO, "previous_response_id": made["id"]}
        refused = await client.post(PATH, json=follow, headers=other)
        assert refused.json()["error"]["code"] == "previous_response_not_found"
        assert (await client.post(PATH, json=follow)).status_code == 200
        deleted = (await client.delete(where)).json()
        assert deleted == {"id": made["id"], "object": "response", "deleted": True}
        assert (await client.get(where)).status_code == 404
        assert (await client.post(PATH, json=follow)).status_code == 400
        unkept = (await client.post(PATH, json={**HELLO, "store": False})).json()
        assert (await client.get(f"{PATH}/{unkept['id']}")).status_code == 404

    run(directory, test, api_keys=("first-key", "second-key"))


def test_items_are_listed_in_pages(directory: Path) -> None:
    async def test(client: Client) -> None:
        items = [{"role": "user", "content": str(number)} for number in range(5)]
        made = (await client.post(PATH, json={**HELLO, "input": items})).json()
        where = f"{PATH}/{made['id']}/input_items"

        async def page(**query: Any) -> Any:
            return (await client.get(where, params=query)).json()

        def texts(listed: Any) -> str:
            return "".join(each["content"][0]["text"] for each in listed["data"])

        assert texts(await page()) == "43210"
        first = await page(order="asc", limit=2)
        assert (texts(first), first["has_more"]) == ("01", True)
        rest = await page(order="asc", after=first["last_id"])
        assert (texts(rest), rest["has_more"]) == ("234", False)
        for query in ({"limit": 0}, {"limit": "x"}, {"order": "up"}, {"after": "no"}, {"x": 1}):
            assert (await client.get(where, params=query)).status_code == 400

    run(directory, test)


def test_the_oldest_turns_give_way_where_that_is_asked_for(directory: Path) -> None:
    async def test(client: Client) -> None:
        longest = client.server.llm.facts.longest_tokens
        items = []
        for number in range(40):
            items += [
                {"role": "user", "content": f"{number} " + "word " * 20},
                {"role": "assistant", "content": "Yes."},
            ]
        items.append({"role": "user", "content": "last"})
        body = {**HELLO, "instructions": "Be brief.", "input": items}
        refused = (await client.post(PATH, json=body)).json()["error"]
        assert (refused["code"], refused["param"]) == ("context_length_exceeded", "input")
        answer = await client.post(PATH, json={**body, "truncation": "auto"})
        used = answer.json()["usage"]
        assert used["output_tokens"] == 7
        one_turn = len("word " * 20)  # a token has at least a byte
        assert longest - 7 - one_turn - 40 < used["input_tokens"] <= longest - 7
        alone = {**body, "input": [{"role": "user", "content": "word " * longest}]}
        refused = (await client.post(PATH, json={**alone, "truncation": "auto"})).json()["error"]
        assert refused["code"] == "context_length_exceeded"

    run(directory, test)


def test_a_large_body_continues_a_response_too(tmp_path: Path) -> None:
    """A worker reads it, and finds the items of the response before it."""

    async def main() -> None:
        directory = make_files(tmp_path)
        rules = [("remember", "I do."), ("", "I cannot.")]
        async with serving(directory, scripted_engine(directory, rules)) as client:
            first = (await client.post(PATH, json={"input": "Please remember."})).json()
            large = {"metadata": {}, "input": "And now?" + " " * 5, "text": {}}
            body = json.dumps({**large, "previous_response_id": first["id"]})
            body += " " * (300 << 10)
            headers = {"content-type": "application/json"}
            second = await client.post(PATH, content=body, headers=headers)
            assert text_of(second.json()) == "I do."
            where = f"{PATH}/{second.json()['id']}/input_items?order=asc"
            listed = (await client.get(where)).json()["data"]
            assert [each["content"][0]["text"] for each in listed] == [
                *("Please remember.", "I do.", "And now?" + " " * 5)
            ]

    asyncio.run(main())


def test_an_error_in_a_stream_fails_the_response(directory: Path) -> None:
    async def main() -> None:
        engine = FakeEngine(directory)
        async with serving(directory, engine, status_seconds=0.01) as client:
            await engine.pause()
            body = {**HELLO, "stream": True}
            headers = {"x-request-id": "bad-1"}
            post = asyncio.ensure_future(client.post(PATH, json=body, headers=headers))
            async with asyncio.timeout(LIMIT):
                while not (kept := client.server.responses.find("", "resp_bad-1")):
                    await asyncio.sleep(0.002)
                while (await client.get(f"{PATH}/{kept.id}")).json()["status"] != "in_progress":
                    await asyncio.sleep(0.002)
            engine.runner.poisoned.add("bad-")
            await engine.resume()
            answer = await post
            if answer.status_code == 200:  # the stream had begun
                response = assembled(events_of(answer.text))
                assert response["status"] == "failed"
                assert response["error"]["code"] == "server_error"
            made = (await client.get(f"{PATH}/resp_bad-1")).json()
            assert made["status"] in ("failed", "cancelled")

    asyncio.run(main())
