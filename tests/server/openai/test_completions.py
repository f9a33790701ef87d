"""/v1/completions, field by field."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from octavo.server.http.route import Route
from octavo.server.routes import ROUTES
from tests.server.engine import ChainRunner, FakeEngine
from tests.server.make import LIMIT, Client, events, serving, until

PROMPT = "The quick"


def run(directory: Path, **fields: Any) -> Any:
    async def main() -> Any:
        async with serving(directory) as client:
            return await client.complete(**fields)

    return asyncio.run(main())


def error_of(directory: Path, **fields: Any) -> Any:
    body = run(directory, **fields)
    assert set(body) == {"error"}, body
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]


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


def test_usage_is_streamed_when_asked_for(directory: Path) -> None:
    async def chunks(client: Client, **options: Any) -> list[Any]:
        body = {"prompt": PROMPT, "stream": True, "max_tokens": 8, "stream_options": options}
        return events((await client.post("/v1/completions", json=body)).text)

    async def main() -> None:
        async with serving(directory) as client:
            plain = await chunks(client)
            assert all("usage" not in chunk and chunk["choices"] for chunk in plain)
            last = (await chunks(client, include_usage=True))[-1]
            assert last["choices"] == []
            assert last["usage"]["completion_tokens"] == 8
            always = await chunks(client, continuous_usage_stats=True)
            assert all("usage" in chunk for chunk in always)

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


def test_echo_with_logprobs_is_what_lm_eval_reads(directory: Path) -> None:
    """Log-likelihoods: the prompt's tokens come first, the one generated token is the last."""
    body = run(directory, echo=True, logprobs=1, max_tokens=1, temperature=0)
    (choice,) = body["choices"]
    said = choice["logprobs"]
    assert len(said["tokens"]) == 8
    assert said["token_logprobs"][0] is None
    assert said["top_logprobs"][0] is None
    assert all(isinstance(value, float) for value in said["token_logprobs"][1:])
    assert "".join(said["tokens"][:7]) == PROMPT
    assert choice["text"].startswith(PROMPT)
    assert said["text_offset"][:3] == [0, 2, 3]
    for token, logprob, top in zip(
        said["tokens"][1:], said["token_logprobs"][1:], said["top_logprobs"][1:], strict=True
    ):
        assert top[token] == logprob, "the chosen token is always among them"


def test_echo_of_nothing_but_the_prompt(directory: Path) -> None:
    body = run(directory, echo=True, logprobs=2, max_tokens=0)
    (choice,) = body["choices"]
    assert choice["text"] == PROMPT
    assert choice["finish_reason"] == "length"
    assert len(choice["logprobs"]["tokens"]) == 7
    assert body["usage"]["completion_tokens"] == 0


