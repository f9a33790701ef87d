"""Answers that end where they repeat themselves, in every form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.server.durable.make import in_loop
from tests.server.engine import ChainRunner, FakeEngine
from tests.server.make import events, serving

SCRIPT = (40, 41, 42, 41, 42, 41, 42, 41, 42)
ENDED = list(SCRIPT[:7])
REASONS = ("repetition", "repetition_detected")
ASKED = {"max_pattern_size": 4, "min_pattern_size": 2, "min_count": 3}
MESSAGES = [{"role": "user", "content": "Hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {
        "prompt": "The quick",
        "max_tokens": 30,
        "repetition_detection": ASKED,
        "return_token_ids": True,
    },
    "/v1/chat/completions": {
        "messages": MESSAGES,
        "repetition_detection": ASKED,
        "return_token_ids": True,
    },
    "/inference/v1/generate": {
        "token_ids": [5, 6],
        "sampling_params": {"max_tokens": 30, "repetition_detection": ASKED},
    },
}


@pytest.mark.parametrize("path", BODIES)
@in_loop
async def test_an_answer_ends_with_its_third_pattern(directory: Path, path: str) -> None:
    engine = FakeEngine(directory, runner=ChainRunner(script=SCRIPT))
    body = BODIES[path]
    async with serving(directory, engine) as client:
        whole = (await client.post(path, json=body)).json()["choices"][0]
        assert whole["token_ids"] == ENDED
        assert (whole["finish_reason"], whole["stop_reason"]) == REASONS
        stream = await client.post(path, json={**body, "stream": True})
        parts = [choice for each in events(stream.text) for choice in each["choices"]]
        assert [token for each in parts for token in each.get("token_ids") or ()] == ENDED
        assert (parts[-1]["finish_reason"], parts[-1]["stop_reason"]) == REASONS


@pytest.mark.parametrize(
    "asked",
    [
        {"max_pattern_size": 4},
        {"max_pattern_size": 4, "min_count": 2, "min_pattern_size": 5},
        {"max_pattern_size": 1024, "min_count": 1000},
    ],
)
@in_loop
async def test_a_wrong_description_is_refused_by_name(
    directory: Path, asked: dict[str, int]
) -> None:
    async with serving(directory) as client:
        for path in ("/v1/completions", "/v1/chat/completions"):
            body = {**BODIES[path], "repetition_detection": asked}
            response = await client.post(path, json=body)
            assert response.status_code == 400
            assert response.json()["error"]["param"] == "repetition_detection"
