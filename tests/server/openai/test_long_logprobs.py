"""Long lists of log-probabilities are made in pieces, between which other requests run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from octavo.api import logprobs as api
from octavo.dialects.common import logprobs as module
from octavo.serving.bounds.turns import PIECE
from octavo.serving.generation import Generation
from tests.server.engine import FakeEngine
from tests.server.make import Client, serving
from tests.server.openai.calls import streamed

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hello"}]
LONG: dict[str, Any] = {"prompt": [5, 9] * 60, "max_tokens": 60, "seed": 1}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {**LONG, "logprobs": 4}),
    ("/v1/completions", {**LONG, "prompt_logprobs": 4}),
    ("/v1/completions", {**LONG, "logprobs": 4, "echo": True, "n": 2}),
    (CHAT, {"messages": MESSAGES, "max_tokens": 60, "logprobs": True, "top_logprobs": 4}),
    (CHAT, {"messages": MESSAGES * 5, "max_tokens": 1, "prompt_logprobs": 4}),
]


async def answer(client: Client, path: str, fields: dict[str, Any]) -> Any:
    whole = (await client.post(path, json={**fields, "seed": 1})).json()
    return {"choices": whole["choices"], "prompt": whole.get("prompt_logprobs")}


@pytest.mark.parametrize(("path", "fields"), REQUESTS)
def test_other_requests_run_between_the_pieces(
    directory: Path, monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, Any]
) -> None:
    """No more positions are read in one turn than the limit allows, and the answer is the same."""
    in_this_turn: list[int] = []
    most: list[int] = []
    explain = api.explain

    def counted(*arguments: Any) -> Any:
        if not in_this_turn:
            asyncio.get_running_loop().call_soon(in_this_turn.clear)
        in_this_turn.append(1)
        most.append(len(in_this_turn))
        return explain(*arguments)

    async def main() -> None:
        async with serving(directory, FakeEngine(directory)) as client:
            expected = await answer(client, path, fields)
            monkeypatch.setattr(module, "MAX_AT_ONCE", 30)
            monkeypatch.setattr(api, "explain", counted)
            assert await answer(client, path, fields) == expected
            assert max(most) == 30 // 5
            num_positions = len(most)
            assert num_positions > 50

    asyncio.run(main())


def test_an_echo_in_a_stream_is_made_in_pieces_too(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with serving(directory, FakeEngine(directory)) as client:
            fields = {**LONG, "logprobs": 4, "echo": True}
            expected = await streamed(client, **fields)
            monkeypatch.setattr(module, "MAX_AT_ONCE", 30)
            chunks = await streamed(client, **fields)
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                both = [
                    [each for e in said for c in e["choices"] for each in c["logprobs"][name]]
                    for said in (chunks, expected)
                ]
                assert both[0] == both[1]

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_the_ends_of_many_prompts_are_noted_in_pieces(
    directory: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    in_this_turn: list[int] = []
    most: list[int] = []
    note = Generation._note

    def counted(*arguments: Any) -> None:
        if not in_this_turn:
            asyncio.get_running_loop().call_soon(in_this_turn.clear)
        in_this_turn.append(1)
        most.append(len(in_this_turn))
        note(*arguments)

    async def main() -> None:
        engine = FakeEngine(directory, max_num_seqs=128, max_num_batched_tokens=512)
        async with serving(directory, engine) as client:
            monkeypatch.setattr(Generation, "_note", counted)
            body = {"prompt": [[5]] * 100, "max_tokens": 1, "stream": stream}
            response = await client.post("/v1/completions", json=body)
            assert response.status_code == 200
            assert len(most) == 100
            assert max(most) <= PIECE

    asyncio.run(main())
