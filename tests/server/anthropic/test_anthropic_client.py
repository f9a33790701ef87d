"""Anthropic's own client on a real socket: messages, streams, their helpers, counts, errors."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import anthropic
import pytest

from tests.server.make import LIMIT, listening
from tests.server.openai.scripted import called, make_files, scripted_engine

HELLO: Any = [{"role": "user", "content": "Hello"}]
KEY = "a-long-key"


def options_of(port: int, key: str = KEY) -> Any:
    """Return the arguments of a client."""
    return {
        "base_url": f"http://127.0.0.1:{port}",
        "api_key": key,
        "max_retries": 0,
        "timeout": LIMIT,
        "_strict_response_validation": True,
    }


def test_the_client_reads_what_the_server_writes(directory: Path) -> None:
    with (
        listening(directory, api_keys=(KEY,)) as life,
        anthropic.Anthropic(**options_of(life.port)) as client,
    ):
        greedy = {"temperature": 0}  # the newest client has no argument for it
        common: Any = {"model": "tiny", "messages": HELLO, "max_tokens": 9, "extra_body": greedy}
        whole = client.messages.create(**common, system="Be brief.")
        assert whole.stop_reason == "max_tokens"
        assert whole.usage.output_tokens == 9
        (block,) = whole.content
        assert block.type == "text"
        with client.messages.stream(**common, system="Be brief.") as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        assert text == block.text
        assert [each.type for each in final.content] == ["text"]
        assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 9)
        kinds = [each.type for each in client.messages.create(**common, stream=True)]
        assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
        count = client.messages.count_tokens(model="tiny", messages=HELLO)
        assert count.input_tokens > 0
        models = client.models.list()
        assert [each.id for each in models.data] == ["tiny"]
        assert client.models.retrieve("tiny").id == "tiny"


def test_the_asynchronous_client_streams(directory: Path) -> None:
    async def use(port: int) -> None:
        async with anthropic.AsyncAnthropic(**options_of(port)) as client:
            async with client.messages.stream(model="tiny", messages=HELLO, max_tokens=5) as stream:
                parts = [text async for text in stream.text_stream]
                final = await stream.get_final_message()
            (block,) = final.content
            assert block.type == "text"
            assert "".join(parts) == block.text

    with listening(directory, api_keys=(KEY,)) as life:
        asyncio.run(use(life.port))


def test_the_client_raises_the_errors_of_the_statuses(directory: Path) -> None:
    with listening(directory, api_keys=(KEY,)) as life:
        with (
            anthropic.Anthropic(**options_of(life.port, "wrong")) as wrong,
            pytest.raises(anthropic.AuthenticationError),
        ):
            wrong.models.list()
        with anthropic.Anthropic(**options_of(life.port)) as client:
            with pytest.raises(anthropic.NotFoundError):
                client.messages.create(model="another", messages=HELLO, max_tokens=1)
            with pytest.raises(anthropic.BadRequestError) as caught:
                client.messages.create(model="tiny", messages=[], max_tokens=1)
        assert isinstance(caught.value.body, dict)
        assert caught.value.body["error"]["type"] == "invalid_request_error"


def test_the_runner_of_tools_sends_all_messages(tmp_path: Path) -> None:
    """The runner asks the server to hold the conversation first, and holds it itself then."""

    @anthropic.beta_tool
    def clock() -> str:
        """Return the time of the day."""
        return "noon"

    make_files(tmp_path)
    rules = [("noon", "At noon."), ("Hello", called("clock", {})), ("", "Of what?")]
    engine = scripted_engine(tmp_path, rules)
    with (
        listening(tmp_path, engine) as life,
        anthropic.Anthropic(**options_of(life.port)) as client,
    ):
        runner = client.beta.messages.tool_runner(
            model="tiny", max_tokens=200, messages=HELLO, tools=[clock], max_iterations=2
        )
        first, second = runner
    assert (first.stop_reason, second.stop_reason) == ("tool_use", "end_turn")
    cached = second.usage.cache_read_input_tokens
    assert cached, "the second prompt begins as the first"
    assert cached > first.usage.input_tokens
