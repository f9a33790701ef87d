"""Log-probabilities over HTTP: the tokens together are the text, and every offset is in it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from octavo.text.tokenizer import Tokenizer
from octavo.text.tokenizer_files import tokenizer_from_directory
from tests.server.engine import END, VOCABULARY, ChainRunner, FakeEngine, make_directory
from tests.server.make import Client, events, serving
from tests.server.openai.calls import PROMPT, run, streamed

SPLIT = "5 € — 𝄞ß, \U0001f469\u200d\U0001f4bb!"  # most of its characters have several tokens
MESSAGES = [{"role": "user", "content": "x"}]
REPLACEMENT = "\ufffd"


@cache
def tokenizer_of(directory: Path) -> Tokenizer:
    return tokenizer_from_directory(directory)


def saying(directory: Path, tokens: Sequence[int], **options: Any) -> FakeEngine:
    """Return an engine whose answers have these tokens."""
    return FakeEngine(directory, runner=ChainRunner(script=tokens), **options)


def check(choice: Any, text: str, num_hidden: int = 0) -> None:
    """Assert that the tokens are the text; the last `num_hidden` are not in it."""
    said = choice["logprobs"]
    tokens, offsets = said["tokens"], said["text_offset"]
    visible = len(tokens) - num_hidden
    assert "".join(tokens[:visible]) == choice["text"] == text
    assert offsets[:visible] == [len("".join(tokens[:place])) for place in range(visible)]
    assert offsets[visible:] == [len(text)] * num_hidden
    for token, logprob, top in zip(
        tokens, said["token_logprobs"], said["top_logprobs"], strict=True
    ):
        assert (top is None) == (logprob is None)
        assert top is None or next(iter(top.items())) == (token, logprob), "the chosen comes first"


def test_the_tokens_of_a_split_character_are_together_the_character(directory: Path) -> None:
    ids = tokenizer_of(directory).encode(SPLIT)
    assert len(ids) > len(SPLIT) + 9

    async def main() -> None:
        engine = saying(directory, ids)
        async with serving(directory, engine) as client:
            for most in (0, 1, 5):
                fields: dict[str, Any] = {"max_tokens": len(ids), "logprobs": most}
                fields["return_token_ids"] = True
                (choice,) = (await client.complete(**fields))["choices"]
                assert choice["token_ids"] == ids
                check(choice, SPLIT)
                assert "" in choice["logprobs"]["tokens"]
                assert REPLACEMENT not in "".join(choice["logprobs"]["tokens"])
                chunks = await streamed(client, **fields)
                for name, values in choice["logprobs"].items():
                    parts = [c["logprobs"][name] for e in chunks for c in e["choices"]]
                    assert [value for part in parts for value in part] == values
            chat = {"max_tokens": len(ids), "logprobs": True, "top_logprobs": 3}
            answer = (await client.chat("x", **chat))["choices"][0]
            content = answer["logprobs"]["content"]
            assert "".join(each["token"] for each in content) == SPLIT
            assert bytes(byte for each in content for byte in each["bytes"]) == SPLIT.encode()
            chunks = await streamed(client, "/v1/chat/completions", messages=MESSAGES, **chat)
            sent = [
                c["logprobs"]["content"] for e in chunks for c in e["choices"] if "logprobs" in c
            ]
            assert [each for part in sent for each in part] == content

    asyncio.run(main())


@pytest.mark.parametrize("text", [SPLIT, "€", "x€y"])
def test_an_echoed_prompt_is_its_tokens_too(directory: Path, text: str) -> None:
    ids = tokenizer_of(directory).encode(text)

    async def main() -> None:
        async with serving(directory, saying(directory, ids)) as client:
            for prompt in (text, ids):
                fields: dict[str, Any] = {"prompt": prompt, "echo": True, "logprobs": 2}
                (choice,) = (await client.complete(max_tokens=0, **fields))["choices"]
                check(choice, text)
                (choice,) = (await client.complete(max_tokens=len(ids), **fields))["choices"]
                check(choice, text + text)
                chunks = await streamed(client, max_tokens=len(ids), **fields)
                for name, values in choice["logprobs"].items():
                    parts = [c["logprobs"][name] for e in chunks for c in e["choices"]]
                    assert [value for part in parts for value in part] == values

    asyncio.run(main())


def test_a_character_that_stays_incomplete_is_one_mark(directory: Path) -> None:
    ids = tokenizer_of(directory).encode("a€")[:-1]
    (choice,) = run(directory, saying(directory, ids), max_tokens=len(ids), logprobs=1)["choices"]
    check(choice, "a" + REPLACEMENT)
    fields: dict[str, Any] = {"prompt": ids, "echo": True, "logprobs": 1, "max_tokens": 0}
    (choice,) = run(directory, **fields)["choices"]
    check(choice, "a" + REPLACEMENT)


def test_offsets_pass_over_what_the_text_leaves_out(directory: Path) -> None:
    """A special token and the token that ends a text have names, and no place in the text."""
    one, two = (tokenizer_of(directory).encode(text) for text in ("one ", "two"))
    ids = [*one, END, *two]
    fields: dict[str, Any] = {"max_tokens": len(ids), "logprobs": 1, "ignore_eos": True}
    (choice,) = run(directory, saying(directory, ids), **fields)["choices"]
    said = choice["logprobs"]
    assert choice["text"] == "one two"
    assert said["tokens"][len(one)] == "</s>"
    assert said["text_offset"][len(one) : len(one) + 2] == [4, 4]
    shown = {**fields, "skip_special_tokens": False}
    (choice,) = run(directory, saying(directory, ids), **shown)["choices"]
    check(choice, "one </s>two")
    (choice,) = run(directory, saying(directory, ids), max_tokens=20, logprobs=1)["choices"]
    assert choice["finish_reason"] == "stop"
    check(choice, "one ", num_hidden=1)
    stop = {"max_tokens": 20, "logprobs": 1, "stop_token_ids": [one[1]]}
    (choice,) = run(directory, saying(directory, one), **stop)["choices"]
    check(choice, tokenizer_of(directory).decode(one[:1]), num_hidden=1)
    kept = {**stop, "include_stop_str_in_output": True}
    (choice,) = run(directory, saying(directory, one), **kept)["choices"]
    check(choice, tokenizer_of(directory).decode(one[:2]))


def test_a_special_token_that_the_tokenizer_adds_is_not_in_the_prompts_text(
    tmp_path: Path,
) -> None:
    directory = make_directory(tmp_path)
    add_bos(directory / "tokenizer.json")
    fields: dict[str, Any] = {"prompt": PROMPT, "echo": True, "logprobs": 0, "max_tokens": 1}
    (choice,) = run(directory, **fields)["choices"]
    said = choice["logprobs"]
    assert said["tokens"][0] == "<s>"
    assert said["text_offset"][:3] == [0, 0, 2]
    assert choice["text"] == "".join(said["tokens"][1:])


def add_bos(file: Path) -> None:
    """Make a tokenizer put <s> before each text."""
    settings = json.loads(file.read_text())
    settings["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
    }
    file.write_text(json.dumps(settings))


@pytest.mark.parametrize("echo", [False, True])
def test_completions_that_ask_for_logprobs_as_chats_do_have_none(
    directory: Path, echo: bool
) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            body = {"prompt": PROMPT, "max_tokens": 3, "temperature": 0, "echo": echo}
            plain = (await client.complete(**body))["choices"]
            assert (await client.complete(**body, logprobs=False))["choices"] == plain
            assert plain[0]["logprobs"] is None
            refused = await client.post("/v1/completions", json={**body, "logprobs": True})
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "logprobs"

    asyncio.run(main())


def test_without_likeliest_tokens_the_chosen_stays(directory: Path) -> None:
    (choice,) = run(directory, logprobs=0, max_tokens=5)["choices"]
    said = choice["logprobs"]
    for token, logprob, top in zip(
        said["tokens"], said["token_logprobs"], said["top_logprobs"], strict=True
    ):
        assert top == {token: logprob}


@pytest.mark.parametrize("temperature", [0, 1])
def test_the_chosen_token_and_the_likeliest_are_all_there(
    directory: Path, temperature: int
) -> None:
    """Several of them may add the same text, or none: then their ids tell them apart."""
    for most in (1, 7, 20):
        asked: dict[str, Any] = {"logprobs": most, "max_tokens": 30, "seed": 3}
        asked["temperature"] = temperature
        (choice,) = run(directory, **asked)["choices"]
        check(choice, choice["text"])
        tops = choice["logprobs"]["top_logprobs"]
        assert {len(top) for top in tops} <= {most, most + 1}
        assert any(name.startswith("token_id:") for top in tops for name in top) or most < 7
        by_id = run(directory, **asked, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]
        assert [list(top.values()) for top in by_id["top_logprobs"]] == [
            list(top.values()) for top in tops
        ]
        assert by_id["text_offset"] == choice["logprobs"]["text_offset"]


@pytest.mark.parametrize("max_logprobs", [-1, VOCABULARY])
def test_minus_one_means_the_whole_vocabulary(directory: Path, max_logprobs: int) -> None:
    async def main() -> None:
        engine = FakeEngine(directory, max_logprobs=max_logprobs)
        async with serving(directory, engine) as client:
            fields: dict[str, Any] = {"max_tokens": 2, "temperature": 0}
            answer = await client.chat(logprobs=True, top_logprobs=-1, prompt_logprobs=-1, **fields)
            for token in answer["choices"][0]["logprobs"]["content"]:
                assert len(token["top_logprobs"]) == VOCABULARY
            assert answer["prompt_logprobs"][0] is None
            assert {len(each) for each in answer["prompt_logprobs"][1:]} == {VOCABULARY}
            said = (await client.complete(logprobs=-1, **fields))["choices"][0]["logprobs"]
            assert {len(each) for each in said["top_logprobs"]} == {VOCABULARY}
            error = (await client.complete(logprobs=VOCABULARY + 1))["error"]
            assert error["param"] == "logprobs"

    asyncio.run(main())


def test_minus_one_is_refused_by_a_smaller_limit(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory, FakeEngine(directory, max_logprobs=VOCABULARY - 1)) as client:
            error = (await client.chat(logprobs=True, top_logprobs=-1))["error"]
            assert error["param"] == "top_logprobs"
            assert f"the whole vocabulary of {VOCABULARY} tokens" in error["message"]
            assert f"max_logprobs={VOCABULARY - 1}" in error["message"]

    asyncio.run(main())


def test_prompt_logprobs_beside_an_echo_are_as_many_as_asked_for(directory: Path) -> None:
    fields: dict[str, Any] = {"echo": True, "logprobs": 1, "prompt_logprobs": 4}
    (choice,) = run(directory, max_tokens=1, **fields)["choices"]
    assert {len(each) for each in choice["prompt_logprobs"][1:]} <= {4, 5}
    assert {len(each) for each in choice["logprobs"]["top_logprobs"][1:]} == {2}


def test_every_sample_of_a_stream_echoes_the_prompts_logprobs(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            fields: dict[str, Any] = {"echo": True, "logprobs": 1, "max_tokens": 3, "n": 3}
            fields["seed"] = 1
            whole = await client.complete(**fields)
            chunks = await streamed(client, **fields)
            for choice in whole["choices"]:
                said = choice["logprobs"]
                assert None not in said["token_logprobs"][1:]
                mine = [c for e in chunks for c in e["choices"] if c["index"] == choice["index"]]
                parts = [c["logprobs"]["token_logprobs"] for c in mine]
                assert [value for part in parts for value in part] == said["token_logprobs"]

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


def test_a_flag_names_tokens_by_their_ids_and_a_request_has_the_last_word(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory, return_tokens_as_token_ids=True) as client:
            asked: dict[str, Any] = {"max_tokens": 2, "logprobs": 1}
            chat: dict[str, Any] = {"max_tokens": 2, "logprobs": True, "top_logprobs": 1}
            for said, is_named in ((None, True), (True, True), (False, False)):
                asked["return_tokens_as_token_ids"] = chat["return_tokens_as_token_ids"] = said
                (choice,) = (await client.complete(**asked))["choices"]
                found = [token.startswith("token_id:") for token in choice["logprobs"]["tokens"]]
                assert found == [is_named] * 2
                (choice,) = (await client.chat(**chat))["choices"]
                found = [
                    entry["token"].startswith("token_id:")
                    for token in choice["logprobs"]["content"]
                    for entry in (token, *token["top_logprobs"])
                ]
                assert found
                assert set(found) == {is_named}

    asyncio.run(main())


@pytest.mark.parametrize("is_stream", [False, True])
def test_named_tokens_stand_in_place_of_the_likeliest(directory: Path, is_stream: bool) -> None:
    """Every position has them, whatever number of likely tokens the request asks for."""
    named = [9, 250, 31]
    fields = {"max_tokens": 4, "temperature": 0, "logprob_token_ids": named}
    fields["return_tokens_as_token_ids"] = True

    async def ask(client: Client, path: str, body: dict[str, Any]) -> list[Any]:
        response = await client.post(path, json={**body, "stream": is_stream})
        payloads = events(response.text) if is_stream else [response.json()]
        found = [choice.get("logprobs") for each in payloads for choice in each["choices"]]
        return [each for each in found if each]

    async def main() -> None:
        async with serving(directory) as client:
            body = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 1, **fields}
            said = await ask(client, "/v1/chat/completions", body)
            positions = [each for part in said for each in part["content"]]
            whole = {**body, "top_logprobs": -1, "stream": False}
            del whole["logprob_token_ids"]
            client.server.llm.model.max_logprobs = -1
            answer = (await client.post("/v1/chat/completions", json=whole)).json()
            right = answer["choices"][0]["logprobs"]["content"]
            assert len(positions) == len(right) == 4
            for position, others in zip(positions, right, strict=True):
                assert position["token"] == others["token"]
                values = {each["token"]: each["logprob"] for each in others["top_logprobs"]}
                found = {each["token"]: each["logprob"] for each in position["top_logprobs"]}
                listed = {position["token"], *(f"token_id:{id}" for id in named)}
                assert found == {name: values[name] for name in listed}
                assert list(found.values()) == sorted(found.values(), reverse=True)
            for most in (0, 2):
                body = {"prompt": PROMPT, "logprobs": most, **fields}
                said = await ask(client, "/v1/completions", body)
                tops = [each for part in said for each in part["top_logprobs"]]
                tokens = [each for part in said for each in part["tokens"]]
                assert len(tops) == 4
                for top, token in zip(tops, tokens, strict=True):
                    assert set(top) == {token, *(f"token_id:{id}" for id in named)}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        ("/v1/completions", {"prompt": "x", "logprob_token_ids": [5]}),
        ("/v1/chat/completions", {"messages": MESSAGES, "logprob_token_ids": [5]}),
        ("/v1/completions", {"prompt": "x", "logprobs": 0, "logprob_token_ids": [VOCABULARY]}),
        ("/v1/completions", {"prompt": "x", "logprobs": 0, "logprob_token_ids": [*range(129)]}),
    ],
)
def test_named_tokens_that_cannot_be_shown_are_refused(
    directory: Path, path: str, changes: dict[str, Any]
) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            response = await client.post(path, json=changes)
            assert response.status_code == 400
            assert response.json()["error"]["param"] == "logprob_token_ids"

    asyncio.run(main())