def test_logprobs_of_a_stream_are_those_of_the_whole(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            fields = {"logprobs": 3, "max_tokens": 9, "temperature": 0, "echo": True}
            whole = (await client.complete(**fields))["choices"][0]["logprobs"]
            body = {"prompt": PROMPT, "stream": True, **fields}
            chunks = events((await client.post("/v1/completions", json=body)).text)
            for name, values in whole.items():
                parts = [c["logprobs"][name] for e in chunks for c in e["choices"]]
                assert [value for part in parts for value in part] == values

    asyncio.run(main())


def test_prompt_logprobs_and_token_ids(directory: Path) -> None:
    body = run(directory, prompt_logprobs=1, return_token_ids=True, max_tokens=3)
    (choice,) = body["choices"]
    assert choice["prompt_logprobs"][0] is None
    assert len(choice["prompt_logprobs"]) == 7
    entry = choice["prompt_logprobs"][1]
    assert str(choice["prompt_token_ids"][1]) in entry
    assert set(next(iter(entry.values()))) == {"logprob", "rank", "decoded_token"}
    assert len(choice["token_ids"]) == 3
    named = run(directory, logprobs=1, return_tokens_as_token_ids=True, max_tokens=1)
    assert named["choices"][0]["logprobs"]["tokens"][0].startswith("token_id:")


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


def test_max_tokens_is_clipped_to_the_context(directory: Path) -> None:
    body = run(directory, prompt=[5] * 250, max_tokens=5000)
    assert body["usage"]["completion_tokens"] == 6


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


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"temperature": 3}, "temperature", "2.0"),
        ({"temperature": "hot"}, "temperature", "expected number or null, got string"),
        ({"top_p": 0}, "top_p", "> 0.0"),
        ({"n": 0}, "n", ">= 1"),
        ({"n": 2, "temperature": 0}, "n", "the same text"),
        ({"max_tokens": -1}, "max_tokens", ">= 0"),
        ({"max_tokens": 0}, "max_tokens", "needs echo"),
        ({"min_tokens": 9, "max_tokens": 5000, "logprobs": 21}, "logprobs", "max_logprobs=20"),
        ({"min_tokens": 9, "max_tokens": 4}, "min_tokens", "more than max_tokens=4"),
        ({"min_tokens": 255, "max_tokens": 300}, "min_tokens", "that the context leaves"),
        ({"seed": 2**63}, "seed", "9223372036854775807"),
        ({"stop": ["x"] * 17}, "stop", "<= 16"),
        ({"stop": ""}, "stop", ">= 1"),
        ({"logit_bias": {"900": 1}}, "logit_bias", "vocabulary has 300"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "the key 'x', which is no token id"),
        ({"logit_bias": {"1": 2, "7": "x"}}, "logit_bias", "number, got string under '7'"),
        ({"logit_bias": {"7": None}}, "logit_bias", "got null under '7'"),
        ({"truncation_side": "mid"}, "truncation_side", "one of 'left', 'right', got 'mid'"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "leaves nothing"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "no token could be chosen"),
        ({"prompt": []}, "prompt", "empty list"),
        ({"prompt": ""}, "prompt", "no tokens"),
        ({"prompt": [1, "x"]}, "prompt", "mixes"),
        ({"prompt": [1, 300]}, "prompt", "300"),
        ({"prompt": [-1]}, "prompt[0]", ">= 0"),
        ({"prompt": None}, "prompt", "got null"),
        ({"prompt": ["x"] * 2049}, "prompt", "2049"),
        ({"prompt": ["x"] * 1025, "n": 2}, "prompt", "more than 2048"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream=true"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs", "not streamed"),
        ({"suffix": "end"}, "suffix", "suffix"),
        ({"best_of": 2}, "best_of", "best_of: the best answer is not selected; use n"),
        ({"stream_options": 5}, "stream_options", "stream_options: expected object"),
        ({"use_beam_search": True}, "use_beam_search", "beam search"),
        ({"guided_json": {"type": "object"}}, "guided_json", "structured output"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs", "structured output"),
        ({"deadline_ms": 0}, "deadline_ms", ">= 1"),
        ({"priority": 2_000_000}, "priority", "<= 1000000"),
        ({"cache_salt": ""}, "cache_salt", ">= 1"),
        ({"prompt": [5] * 256}, "prompt", "max_model_len=256"),
        ({"prompt": [[1], [5] * 256]}, "prompt[1]", "prompt[1] has 256 tokens"),
        ({"prompt": [[1], [2], [1, 300]]}, "prompt[2]", "prompt[2]: prompt_token_ids[1] is 300"),
        ({"prompt": ["x", ""]}, "prompt[1]", "prompt[1] has no tokens"),
    ],
)
def test_the_wrong_field_is_named(directory: Path, fields: Any, param: str, words: str) -> None:
    error = error_of(directory, **fields)
    assert error["param"] == param, error
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"
    assert error["message"].count(f"{param}:") <= 1
    assert "`" not in error["message"]


@pytest.mark.parametrize("route", [each for each in ROUTES if each.request is not None])
def test_every_field_that_is_wrong_is_named_once(directory: Path, route: Route) -> None:
    """The message uses the terms of JSON for every field; fields of any type are skipped."""

    messages = [{"role": "user", "content": "x"}]
    least: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "x", "max_tokens": 1},
        "/v1/chat/completions": {"messages": messages, "max_tokens": 1},
        "/tokenize": {},
        "/detokenize": {"tokens": []},
    }

    values = (
        b'{"a": [1]}',
        b"[[{}]]",
        b'"wrong"',
        b"-7.5",
        b"1e400",
        b'"\xff"',
        b"[" * 30 + b"]" * 30,
    )

    async def main() -> None:
        assert route.request is not None
        async with serving(directory) as client:
            for name in route.request.__struct_fields__:
                for wrong in values:
                    rest = {key: each for key, each in least[route.path].items() if key != name}
                    text = json.dumps(rest).replace("{", ", " if rest else "", 1).encode()
                    body = b'{"%b": %b%b' % (name.encode(), wrong, text)
                    response = await client.post(route.path, content=body)
                    if response.status_code == 200:
                        continue
                    error = response.json()["error"]
                    message = error["message"]
                    if "give either" in message:  # a conversation, or a text?
                        continue
                    assert re.split(r"[.\[]", error["param"])[0] == name, (wrong, error)
                    assert len(re.findall(rf"\b{name}\b", message)) == 1, message
                    assert not re.search(r"\b(str|int|float|bool|enum)\b|\.\.\.|`", message)

    asyncio.run(main())


def test_integers_may_be_written_as_floats(directory: Path) -> None:
    assert run(directory, max_tokens=2.0, n=1.0)["usage"]["completion_tokens"] == 2


def test_harmless_forms_are_taken(directory: Path) -> None:
    harmless = {
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
        ("/completions", "/v1/completions"),
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
            assert response.headers["x-octavo-unknown-fields"] == "temprature"
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
            "response_format": {"type": "text", "json_schema": None, "strictly": True},
        }
        async with serving(directory) as client:
            response = await client.post("/v1/completions", json=body)
            assert events(response.text)[-1]["usage"]["completion_tokens"] == 1
            reported = response.headers["x-octavo-unknown-fields"].split(",")
            assert set(reported) == {
                "stream_options.includ_obfuscation",
                "response_format.strictly",
            }
            assert client.server.metrics.unknown_fields.value() == 3
        async with serving(directory, strict=True) as client:
            del body["response_format"]
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
