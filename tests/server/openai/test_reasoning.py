"""Reasoning in chats: separated from the text, counted, left out, and never closed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.api.reading import Reading
from octavo.serving.answers.formats import AnswerFormats
from tests.server.make import Client, events
from tests.server.openai.scripted import (
    MESSAGES,
    OSLO,
    PATH,
    QWEN,
    TOOLS,
    message_of,
    writing,
)

Test = Callable[[Client], Awaitable[None]]
THOUGHT = "<think>\nIt is cold.\n</think>\n\n"
# As of models that always think: the prompt opens the thinking.
OPENING = QWEN.rstrip() + '{% if add_generation_prompt %}{{ "<think>\\n" }}{% endif %}'


def run(tmp_path: Path, text: str, test: Test, **options: Any) -> None:
    """Run a test with a client of a server whose model writes this text."""

    async def main() -> None:
        async with writing(tmp_path, text, **options) as client:
            await test(client)

    asyncio.run(main())


async def usage_of(client: Client, **fields: Any) -> tuple[int, int]:
    """Return the numbers of reasoning tokens and of all tokens; they are those of the stream."""
    body = {"messages": MESSAGES, **fields}
    whole = (await client.post(PATH, json=body)).json()["usage"]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    stream = await client.post(PATH, json={**body, **options})
    streamed = events(stream.text)[-1]["usage"]
    for name in ("completion_tokens", "completion_tokens_details"):
        assert streamed[name] == whole[name]
    return whole["completion_tokens_details"]["reasoning_tokens"], whole["completion_tokens"]


@pytest.mark.parametrize("is_special", [True, False])
@pytest.mark.parametrize("is_opened", [True, False])
def test_reasoning_is_no_content(tmp_path: Path, is_special: bool, is_opened: bool) -> None:
    """The model opens it, or its prompt does."""
    text = THOUGHT.removeprefix("<think>\n") if is_opened else THOUGHT

    async def test(client: Client) -> None:
        message, finish = await message_of(client)
        assert (message["content"], finish) == ("Zero degrees.", "stop")
        assert message["reasoning"].strip() == "It is cold."
        assert message["reasoning_content"] == message["reasoning"]

    template = OPENING if is_opened else QWEN
    run(tmp_path, f"{text}Zero degrees.", test, is_special=is_special, template=template)


def test_the_tokens_of_reasoning_are_counted(tmp_path: Path) -> None:
    """One for each byte here, and one for each mark; the mark of the end is none of them."""

    async def test(client: Client) -> None:
        num_thought = len("<think>\nIt is cold.\n") - len("<think>") + 1
        num_all = num_thought + len("</think>\n\nZero") - len("</think>") + 2
        assert await usage_of(client) == (num_thought, num_all)
        assert await usage_of(client, include_reasoning=False) == (num_thought, num_all)
        assert await usage_of(client, n=2) == (2 * num_thought, 2 * num_all)
        assert await usage_of(client, max_tokens=5) == (5, 5)
        up_to_stop = num_thought + 1  # what a stop string cuts off is not read
        assert await usage_of(client, stop=["</think>"]) == (up_to_stop, up_to_stop)

    run(tmp_path, f"{THOUGHT}Zero", test)


def test_reasoning_may_be_left_out(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        message, _ = await message_of(client, include_reasoning=False)
        assert message["content"] == "Zero degrees."
        assert message["reasoning"] is None
        assert message["reasoning_content"] is None

    run(tmp_path, f"{THOUGHT}Zero degrees.", test)


def test_tokens_of_reasoning_that_stays_in_the_text_are_not_hidden(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        body = {"messages": MESSAGES, "include_reasoning": False, "logprobs": True}
        whole = (await client.post(PATH, json={**body, "return_token_ids": True})).json()
        (choice,) = whole["choices"]
        assert "It is cold." in choice["message"]["content"]
        assert choice["token_ids"]
        assert choice["logprobs"]["content"]
        assert "warnings" not in whole

    marks = {"reasoning_start_str": "<think>", "reasoning_end_str": "</think>"}
    given = {"reasoning_parser": "none", "reasoning_config": marks}
    run(tmp_path, f"{THOUGHT}Zero", test, **given)


def test_reasoning_that_never_ends_is_all_reasoning(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        message, finish = await message_of(client, max_tokens=12)
        assert (message["content"], finish) == (None, "length")
        assert message["reasoning"].strip() == "It is cold"
        message, finish = await message_of(client, max_tokens=12, include_reasoning=False)
        assert (message["content"], message["reasoning"]) == (None, None)

    run(tmp_path, THOUGHT, test)


def test_a_prompt_that_closes_the_thinking_leaves_none(tmp_path: Path) -> None:
    """The template writes an empty one if thinking is off, and the answer is text."""

    async def test(client: Client) -> None:
        for fields in (
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"reasoning_effort": "none"},
        ):
            message, _ = await message_of(client, **fields)
            assert (message["content"], message["reasoning"]) == ("Zero degrees.", None)
            assert (await usage_of(client, **fields))[0] == 0

    run(tmp_path, "Zero degrees.", test)
    options = {"default_chat_template_kwargs": {"enable_thinking": False}}

    async def by_default(client: Client) -> None:
        message, _ = await message_of(client)
        assert (message["content"], message["reasoning"]) == ("Zero degrees.", None)

    run(tmp_path / "default", "Zero degrees.", by_default, **options)


def test_a_call_comes_behind_the_reasoning(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        message, finish = await message_of(client, tools=TOOLS)
        assert message["reasoning"].strip() == "It is cold."
        assert [call["function"]["name"] for call in message["tool_calls"]] == ["weather"]
        assert (message["content"], finish) == (None, "tool_calls")

    run(tmp_path, THOUGHT + OSLO, test)


def test_without_a_format_reasoning_is_text(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        message, _ = await message_of(client)
        assert message["content"] == f"{THOUGHT}Zero."
        assert (await usage_of(client))[0] == 0

    run(tmp_path, f"{THOUGHT}Zero.", test, is_special=False, reasoning_parser="none")


def test_a_parser_that_fails_costs_no_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the answer is text, and other requests do not notice."""

    class Failing:
        is_reasoning = False

        def __init__(self) -> None:
            self.text = ""

        def feed(self, text: str, is_last: bool) -> list[Any]:
            self.text += text
            if "cold" in self.text:
                raise ValueError("a bug")
            return []

    async def test(client: Client) -> None:
        def failing(formats: AnswerFormats, use: Any) -> Any:
            return lambda end: Reading(Failing)

        monkeypatch.setattr(AnswerFormats, "reading_for", failing)
        message, finish = await message_of(client)
        assert message["content"].endswith(".\n\n\nZero degrees.")
        assert finish == "stop"

    run(tmp_path, f"{THOUGHT}Zero degrees.", test)
    assert "a bug" in caplog.text
