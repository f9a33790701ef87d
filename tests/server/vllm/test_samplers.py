"""Further samplers over HTTP: a rendered request asks for what its fields asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.core.sampling_params import MAX_WINDOW
from tests.server.durable.make import in_loop
from tests.server.engine import make_directory
from tests.server.make import serving

FIELDS: dict[str, Any] = {
    "typical_p": 0.9,
    "top_n_sigma": 1.5,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.2,
    "dynatemp_range": 0.5,
    "dynatemp_exponent": 2.0,
    "min_keep": 3,
    "repeat_last_n": 64,
    "dry_multiplier": 0.8,
    "dry_base": 2.0,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": 9,
    "dry_sequence_breakers": ["\n"],
    "samplers": ["penalties", "dry", "top_n_sigma", "typical_p", "xtc", "temperature"],
    "mirostat": 1,
    "mirostat_tau": 4.0,
    "mirostat_eta": 0.3,
}
PROMPTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "The quick"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "The quick"}]},
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_directory(tmp_path_factory.mktemp("samplers"))


@pytest.mark.parametrize("path", PROMPTS)
@in_loop
async def test_a_rendered_request_has_the_samplers_of_its_fields(
    directory: Path, path: str
) -> None:
    async with serving(directory) as client:
        made = (await client.post(f"{path}/render", json={**PROMPTS[path], **FIELDS})).json()
        (made,) = made if isinstance(made, list) else [made]
        sampling = made["sampling_params"]
        assert {name: sampling[name] for name in FIELDS} == FIELDS
        response = await client.post("/inference/v1/generate", json=made)
        assert response.status_code == 200
        plain = (await client.post(f"{path}/render", json=PROMPTS[path])).json()
        (plain,) = plain if isinstance(plain, list) else [plain]
        assert not {name for name in FIELDS if plain["sampling_params"].get(name) is not None}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"typical_p": 0}, "typical_p"),
        ({"xtc_threshold": 2}, "xtc_threshold"),
        ({"dry_penalty_last_n": MAX_WINDOW + 1}, "dry_penalty_last_n"),
        ({"dry_sequence_breakers": ["x" * 41]}, "dry_sequence_breakers[0]"),
        ({"samplers": ["top_k", "penalties"], "presence_penalty": 1}, "samplers"),
        ({"samplers": ["mirostat"]}, "samplers"),
        ({"mirostat": 3}, "mirostat"),
    ],
)
@in_loop
async def test_a_wrong_sampler_is_refused_by_name(
    directory: Path, fields: dict[str, Any], param: str
) -> None:
    async with serving(directory) as client:
        for path, prompt in PROMPTS.items():
            response = await client.post(path, json={**prompt, **fields})
            assert response.status_code == 400
            assert response.json()["error"]["param"] == param
