"""The server's settings of pooling are the defaults of requests, on every route."""

from __future__ import annotations

from array import array
from base64 import b64decode
from itertools import chain
from math import exp, hypot
from pathlib import Path
from typing import Any

import pytest

from octavo.engine.pooling_facts import with_settings
from octavo.model_facts import PoolingFacts
from octavo.options.pooling import read_pooler_config
from tests.server.embeddings.make import run
from tests.server.engine import CLASSES, WIDTH, vector_of
from tests.server.make import Client

IDS = [5, 6, 7, 6]
LENGTH = 256  # of the model
EMBEDDER = PoolingFacts(width=WIDTH)
CLASSIFIER = PoolingFacts(
    tasks=("classify",), width=WIDTH, labels=("sad", "glad", "mad"), squash="softmax"
)


def raw(ids: list[int], width: int = WIDTH) -> list[float]:
    """Return the engine's vector of a prompt."""
    return list(vector_of([*ids, 0], width))


def rows(width: int) -> list[list[float]]:
    """Return the engine's vectors of a prompt's tokens."""
    return [list(vector_of(IDS[: count + 1], width)) for count in range(len(IDS))]


def unit(values: list[float]) -> list[float]:
    return [value / hypot(*values) for value in values]


def softmax(values: list[float]) -> list[float]:
    powers = [exp(value) for value in values]
    return [power / sum(powers) for power in powers]


@pytest.mark.parametrize(
    ("config", "fields", "expected"),
    [
        ({"use_activation": False}, {}, raw(IDS)),
        ({"use_activation": False}, {"use_activation": True}, unit(raw(IDS))),
        ({"dimensions": 3}, {}, unit(raw(IDS)[:3])),
        ({"dimensions": 3}, {"dimensions": 5}, unit(raw(IDS)[:5])),
    ],
)
def test_a_request_goes_before_the_servers_settings(
    directory: Path, config: dict[str, Any], fields: dict[str, Any], expected: list[float]
) -> None:
    async def test(client: Client) -> None:
        for path, name in (("/v1/embeddings", "embedding"), ("/pooling", "data")):
            answer = await client.post(path, json={"input": IDS, **fields})
            (found,) = answer.json()["data"]
            assert found[name] == pytest.approx(expected)

    run(directory, test, with_settings(EMBEDDER, read_pooler_config(config)))


def test_the_task_of_the_server_is_that_of_requests_without_one(directory: Path) -> None:
    async def test(client: Client) -> None:
        expected = [pytest.approx(unit(each)) for each in rows(WIDTH)]
        pooled = (await client.post("/pooling", json={"input": [IDS, IDS[:2]]})).json()["data"]
        assert [each["data"] for each in pooled] == [expected, expected[:2]]
        body: dict[str, Any] = {"input": [IDS, IDS[:2]]}
        embedded = (await client.post("/v1/embeddings", json=body)).json()["data"]
        assert [each["embedding"] for each in embedded] == [expected, expected[:2]]
        assert [each["object"] for each in embedded] == ["embedding"] * 2
        body["encoding_format"] = "base64"
        (coded, _) = (await client.post("/v1/embeddings", json=body)).json()["data"]
        numbers = list(array("f", b64decode(coded["embedding"])))
        assert numbers == pytest.approx([value for row in rows(WIDTH) for value in unit(row)])
        one = (await client.post("/pooling", json={"input": IDS, "task": "embed"})).json()["data"]
        assert one[0]["data"] == pytest.approx(unit(raw(IDS)))

    run(directory, test, with_settings(EMBEDDER, read_pooler_config({"task": "token_embed"})))


@pytest.mark.parametrize("activates", [None, False])
def test_logits_are_calibrated_before_they_become_probabilities(
    directory: Path, activates: bool | None
) -> None:
    async def test(client: Client) -> None:
        calibrated = [(value - 0.25) / 2 for value in raw(IDS, CLASSES)]
        expected = softmax(calibrated) if activates is None else calibrated
        (found,) = (await client.post("/classify", json={"input": IDS})).json()["data"]
        assert found["probs"] == pytest.approx(expected)
        (asked,) = (
            await client.post("/classify", json={"input": IDS, "use_activation": True})
        ).json()["data"]
        assert asked["probs"] == pytest.approx(softmax(calibrated))

    given = {"logit_mean": 0.25, "logit_sigma": 2, "use_activation": activates}
    run(directory, test, with_settings(CLASSIFIER, read_pooler_config(given)))


@pytest.mark.parametrize(("token", "places"), [(6, [1, 3]), (9, [])])
def test_only_the_tokens_that_end_steps_have_classes(
    directory: Path, token: int, places: list[int]
) -> None:
    async def test(client: Client) -> None:
        expected = [rows(CLASSES)[place] for place in places]
        body = {"input": IDS, "use_activation": False}
        (found,) = (await client.post("/pooling", json=body)).json()["data"]
        assert found["data"] == [pytest.approx(each) for each in expected]
        answer = await client.post("/pooling", json={**body, "encoding_format": "bytes_only"})
        assert list(array("f", answer.content)) == pytest.approx(list(chain(*expected)))

    given = {"task": "token_classify", "pooling_type": "STEP", "step_tag_id": token}
    run(directory, test, with_settings(CLASSIFIER, read_pooler_config(given)))


def test_texts_that_are_too_long_are_embedded_in_pieces(directory: Path) -> None:
    given = {"enable_chunked_processing": True, "max_embed_len": 1100}

    async def test(client: Client) -> None:
        ids = [index % 50 + 4 for index in range(LENGTH + 100)]
        (found,) = (await client.post("/v1/embeddings", json={"input": ids})).json()["data"]
        pieces = [(part, raw(part)) for part in (ids[:LENGTH], ids[LENGTH:])]
        mean = [
            sum(len(part) * values[place] for part, values in pieces) / len(ids)
            for place in range(WIDTH)
        ]
        assert found["embedding"] == pytest.approx(unit(mean), abs=1e-6)

    run(directory, test, with_settings(EMBEDDER, read_pooler_config(given)))
