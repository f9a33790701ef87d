"""The log holds nothing that a client wrote, unless the operator asks for it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.server.engine import ChainRunner, FakeEngine
from tests.server.make import serving

SECRET = "xylophone"
KEY = "a-very-long-secret"


async def send_secret_everywhere(client: Any) -> None:
    """Send the secret in every field that takes text, in requests that succeed and fail."""
    key = {"headers": {"authorization": f"Bearer {KEY}"}}
    messages = [{"role": "user", "content": SECRET}]
    for path, body in (
        ("/v1/completions", {"prompt": SECRET, "max_tokens": 2}),
        ("/v1/completions", {"prompt": [SECRET, SECRET], "max_tokens": 2, "stream": True}),
        ("/v1/completions", {"prompt": SECRET * 200}),
        ("/v1/completions", {"prompt": SECRET, "temperature": SECRET}),
        ("/v1/completions", {"prompt": SECRET, "stop": [SECRET], "max_tokens": 2}),
        ("/v1/completions", {"prompt": SECRET, "cache_salt": SECRET, "max_tokens": 2}),
        ("/v1/completions", {"prompt": SECRET, SECRET: SECRET, "max_tokens": 2}),
        ("/v1/completions", {"model": SECRET, "prompt": SECRET}),
        ("/v1/chat/completions", {"messages": messages, "max_tokens": 2, "stream": True}),
        ("/v1/chat/completions", {"messages": [{"role": SECRET, "content": {"x": SECRET}}]}),
        ("/v1/chat/completions", {"messages": messages, "chat_template": SECRET}),
        ("/tokenize", {"prompt": SECRET}),
        ("/tokenize", {"messages": messages, "continue_final_message": True}),
    ):
        await client.post(path, json=body, **key)
    await client.post("/v1/completions", content=b'{"prompt": "' + SECRET.encode(), **key)
    await client.get("/v1/models", headers={"authorization": f"Bearer {SECRET}"})
    bad = {"x-request-id": "bad"}
    await client.post(
        "/v1/completions",
        json={"prompt": SECRET, "max_tokens": 2},
        headers={**key["headers"], **bad},
    )


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
def test_prompts_and_keys_are_not_logged(directory: Path, caplog: Any, level: int) -> None:
    async def main() -> None:
        engine = FakeEngine(directory, runner=ChainRunner())
        engine.runner.poisoned.add("bad")  # its failure is logged, its text is not
        async with serving(directory, engine, api_keys=(KEY,)) as client:
            await send_secret_everywhere(client)

    with caplog.at_level(level, "octavo"):
        asyncio.run(main())
    text = caplog.text
    assert "/v1/chat/completions" in text, "something is logged at all"
    assert "failed in the engine" in text
    assert SECRET not in text
    assert KEY not in text


def test_prompts_are_logged_when_asked_for(directory: Path, caplog: Any) -> None:
    async def main() -> None:
        async with serving(directory, log_prompts=True) as client:
            await client.complete(prompt=f"{SECRET}\x1b[2J\nERROR forged\u202e", max_tokens=1)
            await client.complete(prompt=["first one", "second one"], max_tokens=1)
            await client.complete(prompt=list(range(2, 6)), max_tokens=1)
            await client.chat(SECRET, max_tokens=1)
            await client.complete(prompt=SECRET, temperature=9)

    with caplog.at_level(logging.INFO, "octavo"):
        asyncio.run(main())
    logged = [r for r in caplog.records if " prompt " in r.getMessage()]
    lines = [record.getMessage() for record in logged]
    assert len(lines) == 5, "one line for each prompt that is run"
    assert {record.levelname for record in logged} == {"INFO"}
    assert f"{SECRET}\\x1b[2J\\nERROR forged\\u202e" in lines[0]
    assert all(line.isascii() and line.isprintable() for line in lines)
    assert SECRET in lines[4]
    assert "<s>assistant: " in lines[4], "as the template has written it"


def test_a_long_prompt_is_logged_in_part(directory: Path, caplog: Any) -> None:
    async def main() -> None:
        engine = FakeEngine(directory, max_model_len=60_000, num_blocks=16_000)
        async with serving(directory, engine, log_prompts=True) as client:
            assert "choices" in await client.complete(prompt="x" * 20_000, max_tokens=1)

    with caplog.at_level(logging.INFO, "octavo"):
        asyncio.run(main())
    (line,) = [r.getMessage() for r in caplog.records if " prompt " in r.getMessage()]
    assert line.endswith("xxx' and 3616 characters more")
    assert len(line) < 17_000
