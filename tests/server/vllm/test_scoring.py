"""The score of an item is the probability of a label token behind the query and the item."""

from __future__ import annotations

from math import exp
from pathlib import Path
from typing import Any

import pytest

from tests.server.durable.make import in_loop
from tests.server.engine import FakeEngine, extended, logprobs_of, make_directory
from tests.server.make import Client, serving

PATH = "/generative_scoring"
QUERY, ITEMS, LABELS = "The quick", [" fox", " dog jumps", ""], [9, 40, 9, 7]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_directory(tmp_path)


async def ids_of(client: Client, text: str, *, special: bool) -> list[int]:
    body = {"prompt": text, "add_special_tokens": special}
    ids: list[int] = (await client.post("/tokenize", json=body)).json()["tokens"]
    return ids


def expected(prompt: list[int], labels: list[int], *, in_all: bool) -> float:
    """Return the score that the engine's log-probabilities make."""
    state = 0
    for token in prompt:
        state = extended(state, token)
    found = logprobs_of(state, labels[0], len(labels), labels)
    of = dict(zip(found.token_ids[1:], map(exp, found.logprobs[1:]), strict=True))
    return of[labels[0]] if in_all else of[labels[0]] / sum(of.values())


@pytest.mark.parametrize("apply_softmax", [True, False])
@pytest.mark.parametrize("item_first", [True, False])
@pytest.mark.parametrize("special", [True, False])
@in_loop
async def test_a_score_is_the_probability_of_the_first_label(
    directory: Path, apply_softmax: bool, item_first: bool, special: bool
) -> None:
    async with serving(directory) as client:
        query = await ids_of(client, QUERY, special=special)
        items = [await ids_of(client, item, special=False) for item in ITEMS]
        prompts = [item + query if item_first else query + item for item in items]
        scores = [expected(each, LABELS, in_all=not apply_softmax) for each in prompts]
        fields: dict[str, Any] = {"label_token_ids": LABELS, "apply_softmax": apply_softmax}
        fields |= {"item_first": item_first, "add_special_tokens": special}
        for body in (
            {"query": QUERY, "items": ITEMS},
            {"query": query, "items": items},
            {"query": query, "items": [ITEMS[0], items[1], ITEMS[2]]},
        ):
            answer = (await client.post(PATH, json={**body, **fields})).json()
            assert [each["score"] for each in answer["data"]] == pytest.approx(scores)
            assert [each["index"] for each in answer["data"]] == [0, 1, 2]
            num_prompt = sum(map(len, prompts))
            assert answer["usage"]["prompt_tokens"] == num_prompt
            assert answer["usage"]["total_tokens"] == num_prompt + 3
            assert answer["id"].startswith("generative-scoring-")
        explained = await client.get(f"/v1/requests/{answer['id']}/explain")
        assert explained.status_code == 200


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"label_token_ids": []}, "label_token_ids"),
        ({"label_token_ids": [99_999]}, "label_token_ids"),
        ({"label_token_ids": list(range(129))}, "label_token_ids"),
        ({"items": []}, "items"),
        ({"items": ["a", [99_999]]}, "items[1]"),
        ({"items": ["a", "word " * 300]}, "items[1]"),
        ({"query": [], "items": [[]]}, "items[0]"),
        ({"query": "a" * 17_000, "items": ["a"] * 2048}, "items"),
        ({"model": "another"}, "model"),
    ],
)
@in_loop
async def test_what_cannot_be_scored_is_refused_by_its_field(
    directory: Path, changes: dict[str, Any], param: str
) -> None:
    async with serving(directory, FakeEngine(directory)) as client:
        body = {"query": QUERY, "items": ITEMS, "label_token_ids": LABELS, **changes}
        answer = await client.post(PATH, json=body)
        assert answer.status_code in (400, 404)
        assert answer.json()["error"]["param"] == param
        assert client.server.admission.num_open == 0
