"""Budgets of reasoning tokens, from a request to the engine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from octavo.core.sampling_params import ThinkingMarks
from tests.server.engine import FakeEngine
from tests.server.make import serving
from tests.server.openai.scripted import (
    MARKS,
    MESSAGES,
    OSLO,
    PATH,
    QWEN,
    ROOM,
    TOOLS,
    Script,
    make_files,
)

OPEN, CLOSE = (MARKS.index(mark) + 258 for mark in ("<think>", "</think>"))
WITHOUT = {"role": "user", "content": "Hello"}
SHAPED = {"response_format": {"type": "json_object"}}


def test_a_budget_reaches_the_engine_with_the_marks_of_the_reasoning(tmp_path: Path) -> None:
    """Whatever else is asked for; where the prompt closes the reasoning there are no marks."""
    make_files(tmp_path, QWEN)
    runner = Script(tmp_path, [("", OSLO)])
    marks = ThinkingMarks(((OPEN,),), ((CLOSE,),))
    begun = ThinkingMarks(((OPEN,),), ((CLOSE,),), is_open=True)
    cases: tuple[tuple[str, dict[str, Any], int | None, ThinkingMarks | None], ...] = (
        (PATH, {"messages": MESSAGES, "thinking_token_budget": 7}, 7, marks),
        (PATH, {"messages": MESSAGES, "thinking_token_budget": 0, "tools": TOOLS}, 0, marks),
        (PATH, {"messages": MESSAGES, "thinking_token_budget": 2, **SHAPED}, 2, marks),
        (PATH, {"messages": MESSAGES, "thinking_token_budget": -1}, None, None),
        (
            PATH,
            {"messages": MESSAGES, "thinking_token_budget": 5, "reasoning_effort": "none"},
            5,
            None,
        ),
        ("/v1/completions", {"prompt": "Hm <think>", "thinking_token_budget": 3}, 3, begun),
        (
            "/v1/messages",
            {
                "messages": MESSAGES,
                "max_tokens": 9,
                "thinking": {"type": "enabled", "budget_tokens": 4},
            },
            4,
            marks,
        ),
    )

    async def main() -> None:
        async with serving(tmp_path, FakeEngine(tmp_path, runner=runner, **ROOM)) as client:
            for path, body, budget, expected in cases:
                response = await client.post(path, json=body)
                assert response.status_code == 200, response.text
                sampling = runner.samplings[-1]
                assert sampling.thinking_token_budget == budget
                assert sampling.thinking_marks == expected
            wrong = {"messages": MESSAGES, "thinking_token_budget": 3}
            rule = {"allowed_token_ids": [5, 6]}
            response = await client.post(PATH, json={**wrong, **rule})
            assert response.status_code == 400
            assert response.json()["error"]["param"] == "allowed_token_ids"

    asyncio.run(main())


def test_a_model_without_known_reasoning_keeps_no_budget(tmp_path: Path) -> None:
    """Clients of Anthropic's API send one to any model."""
    make_files(tmp_path, QWEN)
    runner = Script(tmp_path, [("", "Hello")])
    asked = {"type": "enabled", "budget_tokens": 4}

    async def main() -> None:
        engine = FakeEngine(tmp_path, runner=runner, **ROOM)
        async with serving(tmp_path, engine, reasoning_parser="none") as client:
            body: dict[str, Any] = {"messages": [WITHOUT], "thinking_token_budget": 3}
            response = await client.post(PATH, json=body)
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (400, "thinking_token_budget")
            body = {"messages": [WITHOUT], "max_tokens": 9, "thinking": asked}
            response = await client.post("/v1/messages", json=body)
            assert response.status_code == 200, response.text
            assert runner.samplings[-1].thinking_token_budget is None

    asyncio.run(main())
