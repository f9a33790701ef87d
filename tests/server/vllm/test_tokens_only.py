"""A server of token ids alone makes no text, and reads none, on any of its routes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.options.server import ServerSettings
from octavo.options.transport import ServerSettingsError
from octavo.server.routes import OF_TOKENS, ROUTES
from tests.server.durable.make import durable, in_loop
from tests.server.engine import make_directory
from tests.server.make import events, serving

TOKENS = "/inference/v1/generate"


@in_loop
async def test_the_other_routes_say_why_they_are_missing(tmp_path: Path) -> None:
    assert {(each.method, each.path) for each in ROUTES} > OF_TOKENS
    async with serving(make_directory(tmp_path), tokens_only=True) as client:
        for route in ROUTES:
            if (route.method, route.path) in OF_TOKENS:
                continue
            path = route.path.replace("{id}", "one")
            answer = await client.request(route.method, path, json={"inputs": "x"})
            assert answer.status_code == 404, path
            assert "--tokens-only" in answer.text, path
        page = (await client.get("/docs")).text
        document = (await client.get("/openapi.json")).json()
        assert TOKENS in page
        assert "/v1/chat/completions" not in page
        assert {
            (method.upper(), path) for path, at in document["paths"].items() for method in at
        } == OF_TOKENS
        assert (await client.get("/v1/models")).status_code == 200


@in_loop
async def test_tokens_are_continued_as_elsewhere(tmp_path: Path) -> None:
    directory = make_directory(tmp_path)
    sampling = {"max_tokens": 6, "temperature": 0.8, "seed": 4, "logprobs": 1}
    body = {"token_ids": [5, 6], "sampling_params": sampling}
    async with serving(directory) as client:
        wanted = (await client.post(TOKENS, json=body)).json()["choices"]
    async with serving(directory, tokens_only=True) as client:
        assert (await client.post(TOKENS, json=body)).json()["choices"] == wanted
        stream = await client.post(TOKENS, json={**body, "stream": True})
        parts = [part["choices"][0]["token_ids"] for part in events(stream.text)]
        assert [token for part in parts for token in part] == wanted[0]["token_ids"]


@in_loop
async def test_the_prompts_tokens_have_no_text(tmp_path: Path) -> None:
    sampling = {"max_tokens": 1, "prompt_logprobs": 1}
    body = {"token_ids": [5, 6, 7], "sampling_params": sampling}
    async with serving(make_directory(tmp_path), tokens_only=True) as client:
        first, *others = (await client.post(TOKENS, json=body)).json()["prompt_logprobs"]
        assert first is None
        assert {each["decoded_token"] for at in others for each in at.values()} == {None}


@in_loop
async def test_texts_of_an_earlier_server_are_not_continued(tmp_path: Path) -> None:
    directory, journal = make_directory(tmp_path), tmp_path / "journal"
    body = {"prompt": "The quick", "max_tokens": 4, "stream": True}
    async with durable(directory, journal) as client:
        await client.post("/v1/completions", json=body, headers={"x-request-id": "one"})
        assert (await client.get("/v1/streams/one")).status_code == 200
    async with durable(directory, journal, tokens_only=True) as client:
        assert (await client.get("/v1/streams/one")).status_code == 404


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"output_mode": "text"}, "output_mode"),
        ({"output_mode": "derender", "parse_context": {}}, "output_mode"),
        ({"sampling_params": {"stop": ["x"]}}, "sampling_params.stop"),
    ],
)
@in_loop
async def test_what_needs_a_text_is_refused(
    tmp_path: Path, changes: dict[str, Any], param: str
) -> None:
    async with serving(make_directory(tmp_path), tokens_only=True) as client:
        body = {"token_ids": [5], "sampling_params": {}, **changes}
        refused = await client.post(TOKENS, json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == param
        assert client.server.admission.num_open == 0


def test_grpc_whose_answers_have_a_text_is_refused_beside_it() -> None:
    with pytest.raises(ServerSettingsError, match="grpc_port"):
        ServerSettings(tokens_only=True, grpc_port=0)
