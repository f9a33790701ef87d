"""A server whose model writes what a test says, one byte or mark a token, in a format of Qwen's."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from octavo.core.plan import StepPlan, StepResult
from octavo.core.sampling_params import SamplingParams
from octavo.text.token_bytes import byte_alphabet
from octavo.text.tokenizer_files import tokenizer_from_directory
from tests.server.engine import END, ChainRunner, FakeEngine, Slot
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


class Script(ChainRunner):
    """A runner that answers by rules: the first whose words are in the prompt has the answer."""

    def __init__(
        self,
        directory: Path,
        rules: Sequence[tuple[str, str]],
        before_step: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(before_step)
        self._tokenizer = tokenizer_from_directory(directory)
        self._rules = [
            (words, [*self._tokenizer.encode(answer, add_special_tokens=False), END])
            for words, answer in rules
        ]
        self._answers: dict[int, list[int]] = {}  # by the hash of the prompt
        self.grammars: list[str] = []  # of the sequences so far
        self.samplings: list[SamplingParams] = []  # likewise

    def run(self, plan: StepPlan) -> StepResult:
        self.grammars += [new.sampling.grammar for new in plan.opened]
        self.samplings += [new.sampling for new in plan.opened]
        return super().run(plan)

    def _next(self, slot: Slot) -> int:
        num_prompt = slot.new.num_prompt
        prompt = slot.tokens[:num_prompt]
        answer = self._answers.get(key := hash(prompt.tobytes()))
        if answer is None:
            text = self._tokenizer.decode(prompt, skip_special_tokens=False)
            answer = next(answer for words, answer in self._rules if words in text)
            self._answers[key] = answer
        return answer[min(len(slot.tokens) - num_prompt, len(answer) - 1)]


ROOM: dict[str, Any] = {
    "max_model_len": 8192,
    "num_blocks": 8192,
    "max_num_batched_tokens": 4096,
}


def scripted_engine(directory: Path, rules: Sequence[tuple[str, str]]) -> FakeEngine:
    """Return an engine that answers by rules, with room for long prompts."""
    return FakeEngine(directory, runner=Script(directory, rules), **ROOM)


@contextlib.asynccontextmanager
async def writing(
    directory: Path, text: str, *, template: str = QWEN, is_special: bool = True, **options: Any
) -> AsyncIterator[Client]:
    """Serve a model that answers everything with this text, and then ends."""
    make_files(directory, template, is_special=is_special)
    async with serving(directory, scripted_engine(directory, [("", text)]), **options) as client:
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
                elif value is not None:  # as the content is, beside the role, before calls alone
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


THOUGHT = "<think>\nI need the weather.\n</think>\n\n"
# An agent's conversation: it thinks, calls two tools, and answers when it has their results.
AGENT = (
    ("<tool_response>", "<think>\nNow I know.\n</think>\n\nIt is 3 degrees in Oslo."),
    ("<tools>", f"{THOUGHT}I look.\n{OSLO}\n{called('clock', {})}"),
    ("", f"{THOUGHT}I cannot know."),
)
