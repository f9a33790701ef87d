"""/v1/completions, field by field."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.server.engine import ChainRunner, FakeEngine
from tests.server.make import LIMIT, events, serving, until
from tests.server.openai.calls import PROMPT, run


def test_a_text_is_continued(directory: Path) -> None:
    body = run(directory, max_tokens=5, temperature=0)
    (choice,) = body["choices"]
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["model"] == "tiny"
    assert choice["finish_reason"] == "length"
    assert choice["stop_reason"] is None
    assert body["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 5,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def test_max_tokens_is_16_by_default(directory: Path) -> None:
    for fields in ({}, {"max_tokens": None}):
        assert run(directory, **fields)["usage"]["completion_tokens"] == 16


def test_a_stream_gives_the_same_text(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            fields = {"max_tokens": 20, "seed": 5, "n": 2}
            whole = await client.complete(**fields)
            body = {"prompt": PROMPT, "stream": True, **fields}
            response = await client.post("/v1/completions", json=body)
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            texts, reasons = {0: "", 1: ""}, {}
            for chunk in events(response.text):
                for choice in chunk["choices"]:
                    texts[choice["index"]] += choice["text"]
                    if choice["finish_reason"]:
                        assert choice["index"] not in reasons, "one end each"
                        reasons[choice["index"]] = choice["finish_reason"]
            assert texts == {each["index"]: each["text"] for each in whole["choices"]}
            assert reasons == {0: "length", 1: "length"}

    asyncio.run(main())


def test_prompts_may_be_ids_and_many(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            tokens = (await client.post("/tokenize", json={"prompt": PROMPT})).json()["tokens"]
            fields = {"max_tokens": 4, "temperature": 0}
            text = (await client.complete(**fields))["choices"][0]["text"]
            by_ids = await client.complete(prompt=tokens, **fields)
            assert by_ids["choices"][0]["text"] == text
            body = await client.complete(prompt=[PROMPT, "A day", tokens], **fields)
            assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
            assert body["choices"][0]["text"] == body["choices"][2]["text"] == text
            sampled = await client.complete(prompt=["A", "B"], n=2, seed=1, max_tokens=2)
            assert [choice["index"] for choice in sampled["choices"]] == [0, 1, 2, 3]
            assert sampled["usage"]["completion_tokens"] == 8
            streamed = await client.post(
                "/v1/completions", json={"prompt": ["A", "B"], "stream": True, "max_tokens": 2}
            )
            found = {c["index"] for e in events(streamed.text) for c in e["choices"]}
            assert found == {0, 1}

    asyncio.run(main())


def test_stop_strings_and_stop_tokens(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            fields = {"max_tokens": 12, "temperature": 0, "return_token_ids": True}
            plain = (await client.complete(**fields))["choices"][0]
            third = plain["token_ids"][3]
            ended = (await client.complete(stop_token_ids=[third], **fields))["choices"][0]
            assert ended["finish_reason"] == "stop"
            assert ended["stop_reason"] == third
            assert ended["token_ids"] == plain["token_ids"][:4]
            character = plain["text"][2]
            stopped = (await client.complete(stop=character, **fields))["choices"][0]
            assert stopped["stop_reason"] == character
            assert stopped["text"] == plain["text"].partition(character)[0]
            kept = await client.complete(
                stop=[character], include_stop_str_in_output=True, **fields
            )
            assert kept["choices"][0]["text"].endswith(character)

    asyncio.run(main())


def test_cached_prompt_tokens_are_reported(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            fields = {"prompt": list(range(2, 40)), "max_tokens": 1}
            await client.complete(**fields)
            usage = (await client.complete(**fields))["usage"]
            assert usage["prompt_tokens_details"] == {"cached_tokens": 36}
            stopped = await client.complete(
                **{**fields, "max_tokens": 9}, stop=[" ", "a", "e", "t"]
            )
            assert stopped["choices"][0]["finish_reason"] == "stop"  # before the core knew
            assert stopped["usage"]["prompt_tokens_details"] == {"cached_tokens": 36}
            salted = (await client.complete(cache_salt="mine", **fields))["usage"]
            assert salted["prompt_tokens_details"] == {"cached_tokens": 0}

    asyncio.run(main())


def test_prompts_are_cut_when_asked(directory: Path) -> None:
    ids = list(range(2, 102))
    left = run(
        directory, prompt=ids, truncate_prompt_tokens=10, return_token_ids=True, max_tokens=1
    )
    assert left["choices"][0]["prompt_token_ids"] == ids[-10:]
    right = run(
        directory,
        prompt=ids,
        truncate_prompt_tokens=10,
        truncation_side="right",
        return_token_ids=True,
        max_tokens=1,
    )
    assert right["choices"][0]["prompt_token_ids"] == ids[:10]
    most = run(directory, prompt=[5] * 400, truncate_prompt_tokens=-1, max_tokens=6)
    assert most["usage"]["prompt_tokens"] == 250


def test_min_tokens_goes_beyond_no_limit(directory: Path) -> None:
    more = run(directory, min_tokens=20, ignore_eos=True)
    assert more["usage"]["completion_tokens"] == 20  # 16 is only the default

    async def main() -> None:
        async with serving(directory, max_output_tokens=5) as client:
            body = {"prompt": "x", "min_tokens": 9, "max_tokens": 20}
            response = await client.post("/v1/completions", json=body)
            assert response.status_code == 400
            assert "more than the 5 that this server gives" in response.text

    asyncio.run(main())


def test_integers_may_be_written_as_floats(directory: Path) -> None:
    assert run(directory, max_tokens=2.0, n=1.0)["usage"]["completion_tokens"] == 2


def test_harmless_forms_are_taken(directory: Path) -> None:
    harmless: dict[str, Any] = {
        "suffix": None,
        "best_of": 1,
        "user": "u",
        "metadata": {"a": "b"},
        "store": False,
        "use_beam_search": False,
        "logit_bias": None,
        "guided_json": None,
        "response_format": {"type": "text"},
        "stream_options": None,
    }
    assert "choices" in run(directory, max_tokens=1, **harmless)


def test_an_unknown_model_is_404(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            response = await client.post("/v1/completions", json={"model": "gpt-9", "prompt": "x"})
            assert response.status_code == 404
            assert response.json()["error"]["code"] == "model_not_found"
            assert response.json()["error"]["param"] == "model"
        async with serving(directory, served_model_name=("a", "b")) as client:
            for name in ("a", "b"):
                response = await client.complete(model=name, max_tokens=1)
                assert response["model"] == "a"
                assert (await client.get(f"/v1/models/{name}")).json()["id"] == name
            listed = (await client.get("/v1/models")).json()["data"]
            assert [card["id"] for card in listed] == ["a", "b"]
            error = (await client.complete(model="c"))["error"]
            assert error["message"].endswith("does not exist; this server has 'a' or 'b'")
            assert 'model_name="a"' in (await client.get("/metrics")).text

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v1/completion", "/v1/completions"),
        ("/v1/v1/completions", "/v1/completions"),
        ("//v1/completions", "/v1/completions"),
        ("/v1/tokenize", "/tokenize"),
        ("/v1/nothing", None),
    ],
)
def test_a_similar_path_is_suggested(directory: Path, path: str, meant: str | None) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            response = await client.post(f"http://localhost{path}", json={"prompt": "x"})
            message = response.json()["error"]["message"]
            advice = f"did you mean {meant}? " if meant else "GET /docs lists"
            assert response.status_code == 404
            assert f"there is no such route; {advice}" in message

    asyncio.run(main())


def test_a_seed_of_minus_one_is_none(directory: Path) -> None:
    """Two unseeded texts differ; a seed gives the same text twice."""

    async def main() -> None:
        async with serving(directory) as client:
            fields = {"max_tokens": 20, "temperature": 1.0, "ignore_eos": True}
            for seed, num_texts in ((7, 1), (-1, 2)):
                answers = [await client.complete(**fields, seed=seed) for _ in range(2)]
                assert len({answer["choices"][0]["text"] for answer in answers}) == num_texts

    asyncio.run(main())


def test_unknown_fields_are_reported_or_refused(directory: Path) -> None:
    async def main() -> None:
        body = {"prompt": "x", "max_tokens": 1, "temprature": 1, "zzz\r\nx: y": 2}
        async with serving(directory) as client:
            response = await client.post("/v1/completions", json=body)
            assert response.status_code == 200
            reported = response.headers["x-octavo-unknown-fields"]
            assert reported == "temprature,zzz%0D%0Ax:%20y"
            assert client.server.metrics.unknown_fields.value() == 2
        async with serving(directory, strict=True) as client:
            error = (await client.post("/v1/completions", json=body)).json()["error"]
            assert error["param"] == "temprature"
            assert "did you mean 'temperature'?" in error["message"]

    asyncio.run(main())


def test_unknown_nested_fields_are_reported_by_path(directory: Path) -> None:
    async def main() -> None:
        body = {
            "prompt": "x",
            "max_tokens": 1,
            "stream": True,
            "stream_options": {"include_usage": True, "includ_obfuscation": 1, "a b": []},
        }
        async with serving(directory) as client:
            response = await client.post("/v1/completions", json=body)
            assert events(response.text)[-1]["usage"]["completion_tokens"] == 1
            reported = response.headers["x-octavo-unknown-fields"].split(",")
            assert set(reported) == {
                "stream_options.includ_obfuscation",
                "stream_options.a%20b",
            }
            assert client.server.metrics.unknown_fields.value() == 2
        async with serving(directory, strict=True) as client:
            error = (await client.post("/v1/completions", json=body)).json()["error"]
            assert error["code"] == "unknown_parameter"
            assert error["param"] == "stream_options.includ_obfuscation"
            assert "did you mean 'include_obfuscation'?" in error["message"]

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_request_is_refused_before_it_waits_for_the_engine(
    directory: Path, stream: bool
) -> None:
    gate = threading.Event()
    engine = FakeEngine(directory, runner=ChainRunner(lambda: gate.wait(LIMIT)))

    async def main() -> None:
        async with serving(directory, engine, max_running_sequences=1) as client:
            running = asyncio.ensure_future(client.complete(max_tokens=2))
            await until(lambda: client.server.admission.num_admitted == 1)
            for fields in ({"prompt": [5] * 256}, {"logprobs": 21}, {"prompt": [[2], [300]]}):
                body = {"prompt": "x", "stream": stream, **fields}
                response = await client.post("/v1/completions", json=body)
                assert response.status_code == 400
            gate.set()
            assert "choices" in await running
            assert client.server.admission.num_open == 0

    asyncio.run(main())
