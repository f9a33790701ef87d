"""OpenAI's own client on a real socket: it validates every answer strictly.

The newest is the one installed; a 1.x lives in a directory of its own: `make build/openai-1`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.server.make import LIMIT, listening

MESSAGES = [{"role": "user", "content": "Hello"}]
OLD = Path(__file__).parents[2] / "build" / "openai-1"


def client_of(port: int, key: str = "none") -> Any:
    # As Any: the overloads of its methods do not take a dict of arguments.
    return OpenAI(
        base_url=f"http://127.0.0.1:{port}/v1",
        api_key=key,
        max_retries=0,
        timeout=LIMIT,
        _strict_response_validation=True,
    )


def use(client: Any) -> None:
    """Use every part of the two dialects for which the client has types."""
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "octavo"
    create = client.chat.completions.create
    common = {"model": "tiny", "messages": MESSAGES, "max_completion_tokens": 6, "seed": 1}
    answer = create(**common, n=2, logprobs=True, top_logprobs=2, stop=["\u2603"])
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2
    plain = create(**common)
    chunks = list(create(**common, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == plain.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 6
    assert chunks[0].choices[0].delta.role == "assistant"
    probable = list(create(**common, stream=True, logprobs=True))
    tokens = [t for c in probable if c.choices[0].logprobs for t in c.choices[0].logprobs.content]
    assert len(tokens) == 6
    complete = client.completions.create
    body = {"model": "tiny", "prompt": "The quick", "max_tokens": 5, "temperature": 0}
    whole = complete(**body, logprobs=2)
    assert len(whole.choices[0].logprobs.tokens) == 5
    # OpenAI too sends "finish_reason": null before the end, which its own strict type refuses.
    lenient: Any
    with OpenAI(base_url=client.base_url, api_key=client.api_key) as lenient:
        parts = lenient.completions.create(**body, stream=True)
        assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text
    raw = client.chat.completions.with_raw_response.create(**common)
    assert raw.headers["x-request-id"] == raw.parse().id.removeprefix("chatcmpl-")


def fail(client: Any) -> None:
    """Assert that errors become the client's own exceptions, with their fields."""
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-9", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    assert missing.value.param == "model"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=9)
    assert wrong.value.param == "temperature"
    assert wrong.value.type == "invalid_request_error"


def test_the_newest_client(directory: Path) -> None:
    with listening(directory) as life, client_of(life.port) as client:
        use(client)
        fail(client)


def test_keys(directory: Path) -> None:
    with listening(directory, api_keys=("a-long-secret",)) as life:
        with client_of(life.port, "a-long-secret") as client:
            assert client.models.list().data[0].id == "tiny"
        with client_of(life.port) as client, pytest.raises(openai.AuthenticationError):
            client.models.list()


def test_beta_stream_helpers(directory: Path) -> None:
    """The helpers join the chunks, and fail on any that does not match."""
    with listening(directory) as life, client_of(life.port) as client:
        wanted = {"model": "tiny", "messages": MESSAGES, "max_completion_tokens": 4}
        with client.chat.completions.stream(**wanted) as stream:
            kinds = [event.type for event in stream]
            whole = stream.current_completion_snapshot
        assert kinds[-1] == "content.done"
        assert whole.choices[0].finish_reason == "length"


@pytest.mark.slow
@pytest.mark.skipif(not OLD.is_dir(), reason="make build/openai-1 installs the client's 1.x")
def test_the_client_of_before(directory: Path) -> None:
    """Version 1 of the package works as well, in a process of its own."""
    root = Path(__file__).parents[2]
    program = (
        f"import sys; sys.path[:0] = [{str(OLD)!r}, {str(root)!r}]\n"
        "import openai; assert openai.__version__.startswith('1.')\n"
        "from tests.server.openai.test_openai_client import client_of, fail, use\n"
        "client = client_of(int(sys.argv[1])); use(client); fail(client)\n"
    )
    with listening(directory) as life:
        command = [sys.executable, "-c", program, str(life.port)]
        subprocess.run(command, check=True, cwd=root, timeout=LIMIT)


CHAT_FIELDS = {
    *("id", "object", "created", "model", "choices", "usage", "service_tier"),
    *("system_fingerprint", "prompt_logprobs", "prompt_token_ids", "prompt_text"),
    "kv_transfer_params",
}
COMPLETION_FIELDS = {
    *("id", "object", "created", "model", "choices", "usage", "service_tier"),
    *("system_fingerprint", "kv_transfer_params"),
}


def test_what_does_not_apply_is_null_and_not_missing(directory: Path) -> None:
    """Clients of vLLM read these fields without asking whether they are there."""
    with listening(directory) as life:
        url = f"http://127.0.0.1:{life.port}/v1"
        body = {"messages": MESSAGES, "max_tokens": 1}
        chat = httpx.post(f"{url}/chat/completions", json=body, timeout=LIMIT)
        body = {"prompt": "x", "max_tokens": 1}
        completion = httpx.post(f"{url}/completions", json=body, timeout=LIMIT)
    whole = chat.json()
    assert whole.keys() == CHAT_FIELDS
    (choice,) = whole["choices"]
    message = choice.pop("message")
    assert message.pop("content") is not None
    assert message == {
        "role": "assistant",
        "refusal": None,
        "reasoning": None,
        "reasoning_content": None,
        "annotations": [],
    }
    absent = {"logprobs": None, "stop_reason": None, "token_ids": None}
    assert choice == {"index": 0, "finish_reason": "length", **absent}
    names = ("service_tier", "prompt_logprobs", "prompt_token_ids", "kv_transfer_params")
    assert {name: whole[name] for name in names} == dict.fromkeys(names)
    whole = completion.json()
    assert whole.keys() == COMPLETION_FIELDS
    (choice,) = whole["choices"]
    assert choice.pop("text")
    absent |= dict.fromkeys(("prompt_logprobs", "prompt_token_ids", "prompt_text"))
    assert choice == {"index": 0, "finish_reason": "length", **absent}
