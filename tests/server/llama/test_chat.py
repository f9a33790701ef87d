"""Chats as llama.cpp's clients expect them: how a stream ends, and the date in a template."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from octavo.text.chat.sandbox import dates
from tests.server.durable.make import in_loop
from tests.server.engine import FakeEngine
from tests.server.llama.test_times import CHAT, events_of
from tests.server.make import serving


@in_loop
async def test_the_chunk_that_ends_an_answer_has_no_content(directory: Path) -> None:
    async with serving(directory, FakeEngine(directory)) as client:
        greedy = {**CHAT, "temperature": 0}
        whole = (await client.post("/chat/completions", json=greedy)).json()["choices"][0]
        for more in ({}, {"logprobs": True}, {"return_token_ids": True}):
            asked = {**greedy, **more}
            choices = [
                choice
                for each in await events_of(client, "/chat/completions", asked)
                for choice in each["choices"]
            ]
            ends = [each for each in choices if each["finish_reason"] is not None]
            assert ends == choices[-1:]
            assert ends[0]["delta"] == {}
            texts = [each["delta"].get("content") or "" for each in choices[:-1]]
            assert "".join(texts) == whole["message"]["content"]
            if "logprobs" in more:
                found = [each["logprobs"]["content"] for each in choices if each.get("logprobs")]
                assert sum(map(len, found)) == CHAT["max_tokens"]
            if "return_token_ids" in more:
                found = [each.get("token_ids") or [] for each in choices]
                assert sum(map(len, found)) == CHAT["max_tokens"]


def test_the_date_has_two_forms() -> None:
    assert dates(datetime(2024, 7, 6)) == {"date_string": "06 Jul 2024", "datetime": "Jul 06 2024"}


TEMPLATE = "{{ date_string or 'none' }}|{{ datetime or 'none' }}|{{ messages[0]['content'] }}"


@pytest.mark.parametrize("has_dates", [True, False])
@in_loop
async def test_templates_have_the_date_if_that_is_set(directory: Path, has_dates: bool) -> None:
    """A request and the server's own variables go before it."""
    options: dict[str, Any] = {"chat_template": TEMPLATE, "chat_template_dates": has_dates}
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    async with serving(directory, FakeEngine(directory), **options) as client:
        before = dates(datetime.now())
        prompt = (await client.post("/apply-template", json=body)).json()["prompt"]
        expected = [before, dates(datetime.now())] if has_dates else [{}]
        names = ("date_string", "datetime")
        assert prompt.split("|")[:2] in [[each.get(x, "none") for x in names] for each in expected]
        asked = {**body, "chat_template_kwargs": {"date_string": "today"}}
        prompt = (await client.post("/apply-template", json=asked)).json()["prompt"]
        assert prompt.split("|")[0] == "today"
    options["default_chat_template_kwargs"] = {"datetime": "now"}
    async with serving(directory, FakeEngine(directory), **options) as client:
        prompt = (await client.post("/apply-template", json=body)).json()["prompt"]
        assert prompt.split("|")[1] == "now"
