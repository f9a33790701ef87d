"""System messages between the turns stand there, or in the first if the template refuses them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.server.durable.make import in_loop
from tests.server.openai.scripted import QWEN, TEMPLATES, writing

MISTRAL = (TEMPLATES / "mistral.jinja").read_text("utf-8")
PATH = "/v1/messages"
USER, OTHER = {"role": "user", "content": "Hello"}, {"role": "user", "content": "And 2 + 2?"}
ANSWER = {"role": "assistant", "content": "Hi!"}
REMINDER = {"role": "system", "content": "Be brief."}


async def tokens_of(directory: Path, template: str, body: dict[str, Any]) -> list[int]:
    """Return the tokens of a conversation."""
    async with writing(directory, "Yes.", template=template) as client:
        answer = await client.post(f"{PATH}/render", json={"max_tokens": 4, **body})
        assert answer.status_code == 200, answer.text
        counted = await client.post(f"{PATH}/count_tokens", json=body)
        tokens: list[int] = answer.json()["token_ids"]
        assert counted.json()["input_tokens"] == len(tokens)
        assert (await client.post(PATH, json={"max_tokens": 4, **body})).status_code == 200
        return tokens


@pytest.mark.parametrize(
    ("system", "messages", "moved"),
    [
        ("Help.", [USER, ANSWER, REMINDER, OTHER], [USER, ANSWER, OTHER]),
        ("Help.", [USER, REMINDER, OTHER, ANSWER, USER], [USER, OTHER, ANSWER, USER]),
        ("Help.", [REMINDER, USER], [USER]),
    ],
)
@in_loop
async def test_a_template_that_refuses_them_gets_them_first(
    tmp_path: Path, system: str, messages: list[Any], moved: list[Any]
) -> None:
    made = await tokens_of(tmp_path, MISTRAL, {"system": system, "messages": messages})
    joined = f"{system}\n{REMINDER['content']}"
    assert made == await tokens_of(tmp_path, MISTRAL, {"system": joined, "messages": moved})


@in_loop
async def test_another_template_has_them_where_they_are(tmp_path: Path) -> None:
    messages = [USER, ANSWER, REMINDER, OTHER]
    made = await tokens_of(tmp_path, QWEN, {"messages": messages})
    assert made != await tokens_of(
        tmp_path, QWEN, {"system": "Be brief.", "messages": [USER, ANSWER, OTHER]}
    )


@pytest.mark.parametrize(
    ("path", "messages"),
    [
        (PATH, [ANSWER, USER]),
        (PATH, [ANSWER, REMINDER, USER]),
        ("/v1/chat/completions", [USER, ANSWER, REMINDER, OTHER]),  # as its author has written it
    ],
)
@in_loop
async def test_what_a_template_refuses_otherwise_is_refused(
    tmp_path: Path, path: str, messages: list[Any]
) -> None:
    async with writing(tmp_path, "Yes.", template=MISTRAL) as client:
        refused = await client.post(path, json={"max_tokens": 4, "messages": messages})
        assert refused.status_code == 400, refused.text
        assert client.server.admission.num_open == 0
