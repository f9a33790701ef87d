"""llama.cpp's dialect over an engine with a tiny real model: biases, bans and shapes hold."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from octavo.api.async_llm import AsyncLLM
from octavo.serving.server import Server
from tests.api.tiny import make_model
from tests.server.llama.test_llama import answer
from tests.server.make import Client, patient

pytest.importorskip("torch")


@pytest.mark.slow
def test_biases_bans_and_shapes_change_what_is_drawn(tmp_path: Path) -> None:
    llm = AsyncLLM(str(make_model(tmp_path)), engine="inline")

    async def main() -> None:
        llm.attach()
        async with Client(Server(llm, patient())) as client:
            await check(client, llm)
            await client.server.prompt_pool.close()

    try:
        asyncio.run(main())
    finally:
        llm.close()


async def check(client: Client, llm: AsyncLLM) -> None:
    """Ask for the same with and without what changes it."""
    asked: dict[str, Any] = {"return_tokens": True, "n_predict": 1}
    first = (await answer(client, **asked))["tokens"]
    for biases in ([[first[0], False]], {str(first[0]): -100}):
        assert (await answer(client, **asked, logit_bias=biases))["tokens"] != first
    wanted = (await client.post("/tokenize", json={"content": "z"})).json()["tokens"]
    assert (await answer(client, **asked, logit_bias=[["z", 100]]))["tokens"] == wanted
    # The end would be drawn at once.
    end = [[token, 100] for token in llm.model.end_ids[:1]]
    ended = await answer(client, n_predict=9, logit_bias=end)
    assert (ended["stop_type"], ended["tokens_predicted"]) == ("eos", 1)
    going = await answer(client, return_tokens=True, n_predict=9, logit_bias=end, ignore_eos=True)
    assert (going["stop_type"], going["tokens_predicted"]) == ("limit", 9)
    assert not set(going["tokens"]) & set(llm.model.end_ids)
    shaped = await answer(client, json_schema={"const": "ab"}, n_predict=40)
    assert shaped["content"] == '"ab"'
    shaped = await answer(client, grammar='root ::= "a"{5,5}', n_predict=40)
    assert shaped["content"] == "aaaaa"
