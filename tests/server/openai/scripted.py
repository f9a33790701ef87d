"""A server whose model writes what a test says, one byte or mark a token, in a format of Qwen's."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from octavo.text.token_bytes import byte_alphabet
from octavo.text.tokenizer_files import tokenizer_from_directory
from tests.server.engine import END, ChainRunner, FakeEngine
from tests.server.make import Client, events, serving

TEMPLATES = Path(__file__).parents[2] / "text" / "chat" / "templates"
QWEN = (TEMPLATES / "qwen3.jinja").read_text("utf-8")
MARKS = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>")
PATH = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "How warm is it in Oslo?"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
CLOCK: dict[str, Any] = {"type": "function", "function": {"name": "clock"}}
TOOLS = [WEATHER, CLOCK]


def called(name: str, arguments: dict[str, Any]) -> str:
    """Return a call as the model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


OSLO = called("weather", {"city": "Oslo"})


def make_files(directory: Path, template: str = QWEN, *, is_special: bool = True) -> Path:
    """Write a tokenizer of bytes and marks; the marks are special tokens or ordinary ones."""
    spelled = ["<s>", "</s>", *byte_alphabet()]
    backend = Tokenizer(models.BPE({text: index for index, text in enumerate(spelled)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    marks = [AddedToken(mark, special=is_special, normalized=False) for mark in MARKS]
    if is_special:
        backend.add_special_tokens(marks)
    else:
        backend.add_tokens(marks)
    directory.mkdir(parents=True, exist_ok=True)
    backend.save(str(directory / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


@contextlib.asynccontextmanager
async def writing(
    directory: Path, text: str, *, template: str = QWEN, is_special: bool = True, **options: Any
) -> AsyncIterator[Client]:
    """Serve a model that answers everything with this text, and then ends."""
    make_files(directory, template, is_special=is_special)
    tokenizer = tokenizer_from_directory(directory)
    script = [*tokenizer.encode(text, add_special_tokens=False), END]
    runner = ChainRunner(script=script)
    engine = FakeEngine(
        directory, runner=runner, max_model_len=8192, num_blocks=8192, max_num_batched_tokens=4096
    )
    async with serving(directory, engine, **options) as client:
        yield client


async def message_of(client: Client, **fields: Any) -> tuple[dict[str, Any], str | None]:
    """Return the only answer's message, whole or put together from a stream, and its end.

    Both must say the same, which this checks.
    """
    body = {"messages": MESSAGES, **fields}
    response = await client.post(PATH, json=body)
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    stream = await client.post(PATH, json={**body, "stream": True})
    message, finish = put_together(events(stream.text))
    whole = {name: value for name, value in choice["message"].items() if value not in (None, [])}
    if not (whole.get("content") or message.get("content")):
        whole.pop("content", None)
        message.pop("content", None)
    if "x-request-id" in stream.headers:  # ids of calls are those of their request
        for call in (*whole.get("tool_calls", ()), *message.get("tool_calls", ())):
            assert call.pop("id")
    assert (message, finish) == (whole, choice["finish_reason"])
    return choice["message"], finish


def put_together(chunks: list[Any]) -> tuple[dict[str, Any], str | None]:
    """Return the message of a stream with one answer, as OpenAI's clients put it together."""
    message: dict[str, Any] = {}
    finish: str | None = None
    for chunk in chunks:
        for choice in chunk["choices"]:
            assert finish is None, "the end is the last"
            finish = choice["finish_reason"]
            for name, value in choice["delta"].items():
                if name == "tool_calls":
                    for part in value:
                        _add_call(message.setdefault("tool_calls", []), part)
                elif name == "function_call":
                    _add_function(message.setdefault("function_call", {}), value)
                elif name == "role":
                    message["role"] = value
                else:
                    message[name] = message.get(name, "") + value
    return message, finish


def _add_call(calls: list[Any], part: dict[str, Any]) -> None:
    index = part["index"]
    if index == len(calls):  # the first part has all that comes once
        assert part["id"]
        assert part["type"] == "function"
        assert part["function"]["name"]
        calls.append({"id": part["id"], "type": "function", "function": {}})
    else:
        assert index == len(calls) - 1
        assert part.keys() == {"index", "function"}
    _add_function(calls[index]["function"], part["function"])


def _add_function(function: dict[str, Any], part: dict[str, Any]) -> None:
    if "name" in part:
        assert "name" not in function
        function["name"] = part["name"]
    function["arguments"] = function.get("arguments", "") + part["arguments"]
