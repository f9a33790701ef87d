"""Embeddings, pooled states and classes over HTTP are the engine's, in the forms asked for."""

from __future__ import annotations

import asyncio
from array import array
from base64 import b64decode
from collections import Counter, deque
from math import exp, hypot
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from openai import OpenAI

from octavo.api.pooling.tasks import Wanted
from octavo.api.requests import VECTOR_BYTES
from octavo.model_facts import PoolingFacts
from octavo.serving.bounds.response_size import VALUE_BYTES
from tests.server.embeddings.make import run
from tests.server.engine import CLASSES, WIDTH, FakeEngine, vector_of
from tests.server.make import LIMIT, Client, listening

IDS = [5, 6, 7]
EMBEDDER = PoolingFacts(width=WIDTH, prompts={"query": "Find: ", "none": ""})
EMBEDDER_ALONE = replace(EMBEDDER, tasks=("embed",))
CLASSIFIER = PoolingFacts(
    tasks=("classify",), width=WIDTH, labels=("sad", "glad", "mad"), squash="softmax"
)


def raw(ids: list[int], width: int = WIDTH) -> list[float]:
    """Return the engine's vector of a prompt."""
    return list(vector_of([*ids, 0], width))


def unit(values: list[float]) -> list[float]:
    return [value / hypot(*values) for value in values]


def test_embeddings_are_those_of_the_inputs_in_their_order(directory: Path) -> None:
    async def test(client: Client) -> None:
        many = [[5, 6, 7], [9], [5, 6], *([[index % 250 + 4] * 3 for index in range(40)])]
        body = (await client.post("/v1/embeddings", json={"input": many})).json()
        assert body["object"] == "list"
        assert body["id"].startswith("embd-")
        assert body["model"] == "tiny"
        assert [each["index"] for each in body["data"]] == list(range(len(many)))
        for ids, each in zip(many, body["data"], strict=True):
            assert each["object"] == "embedding"
            assert each["embedding"] == pytest.approx(unit(raw(ids)))
        total = sum(map(len, many))
        expected = {"prompt_tokens": total, "total_tokens": total, "completion_tokens": 0}
        assert body["usage"] == expected
        (alone,) = (await client.post("/v1/embeddings", json={"input": IDS})).json()["data"]
        assert alone == body["data"][0]
        text = (await client.post("/tokenize", json={"prompt": "The dog"})).json()["tokens"]
        by_text = (await client.post("/v1/embeddings", json={"input": ["The dog"]})).json()
        assert by_text["data"][0]["embedding"] == pytest.approx(unit(raw(text)))

    run(directory, test, EMBEDDER)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"dimensions": 3}, unit(raw(IDS)[:3])),
        ({"normalize": False}, raw(IDS)),
        ({"use_activation": False, "dimensions": 5}, raw(IDS)[:5]),
        ({"truncate_prompt_tokens": 2}, unit(raw(IDS[:2]))),
        ({"truncate_prompt_tokens": -1}, unit(raw(IDS))),
        ({"pooling": "mean", "user": "me", "prompt_name": "none"}, unit(raw(IDS))),
    ],
)
def test_fields_say_what_is_made_of_the_vector(
    directory: Path, fields: dict[str, Any], expected: list[float]
) -> None:
    async def test(client: Client) -> None:
        answer = await client.post("/v1/embeddings", json={"input": IDS, **fields})
        assert answer.json()["data"][0]["embedding"] == pytest.approx(expected)

    run(directory, test, EMBEDDER)


