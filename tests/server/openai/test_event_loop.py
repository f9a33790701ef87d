"""The work on a request's text does not keep the event loop from other requests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from octavo.api.requests import CheckedRequest
from octavo.core.sampling_params import SamplingParams
from octavo.text.breakers import breaker_tokens
from octavo.text.tokenizer import Tokenizer
from octavo.workers.jobs import PreparedPrompt, PromptJob, Refused
from tests.server.engine import VOCABULARY, FakeEngine
from tests.server.make import Client, serving

WORDS = ["quick", " quick", "the \U0001f600", " fox"]
MESSAGES = [{"role": "user", "content": "x"}]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def observe(
    client: Client, engine: FakeEngine, patch: pytest.MonkeyPatch
) -> tuple[list[CheckedRequest], list[PromptJob]]:
    """Return lists that will have what the engine and the prompt workers get."""
    requests: list[CheckedRequest] = []
    jobs: list[PromptJob] = []
    pool = client.server.prompt_pool
    submit, prepare = engine.submit, pool.prepare_all

    def submitting(request: CheckedRequest, *others: Any) -> str:
        requests.append(request)
        return submit(request, *others)

    async def preparing(asked: list[PromptJob], owner: str) -> list[PreparedPrompt | Refused]:
        jobs.extend(asked)
        return await prepare(asked, owner)

    patch.setattr(engine, "submit", submitting)
    patch.setattr(pool, "prepare_all", preparing)
    return requests, jobs


@pytest.mark.parametrize(
    ("path", "asked", "num_prompts"),
    [
        (COMPLETIONS, {"prompt": ["one", "two", "three"]}, 3),
        (COMPLETIONS, {"prompt": [[5, 6], [7]], "truncate_prompt_tokens": 1}, 2),
        (COMPLETIONS, {"prompt": [5, 6]}, 1),
        (CHAT, {"messages": MESSAGES}, 1),
    ],
)
def test_a_worker_tokenises_bad_words_once(
    directory: Path, monkeypatch: pytest.MonkeyPatch, path: str, asked: Any, num_prompts: int
) -> None:
    def encode(*arguments: Any, **options: Any) -> list[int]:
        raise AssertionError("tokenised in the event loop")

    engine = FakeEngine(directory)
    with mock.patch.object(engine.model, "tokenizer", engine.splitter):
        sampling = engine.check([5], SamplingParams(bad_words=tuple(WORDS))).sampling
    expected = sampling.bad_words_token_ids
    assert len(expected) == 5
    monkeypatch.setattr(Tokenizer, "encode", encode)

    async def main() -> None:
        async with serving(directory, engine) as client:
            requests, jobs = observe(client, engine, monkeypatch)
            response = await client.post(path, json={**asked, "max_tokens": 1, "bad_words": WORDS})
            assert response.status_code == 200, response.text
            assert len(requests) == num_prompts
            assert all(each.sampling.bad_words_token_ids == expected for each in requests)
            assert len([job for job in jobs if job.bad_words]) == 1

    asyncio.run(main())


@pytest.mark.parametrize("asked", [{"prompt": ["one", "two"]}, {"prompt": [5, 6]}])
def test_a_worker_tokenises_what_repetitions_do_not_reach_over(
    directory: Path, monkeypatch: pytest.MonkeyPatch, asked: Any
) -> None:
    async def main() -> None:
        engine = FakeEngine(directory)
        async with serving(directory, engine) as client:
            requests, jobs = observe(client, engine, monkeypatch)
            body = {**asked, "max_tokens": 1, "dry_multiplier": 0.8, "dry_sequence_breakers": WORDS}
            response = await client.post(COMPLETIONS, json=body)
            assert response.status_code == 200, response.text
            options = [each.sampling.sampler_options for each in requests]
            found = {each.dry_breaker_ids for each in options if each is not None}
            assert found == {tuple(breaker_tokens(engine.splitter, WORDS))}
            assert len([job for job in jobs if job.breakers]) == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (COMPLETIONS, {"prompt": "x"}),
        (COMPLETIONS, {"prompt": [5]}),
        (CHAT, {"messages": MESSAGES}),
    ],
)
def test_too_many_bad_words_are_refused_before_they_are_tokenised(
    directory: Path, monkeypatch: pytest.MonkeyPatch, path: str, asked: Any
) -> None:
    engine = FakeEngine(directory)

    async def main() -> None:
        async with serving(directory, engine) as client:
            _, jobs = observe(client, engine, monkeypatch)
            for words in ([f"word {number}" for number in range(65)], ["x" * 255] * 17):
                response = await client.post(path, json={**asked, "bad_words": words})
                assert response.status_code == 400
                assert response.json()["error"]["param"] == "bad_words"
            assert not jobs

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/detokenize", COMPLETIONS])
def test_no_prompt_of_ids_is_decoded_in_the_event_loop(
    directory: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    engine = FakeEngine(directory, max_model_len=30_000, num_blocks=10_000)
    tokenizer = engine.model.tokenizer
    ids = [(7 * number) % (VOCABULARY - 2) + 2 for number in range(50_000)]
    whole = tokenizer.decode(ids, skip_special_tokens=False)
    tail = tokenizer.decode(ids[-20_000:], skip_special_tokens=False)

    def decode(*arguments: Any, **options: Any) -> str:
        raise AssertionError("decoded in the event loop")

    monkeypatch.setattr(Tokenizer, "decode", decode)

    async def main() -> None:
        async with serving(directory, engine) as client:
            if path == COMPLETIONS:
                kept = {"truncate_prompt_tokens": 20_000, "echo": True, "max_tokens": 0}
                answer = await client.complete(prompt=ids, **kept)
                assert answer["choices"][0]["text"] == tail
            else:
                response = await client.post(path, json={"tokens": ids})
                assert response.json()["prompt"] == whole

    asyncio.run(main())
