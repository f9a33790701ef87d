"""The server says what chat templates read as content, for the conversations of every dialect."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from octavo.options.server import ServerSettings
from tests.server.make import serving

TEMPLATE = (
    "{% for m in messages %}{% if m.content is string %}[{{ m.content }}]{% else %}"
    "{% for part in m.content %}<{{ part.text }}>{% endfor %}{% endif %}{% endfor %}"
)
EXPECTED = {"auto": "[Hi]", "openai": "<Hi>", "string": "[Hi]"}
MESSAGES = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions/render": {"messages": MESSAGES},
    "/v1/messages/render": {"messages": MESSAGES, "max_tokens": 3},
    "/v1/responses/render": {"input": "Hi"},
    "/v2/chat/render": {"model": "tiny", "messages": MESSAGES},
}


@pytest.mark.parametrize("content_format", EXPECTED)
def test_every_dialect_follows_it(directory: Path, content_format: Any) -> None:
    async def main() -> None:
        options: Any = {"chat_template_content_format": content_format}
        async with serving(directory, chat_template=TEMPLATE, **options) as client:
            body = {"prompt": EXPECTED[content_format], "add_special_tokens": False}
            expected = (await client.post("/tokenize", json=body)).json()["tokens"]
            for path, asked in BODIES.items():
                rendered = (await client.post(path, json=asked)).json()
                assert rendered["token_ids"] == expected, path
            applied = (await client.post("/apply-template", json={"messages": MESSAGES})).json()
            assert applied["prompt"] == EXPECTED[content_format]

    asyncio.run(main())


def test_it_is_that_of_templates_unless_it_is_set() -> None:
    assert ServerSettings().chat_template_content_format == "auto"
