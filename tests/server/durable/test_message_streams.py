"""A stream of Anthropic's dialect continues at any position, like those of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.server.durable.make import durable, in_loop, received

BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 12,
    "stream": True,
    "temperature": 0.7,
}


def text_of(events: list[tuple[str | None, Any]]) -> str:
    """Return the text in the events of an answer."""
    deltas = [event["delta"] for _, event in events if event["type"] == "content_block_delta"]
    return "".join(delta["text"] for delta in deltas)


def kinds_of(events: list[tuple[str | None, Any]]) -> list[str]:
    """Return the kinds of events, without those whose number may differ."""
    return [event["type"] for _, event in events if event["type"] != "content_block_delta"]


@in_loop
async def test_messages_continue_behind_every_event(directory: Path, tmp_path: Path) -> None:
    async with durable(directory, tmp_path / "journal") as client:
        headers = {"x-request-id": "mine"}
        answer = await client.post("/v1/messages", json=BODY, headers=headers)
        whole = received(answer.text).events
        assert whole[-1][1]["type"] == "message_stop"
        assert len(text_of(whole)) > 5
        positions = [place for place, (number, _) in enumerate(whole) if number is not None]
        assert len(positions) > 1
        for place in positions:
            number = whole[place][0] or ""
            path = "/v1/streams/msg_mine"
            response = await client.get(path, params={"from": number})
            assert response.status_code == 200, response.text
            together = [*whole[: place + 1], *received(response.text).events]
            assert text_of(together) == text_of(whole)
            assert kinds_of(together) == kinds_of(whole), number
