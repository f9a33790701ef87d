"""A server of token ids alone makes no text, and reads none, on any of its routes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.server.routes import OF_TOKENS, ROUTES
from octavo.server.settings import ServerSettings, ServerSettingsError
from tests.server.durable.make import in_loop
from tests.server.engine import make_directory
from tests.server.make import events, serving

TOKENS = "/inference/v1/generate"


@in_loop
async def test_the_other_routes_say_why_they_are_missing(tmp_path: Path) -> None:
    assert {each.path for each in ROUTES} > OF_TOKENS
    async with serving(make_directory(tmp_path), tokens_only=True) as client:
        for route in ROUTES:
            if route.path in OF_TOKENS:
                continue
            path = route.path.replace("{id}", "one")
            answer = await client.request(route.method, path, json={})
            assert answer.status_code == 404, path
            assert "--tokens-only" in answer.text, path
        page = (await client.get("/docs")).text
        document = (await client.get("/openapi.json")).json()
        assert TOKENS in page
        assert "/v1/chat/completions" not in page
        assert set(document["paths"]) <= OF_TOKENS
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
