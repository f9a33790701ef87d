"""/v1/fim/completions: the same text as with a suffix of completions, in the form of chats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from octavo.text.pieces import FORMS
from tests.server.durable.make import in_loop
from tests.server.engine import make_directory
from tests.server.llama.infill_files import make_infill_directory
from tests.server.make import events, serving

PATH = "/v1/fim/completions"
ASKED: dict[str, Any] = {"prompt": "The ", "suffix": " dog", "max_tokens": 5, "temperature": 0}


def counts(answer: Any) -> tuple[int, int]:
    """Return the numbers of tokens of the prompt and of the answer."""
    return answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]


@in_loop
async def test_the_text_is_that_of_completions_with_a_suffix(tmp_path: Path) -> None:
    directory = make_infill_directory(tmp_path, FORMS[0])
    async with serving(directory, strict=True) as client:
        for fields in ({}, {"suffix": None}, {"stop": ["e"]}):
            asked = {**ASKED, **fields}
            plain = await client.complete(**asked)
            (choice,) = plain["choices"]
            whole = (await client.post(PATH, json=asked)).json()
            (answer,) = whole["choices"]
            assert whole["object"] == "chat.completion"
            assert answer["message"]["role"] == "assistant"
            assert answer["message"]["content"] == choice["text"]
            assert answer["finish_reason"] == choice["finish_reason"]
            assert counts(whole) == counts(plain)
            stream = await client.post(PATH, json={**asked, "stream": True})
            assert stream.text.endswith("data: [DONE]\n\n")
            *chunks, last = events(stream.text)
            assert counts(last) == counts(plain)
            deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
            assert deltas[0]["role"] == "assistant"
            assert "".join(delta["content"] for delta in deltas) == choice["text"]
            assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]


@in_loop
async def test_an_answer_without_a_limit_fills_the_context(tmp_path: Path) -> None:
    async with serving(make_directory(tmp_path)) as client:
        sampled = {"prompt": "The", "temperature": 1, "random_seed": 7, "min_tokens": 20}
        first, second = [(await client.post(PATH, json=sampled)).json() for _ in range(2)]
        assert first["choices"] == second["choices"]
        assert first["usage"]["completion_tokens"] >= 20


@in_loop
async def test_errors_name_the_fields_of_the_request(tmp_path: Path) -> None:
    async with serving(make_directory(tmp_path)) as client:
        for fields, param in (
            ({"suffix": "x"}, "suffix"),  # the model has no marks for it
            ({"suffix": "", "random_seed": -1}, "random_seed"),
            ({"suffix": "", "max_tokens": 0}, "max_tokens"),
            ({"suffix": "", "min_tokens": 9}, "min_tokens"),
            ({"suffix": "", "tools": [{}]}, "tools"),
            ({"prompt": [5]}, "prompt"),
            ({"model": "other"}, "model"),
        ):
            refused = await client.post(PATH, json={**ASKED, **fields})
            assert refused.status_code in (400, 404)
            assert refused.json()["error"]["param"] == param


@in_loop
async def test_a_server_may_send_the_usage_with_every_chunk(tmp_path: Path) -> None:
    directory = make_infill_directory(tmp_path, FORMS[0])
    async with serving(directory, enable_force_include_usage=True) as client:
        stream = await client.post(PATH, json={**ASKED, "stream": True})
        found = [chunk["usage"]["completion_tokens"] for chunk in events(stream.text)]
        assert found == sorted(found)
        assert (found[0], found[-1]) == (0, ASKED["max_tokens"])
