"""llama.cpp's other routes: the model's facts, slots, templates, tokens, and other paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.server.durable.make import in_loop
from tests.server.engine import FACTS
from tests.server.make import serving

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}
KEY = "a-key-of-the-tests"


@in_loop
async def test_props_have_the_facts_and_the_defaults(directory: Path) -> None:
    async with serving(directory) as client:
        props = (await client.get("/props")).json()
        defaults = props["default_generation_settings"]
        assert (props["total_slots"], defaults["n_ctx"]) == (
            FACTS.max_num_seqs,
            FACTS.longest_tokens,
        )
        assert (props["model_alias"], defaults["params"]["n_predict"]) == ("tiny", -1)
        assert "/" not in props["model_path"]
        made = (await client.post("/apply-template", json=CHAT)).json()["prompt"]
        assert "Hello" in made
        assert props["chat_template"]


@in_loop
async def test_slots_say_how_many_run_and_need_the_key(directory: Path) -> None:
    async with serving(directory, api_keys=(KEY,)) as client:
        for path in ("/slots", "/props", "/models"):
            assert (await client.get(path)).status_code == 401
        slots = (await client.get("/slots", headers={"x-api-key": KEY})).json()
        assert len(slots) == FACTS.max_num_seqs
        assert not any(each["is_processing"] for each in slots)
        assert {each["n_ctx"] for each in slots} == {FACTS.longest_tokens}


@in_loop
async def test_slots_may_be_left_out(directory: Path) -> None:
    async with serving(directory, list_slots=False) as client:
        refused = await client.get("/slots")
        assert (refused.status_code, refused.json()["error"]["type"]) == (
            501,
            "not_supported_error",
        )
        assert not (await client.get("/props")).json()["endpoint_slots"]


@in_loop
async def test_other_paths_answer_like_those_with_a_version(directory: Path) -> None:
    async with serving(directory) as client:
        assert (await client.get("/models")).json() == (await client.get("/v1/models")).json()
        asked = {**CHAT, "max_tokens": 4, "temperature": 0}
        both = [
            (await client.post(path, json=asked)).json()["choices"]
            for path in ("/chat/completions", "/v1/chat/completions")
        ]
        assert both[0] == both[1]
        made = (await client.post("/apply-template", json=CHAT)).json()["prompt"]
        counted = (await client.post("/tokenize", json={"content": made})).json()["count"]
        for path in ("/chat/completions/input_tokens", "/v1/chat/completions/input_tokens"):
            assert (await client.post(path, json=CHAT)).json()["input_tokens"] == counted
        wrong = await client.post("/apply-template", json={"messages": []})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "messages")
        for biases in ({"1": 101}, {str(FACTS.vocabulary): 1}, {"token": 1}):
            wrong = await client.post("/apply-template", json={**CHAT, "logit_bias": biases})
            assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "logit_bias")


@in_loop
async def test_tokens_are_listed_with_their_texts_or_bytes(directory: Path) -> None:
    async with serving(directory) as client:
        text = "a \u5abd b"
        plain = (await client.post("/tokenize", json={"content": text})).json()
        named = {"content": text, "with_pieces": True}
        pieces = (await client.post("/tokenize", json=named)).json()["tokens"]
        assert [each["id"] for each in pieces] == plain["tokens"]
        exact = b"".join(
            piece.encode() if isinstance(piece, str) else bytes(piece)
            for piece in (each["piece"] for each in pieces)
        )
        assert exact.decode() == text
        assert any(isinstance(each["piece"], list) for each in pieces)
        asked = {"tokens": plain["tokens"]}
        assert (await client.post("/detokenize", json=asked)).json()["content"] == text
        asked["model"] = "tiny"  # as vLLM's clients do
        assert (await client.post("/detokenize", json=asked)).json() == {"prompt": text}
        for wrong in ({"content": "a", "prompt": "b"}, {}):
            assert (await client.post("/tokenize", json=wrong)).status_code == 400
        plainly = await client.post("/tokenize", json={"content": "a", "parse_special": False})
        assert plainly.json()["error"]["param"] == "parse_special"