@pytest.mark.parametrize(
    ("kind", "order", "dtype", "tolerance"),
    [
        ("float32", "native", "<f4", 1e-7),
        ("float32", "big", ">f4", 1e-7),
        ("float16", "little", "<f2", 1e-3),
        ("float16", "big", ">f2", 1e-3),
    ],
)
def test_base64_holds_the_same_numbers(
    directory: Path, kind: str, order: str, dtype: str, tolerance: float
) -> None:
    async def test(client: Client) -> None:
        body = {"input": IDS, "encoding_format": "base64", "embed_dtype": kind, "endianness": order}
        answer = (await client.post("/v1/embeddings", json=body)).json()
        found = np.frombuffer(b64decode(answer["data"][0]["embedding"]), dtype)
        np.testing.assert_allclose(found, unit(raw(IDS)), rtol=0, atol=tolerance)
        body["embed_dtype"] = "bfloat16"
        answer = (await client.post("/v1/embeddings", json=body)).json()
        halves = np.frombuffer(b64decode(answer["data"][0]["embedding"]), dtype[0] + "u2")
        found = (halves.astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_allclose(found, unit(raw(IDS)), rtol=1 / 256)

    run(directory, test, EMBEDDER)


def test_openai_s_client_reads_base64_by_default(directory: Path) -> None:
    engine = FakeEngine(directory, pooling=EMBEDDER)
    with listening(directory, engine) as life:
        url = f"http://127.0.0.1:{life.port}/v1"
        client: Any = OpenAI(
            base_url=url,
            api_key="none",
            max_retries=0,
            timeout=LIMIT,
        )
        with client:
            answer = client.embeddings.create(model="tiny", input=[IDS, [9]], dimensions=4)
            assert answer.data[0].embedding == pytest.approx(unit(raw(IDS)[:4]), abs=1e-7)
            plain = client.embeddings.create(model="tiny", input=IDS, encoding_format="float")
            assert plain.data[0].embedding == pytest.approx(unit(raw(IDS)))
            assert answer.usage.prompt_tokens == 4


def test_pooling_gives_a_vector_for_each_token(directory: Path) -> None:
    async def test(client: Client) -> None:
        ids = [index % 290 + 4 for index in range(200)]  # more than one step computes
        body = {"input": [ids, IDS], "task": "token_embed", "use_activation": False}
        answer = (await client.post("/pooling", json=body)).json()
        assert answer["id"].startswith("pooling-")
        for given, each in zip((ids, IDS), answer["data"], strict=True):
            expected = [list(vector_of(given[: end + 1])) for end in range(len(given))]
            assert np.array(each["data"]) == pytest.approx(np.array(expected))
        body["encoding_format"] = "base64"
        coded = (await client.post("/pooling", json=body)).json()["data"][1]["data"]
        flat = array("f", b64decode(coded))
        assert list(flat) == [value for row in answer["data"][1]["data"] for value in row]
        whole = (await client.post("/pooling", json={"input": IDS})).json()["data"][0]
        assert whole["data"] == pytest.approx(unit(raw(IDS)))
        plain = (await client.post("/pooling", json={"input": IDS, "task": "plain"})).json()
        assert plain["data"][0]["data"] == pytest.approx(raw(IDS))

    run(directory, test, EMBEDDER)


@pytest.mark.parametrize("form", ["float", "base64"])
def test_long_work_on_vectors_of_tokens_leaves_turns_to_others(
    directory: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """A few vectors are made in each turn of the event loop, and the response is in parts."""
    most = 7 * WIDTH * VALUE_BYTES
    in_turns: Counter[int] = Counter()
    turn = 0
    finished = Wanted.finished

    def counted(self: Wanted, values: Any) -> list[float]:
        in_turns[turn] += 1
        return finished(self, values)

    async def test(client: Client) -> None:
        def tick() -> None:
            nonlocal turn
            turn += 1
            ticks.append(loop.call_soon(tick))

        loop, ticks = asyncio.get_running_loop(), deque[Any](maxlen=1)
        ids = [index % 290 + 4 for index in range(200)]
        body = {"input": [ids, IDS], "task": "token_embed", "encoding_format": form}
        expected = (await client.post("/pooling", json=body)).json()["data"]
        monkeypatch.setattr("octavo.serving.bounds.turns.PIECE_BYTES", most)
        monkeypatch.setattr("octavo.serving.generation.PART_BYTES", 1000)
        monkeypatch.setattr(Wanted, "finished", counted)
        tick()
        assert (await client.post("/pooling", json=body)).json()["data"] == expected
        ticks[0].cancel()
        assert sum(in_turns.values()) == 203
        assert max(in_turns.values()) <= 9  # three at once, until there are more than seven

    run(directory, test, EMBEDDER)


def test_a_text_with_more_vectors_than_the_engine_can_send_is_refused(directory: Path) -> None:
    width = 1 << 20
    most = VECTOR_BYTES // (4 * width)

    async def test(client: Client) -> None:
        ids = [5] * (most + 1)
        body = {"input": [IDS, ids], "task": "token_embed"}
        answer = await client.post("/pooling", json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "input[1]")
        assert error["code"] == "response_too_large"
        assert f"has {most + 1} tokens" in error["message"]
        assert f"{VECTOR_BYTES} are possible" in error["message"]
        assert f"shorten it to {most} tokens" in error["message"]
        cut = await client.post("/pooling", json={**body, "truncate_prompt_tokens": most})
        assert [len(each["data"]) for each in cut.json()["data"]] == [len(IDS), most]

    run(directory, test, replace(EMBEDDER, width=width), max_response_bytes=1 << 40)


def test_classes_have_names_and_probabilities(directory: Path) -> None:
    logits = raw(IDS, CLASSES)
    powers = [exp(logit) for logit in logits]

    async def test(client: Client) -> None:
        (found,) = (await client.post("/classify", json={"input": IDS})).json()["data"]
        assert found["probs"] == pytest.approx([power / sum(powers) for power in powers])
        assert found["label"] == CLASSIFIER.labels[logits.index(max(logits))]
        assert found["num_classes"] == CLASSES
        body = {"input": [IDS], "use_activation": False}
        (plain,) = (await client.post("/classify", json=body)).json()["data"]
        assert plain["probs"] == pytest.approx(logits)
        pooled = (await client.post("/pooling", json={"input": IDS})).json()["data"][0]["data"]
        assert pooled == found["probs"]

    run(directory, test, CLASSIFIER)


@pytest.mark.parametrize(
    ("path", "body", "param", "code"),
    [
        ("/v1/embeddings", {"input": []}, "input", None),
        ("/v1/embeddings", {"input": ""}, "input", None),
        ("/v1/embeddings", {"input": ["x", ""]}, "input[1]", None),
        ("/v1/embeddings", {"input": [[5], [300]]}, "input[1]", None),
        ("/v1/embeddings", {"input": ["x", 5, [5]]}, "input", None),
        ("/v1/embeddings", {"input": "x", "dimensions": WIDTH + 1}, "dimensions", None),
        ("/v1/embeddings", {"input": "x", "dimensions": 0}, "dimensions", None),
        ("/v1/embeddings", {"input": "x", "encoding_format": "hex"}, "encoding_format", None),
        (
            "/v1/embeddings",
            {"input": "x", "truncate_prompt_tokens": 0},
            "truncate_prompt_tokens",
            None,
        ),
        (
            "/v1/embeddings",
            {"input": "x", "truncate_prompt_tokens": 257},
            "truncate_prompt_tokens",
            None,
        ),
        ("/v1/embeddings", {"input": "x", "prompt_name": "passage"}, "prompt_name", None),
        ("/v1/embeddings", {"input": [[5], [5] * 257]}, "input[1]", "context_length_exceeded"),
        ("/v1/embeddings", {"prompt": "x"}, "input", None),
        ("/classify", {"input": "x"}, "model", "task_not_served"),
        ("/pooling", {"input": "x", "task": "token_classify"}, "model", "task_not_served"),
    ],
)
def test_errors_name_the_field(
    directory: Path, path: str, body: dict[str, Any], param: str, code: str | None
) -> None:
    async def test(client: Client) -> None:
        answer = await client.post(path, json=body)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == (param, code), error

    run(directory, test, EMBEDDER)


def test_a_text_may_fill_the_whole_context(directory: Path) -> None:
    async def test(client: Client) -> None:
        ids = [index % 290 + 4 for index in range(300)]
        body = {"input": [ids[:256], ids], "truncate_prompt_tokens": -1}
        first, second = (await client.post("/v1/embeddings", json=body)).json()["data"]
        assert first["embedding"] == second["embedding"] == pytest.approx(unit(raw(ids[:256])))

    run(directory, test, EMBEDDER)


def test_a_model_without_embeddings_says_what_it_serves(directory: Path) -> None:
    async def test(client: Client) -> None:
        answer = await client.post("/v1/embeddings", json={"input": IDS})
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "task_not_served"
        assert "it serves: classify" in answer.json()["error"]["message"]

    run(directory, test, CLASSIFIER)


@pytest.mark.parametrize("size", [1, 200_000])  # the latter is read by a prompt worker
def test_every_route_that_generates_says_that_the_model_does_not(
    directory: Path, size: int
) -> None:
    text = "x" * size
    messages = [{"role": "user", "content": text}]
    tool = {"type": "function", "function": {"name": "f"}}
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": messages, "tools": [tool]},
        "/v1/completions": {"prompt": text},
        "/v1/responses": {"input": text},
        "/v1/messages": {"messages": messages, "max_tokens": 5},
        "/v1/messages/count_tokens": {"messages": messages},
        "/api/chat": {"model": "tiny", "messages": messages},
        "/api/generate": {"model": "tiny", "prompt": text},
    }

    async def test(client: Client) -> None:
        for path, body in bodies.items():
            answer = await client.post(path, json=body)
            assert answer.status_code == 400, (path, answer.text)
            expected = "is an embedding model and generates no text; it serves: embed (/v1/embedd"
            assert expected in answer.text, path
            if path.startswith("/v1/") and not path.startswith("/v1/messages"):
                assert answer.json()["error"]["code"] == "task_not_served", path

    run(directory, test, EMBEDDER_ALONE)


@pytest.mark.parametrize("size", [1, 200_000])  # the latter is not parsed in the event loop
@pytest.mark.parametrize(("path", "pooling"), [("embeddings", EMBEDDER), ("classify", CLASSIFIER)])
def test_sagemakers_route_takes_an_input(
    directory: Path, size: int, path: str, pooling: PoolingFacts
) -> None:
    async def test(client: Client) -> None:
        body = {"input": "The dog" + " " * size, "truncate_prompt_tokens": 3}
        there = await client.post(f"/v1/{path}" if path == "embeddings" else "/classify", json=body)
        here = await client.post("/invocations", json=body)
        assert (here.status_code, there.status_code) == (200, 200)
        assert here.json()["data"] == there.json()["data"]

    run(directory, test, pooling)


def test_ollamas_description_has_the_length_of_vectors(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(client: Client) -> None:
        facts = client.server.llm.facts
        named = replace(facts, architecture="XLMRobertaModel")
        monkeypatch.setattr(FakeEngine, "facts", named)
        shown = (await client.post("/api/show", json={"model": "tiny"})).json()
        assert shown["capabilities"] == ["embedding"]
        assert shown["details"]["family"] == "xlmroberta"
        assert shown["model_info"]["xlmroberta.embedding_length"] == WIDTH

    run(directory, test, EMBEDDER_ALONE)


def test_answers_that_would_be_too_large_are_refused_before_any_work(directory: Path) -> None:
    async def test(client: Client) -> None:
        answer = await client.post("/v1/embeddings", json={"input": [[5]] * 300})
        assert answer.json()["error"]["code"] == "response_too_large"
        body = {"input": [5] * 250, "task": "token_embed"}
        answer = await client.post("/pooling", json=body)
        assert answer.json()["error"]["code"] == "response_too_large"
        assert (await client.post("/v1/embeddings", json={"input": [[5]] * 200})).status_code == 200

    wide = replace(EMBEDDER, width=1024)
    run(directory, test, wide, max_response_bytes=5 << 20)


def test_a_large_body_is_read_by_a_worker(directory: Path) -> None:
    async def test(client: Client) -> None:
        texts = [f"The quick brown fox {index}. " * 2 for index in range(200)]
        expected = []
        for text in (texts[0], texts[-1]):
            answer = await client.post("/v1/embeddings", json={"input": text})
            expected.append(answer.json()["data"][0]["embedding"])
        texts[5] += "x" * (256 << 10)
        answer = await client.post("/v1/embeddings", json={"input": texts})
        assert answer.json()["error"]["param"] == "input[5]"
        body = {"input": texts, "truncate_prompt_tokens": 100, "prompt_name": "none"}
        data = (await client.post("/v1/embeddings", json=body)).json()["data"]
        assert len(data) == len(texts)
        assert [data[0]["embedding"], data[-1]["embedding"]] == expected

    run(directory, test, EMBEDDER)
