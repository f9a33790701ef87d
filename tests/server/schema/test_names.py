"""Names that stand in a prompt's form: characters that would change it are refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.server.engine import make_directory
from tests.server.make import serving

CONTROLS = ("\x00", "a\nb", "user\r", "\x1b[2J", "\x7f")
USER = {"role": "user", "content": "Hello"}


def message(**fields: Any) -> list[Any]:
    return [USER, {**USER, **fields}]


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/chat/completions", "role"),
        ("/v1/chat/completions", "name"),
        ("/v1/chat/completions", "tool_call_id"),
        ("/tokenize", "role"),
        ("/api/chat", "role"),
    ],
)
def test_controls_in_a_name_are_refused(tmp_path: Path, path: str, field: str) -> None:
    async def main() -> None:
        async with serving(make_directory(tmp_path)) as client:
            for value in CONTROLS:
                body = {"model": "tiny", "messages": message(**{field: value})}
                answer = await client.post(path, json=body)
                assert answer.status_code == 400, value
                error = answer.json()["error"]
                text = error if isinstance(error, str) else error["param"]
                assert f"messages[1].{field}" in text

    asyncio.run(main())


def test_other_roles_and_names_are_taken(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(make_directory(tmp_path)) as client:
            body = {"messages": message(role="kritiker für alles", name="Ada Lovelace, 名")}
            answer = await client.post("/tokenize", json=body)
            assert answer.status_code == 200, answer.text

    asyncio.run(main())
