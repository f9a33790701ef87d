"""Predicted outputs over HTTP: the same answers, with what was accepted in the usage."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from octavo import AsyncLLM
from octavo.core.pace.width_times import WidthTimes
from octavo.serving import large_bodies
from octavo.serving.server import Server
from tests.api.tiny import TEMPLATE, make_model
from tests.server.durable.make import in_loop
from tests.server.engine import FakeEngine
from tests.server.make import Client, events, patient, serving

CHAT, TOKENS = "/v1/chat/completions", "/inference/v1/generate"
MESSAGES = [{"role": "user", "content": "Hello"}]
BODY: dict[str, Any] = {
    "messages": MESSAGES,
    "max_tokens": 60,
    "temperature": 0,
    "ignore_eos": True,
    "allowed_token_ids": list(range(70, 95)),
}


@pytest.fixture(autouse=True)
def costs_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let drafts be sent by what is expected first: so small a model says little of rows."""
    monkeypatch.setattr(WidthTimes, "learn", lambda *arguments, **more: None)


@asynccontextmanager
async def real_server(directory: Path, **settings: Any) -> AsyncIterator[Client]:
    """Serve a real model, which follows a prediction."""
    llm = AsyncLLM(str(make_model(directory, TEMPLATE)), engine="inline", num_threads=1)
    llm.attach()
    server = Server(llm, patient(**settings))
    async with Client(server) as client:
        try:
            yield client
        finally:
            await server.prompt_pool.close()
            llm.close()


async def answered(client: Client, **fields: Any) -> Any:
    response = await client.post(CHAT, json={**BODY, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def predicted(text: str) -> list[dict[str, Any]]:
    """Return a prediction in both of its forms."""
    parts = [{"type": "text", "text": text[:20]}, {"type": "text", "text": text[20:]}]
    return [{"type": "content", "content": text}, {"type": "content", "content": parts}]


def details(answer: Any) -> tuple[int, int]:
    found = answer["usage"]["completion_tokens_details"]
    return found["accepted_prediction_tokens"], found["rejected_prediction_tokens"]


@in_loop
async def test_the_answer_is_the_same_and_its_usage_has_what_was_accepted(tmp_path: Path) -> None:
    async with real_server(tmp_path) as client:
        plain = (await client.post(CHAT, json=BODY)).json()
        text = plain["choices"][0]["message"]["content"]
        assert details(plain) == (0, 0)
        for prediction in predicted(text):
            body = {**BODY, "prediction": prediction, "explain": True}
            found = (await client.post(CHAT, json=body)).json()
            assert found["choices"][0]["message"]["content"] == text
            accepted, rejected = details(found)
            assert accepted > 9
            explained = found["explain"]
            assert explained["accepted_draft_tokens"] == accepted
            assert explained["drafted_tokens"] == accepted + rejected
            assert explained["prediction"] == {"drafted": accepted + rejected, "accepted": accepted}
            assert sum(each["accepted"] for each in explained["drafts_by_position"]) == accepted
            off = (await client.post(CHAT, json={**body, "speculation": False})).json()
            assert details(off) == (0, 0)
            assert off["choices"][0]["message"]["content"] == text


@in_loop
async def test_a_stream_that_a_stop_string_ends_has_the_counts_of_all_answers(
    tmp_path: Path,
) -> None:
    async with real_server(tmp_path) as client:
        body = {**BODY, "n": 2, "temperature": 1.0, "seed": 3}
        plain = (await client.post(CHAT, json=body)).json()["choices"]
        texts = [each["message"]["content"] for each in plain]
        stop = texts[1][30:34]
        body |= {"prediction": {"type": "content", "content": texts[1]}, "stop": [stop]}
        options = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = events((await client.post(CHAT, json={**body, **options})).text)
        parts = ["", ""]
        for choice in (choice for each in chunks for choice in each["choices"]):
            parts[choice["index"]] += choice["delta"].get("content") or ""
        assert parts == [text.partition(stop)[0] for text in texts]
        assert details(chunks[-1])[0] > 2
        whole = (await client.post(CHAT, json=body)).json()
        assert [each["message"]["content"] for each in whole["choices"]] == parts
        assert details(whole)[0] > 2


@in_loop
async def test_a_large_body_is_read_in_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prediction is tokenised there, and no text of it comes back."""
    monkeypatch.setattr(large_bodies, "is_large", lambda body: True)
    async with real_server(tmp_path) as client:
        plain = (await client.post(CHAT, json=BODY)).json()
        text = plain["choices"][0]["message"]["content"]
        body = {**BODY, "prediction": predicted(text)[1]}
        found = (await client.post(CHAT, json=body)).json()
        assert found["choices"][0]["message"]["content"] == text
        assert details(found)[0] > 9


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prediction": {"content": 5}}, "prediction.content"),
        ({"prediction": "a text"}, "prediction"),
        ({"prediction": {"type": "tokens", "content": "a"}}, "prediction.type"),
        ({"prediction": {"type": "content"}}, "prediction"),
        ({"prediction": {"content": "a", "contents": "b"}}, "prediction.contents"),
        ({"prediction": {"content": [{"type": "image_url"}]}}, "prediction.content[0]"),
        ({"prediction": {"content": "a" * 999}}, "prediction"),
        ({"prediction": {"content": "a"}, "use_beam_search": True}, "prediction"),
        ({"speculation": "no"}, "speculation"),
    ],
)
@in_loop
async def test_wrong_predictions_are_refused(
    directory: Path, fields: dict[str, Any], param: str
) -> None:
    async with serving(directory, FakeEngine(directory)) as client:
        response = await client.post(CHAT, json={"messages": MESSAGES, **fields})
        error = response.json()["error"]
        assert response.status_code == 400
        assert error["param"].startswith(param), error


@in_loop
async def test_a_rendered_request_keeps_its_prediction(directory: Path) -> None:
    """The answer to token ids follows it as the answer to the conversation would."""
    async with real_server(directory) as client:
        plain = await answered(client, return_token_ids=True)
        text = plain["choices"][0]["message"]["content"]
        fields = {"prediction": {"type": "content", "content": text}}
        for speculation in (True, False):
            body = {**BODY, **fields, "speculation": speculation}
            rendered = (await client.post(f"{CHAT}/render", json=body)).json()
            sampling = rendered["sampling_params"]
            assert sampling.get("speculation", True) is speculation
            assert len(sampling["prediction"]) > 30
            answer = (await client.post(TOKENS, json=rendered)).json()
            (choice,) = answer["choices"]
            assert choice["token_ids"] == plain["choices"][0]["token_ids"]
            assert (details(answer)[0] > 20) is speculation


@pytest.mark.parametrize("wrong", [[5, 10**6], [5] * 5000, "a text", [-1]])
@in_loop
async def test_wrong_token_ids_of_a_prediction_are_refused(directory: Path, wrong: Any) -> None:
    async with serving(directory, FakeEngine(directory)) as client:
        sampling = {"max_tokens": 4, "prediction": wrong}
        body = {"token_ids": [5, 6], "sampling_params": sampling}
        response = await client.post(TOKENS, json=body)
        assert response.status_code == 400
        assert response.json()["error"]["param"].startswith("sampling_params.prediction")


@in_loop
async def test_other_routes_have_no_prediction(directory: Path) -> None:
    async with serving(directory) as client:
        error = (await client.complete(prediction={"type": "content", "content": "x"}))["error"]
        assert (error["param"], error["code"]) == ("prediction", "unsupported_parameter")
        assert "choices" in await client.complete(prediction=None, speculation=False)
