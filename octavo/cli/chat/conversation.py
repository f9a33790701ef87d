"""A conversation: its messages and settings, and the turns in which the model calls functions."""

from __future__ import annotations

import time
from typing import Any

from octavo.cli.chat.display import Display
from octavo.cli.chat.endpoint import Body, Endpoint, EndpointError
from octavo.cli.chat.tools import ToolFile
from octavo.core.sampling_params import RequestError

MAX_ROUNDS = 8  # of calls in one turn
MAX_CALLS = 32  # of one answer
_WHOLE = ("", "stop", "tool_calls", "function_call")  # reasons to end that cut nothing
_SHOWN_CHARACTERS = 200  # of a call's arguments, and of its result

Message = dict[str, Any]


class Conversation:
    """The messages so far and how the next is answered.

    A turn that fails, or that ends before any text, leaves no trace; `retry` sends it again.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        model: str,
        display: Display,
        *,
        sampling: dict[str, Any] | None = None,
        system: str = "",
        shows_stats: bool = False,
    ) -> None:
        self._endpoint = endpoint
        self.model = model
        self.display = display
        self.sampling = dict(sampling or {})
        self.system = system
        self.shows_stats = shows_stats
        self.schema: dict[str, Any] | None = None
        self.tools: ToolFile | None = None
        self.messages: list[Message] = []
        self.stats = "there is no answer so far"
        self._failed = ""  # the text of a turn that has left no trace

    def close(self) -> None:
        """Release the engine, if it is of this process."""
        self._endpoint.close()

    def ask(self, text: str) -> None:
        """Write the answer while it is generated."""
        self._failed = text  # until there is an answer
        self._turn(text, list(self.messages))

    def retry(self) -> None:
        """Answer the last text again; the former answer is kept if this fails."""
        before = list(self.messages)
        if self._failed:
            self._turn(self._failed, before)
            return
        places = [index for index, each in enumerate(before) if each["role"] == "user"]
        if not places:
            raise RequestError("there is nothing to answer again")
        text = before[places[-1]]["content"]
        del self.messages[places[-1] :]
        self._turn(text, before)

    def forget(self) -> None:
        """Begin a new conversation with the same settings."""
        self.messages.clear()
        self._failed = ""

    def _turn(self, text: str, before: list[Message]) -> None:
        """Answer a text; if there is no answer, restore the messages from before."""
        self.messages.append({"role": "user", "content": text})
        answer = Answer(self.display)
        is_kept = False
        try:
            for _ in range(MAX_ROUNDS):
                answer = Answer(self.display)
                self._endpoint.chat(self._body(), answer.take)
                answer.end()
                if not answer.calls:
                    break
                self.messages += self._called(answer)
            else:
                raise RequestError(
                    f"the model called functions {MAX_ROUNDS} times in a row, without an answer"
                )
            is_kept = True
        except KeyboardInterrupt:
            is_kept = bool(answer.text) and not answer.calls
            raise
        finally:
            self.display.end()
            if is_kept:
                self.messages.append({"role": "assistant", "content": answer.text})
                self._failed = ""
            else:
                self.messages[:] = before
            self.stats = answer.statistics()
        if self.shows_stats:
            self.display.note(self.stats)

    def _body(self) -> Body:
        system = [{"role": "system", "content": self.system}] if self.system else []
        body: Body = {
            "model": self.model,
            "messages": [*system, *self.messages],
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.sampling,
        }
        if self.tools is not None:
            body["tools"] = self.tools.described
        if self.schema is not None:
            shape = {"name": "answer", "schema": self.schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": shape}
        return body

    def _called(self, answer: Answer) -> list[Message]:
        """Call the functions that an answer asks for; return it with their results."""
        if self.tools is None:
            raise EndpointError("the answer calls functions, and none were offered")
        if answer.is_cut:  # what has come of a call's arguments may be JSON too
            raise EndpointError("the call of a function was cut off, so nothing was called")
        made: list[Message] = [
            {"role": "assistant", "content": answer.text, "tool_calls": list(answer.calls.values())}
        ]
        for call in answer.calls.values():
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            self.display.note(f"calls {name}({_short(arguments)})")
            result = self.tools.call(name, arguments)
            self.display.note(f"  {_short(result)}")
            made.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        return made


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARACTERS else f"{line[:_SHOWN_CHARACTERS]}…"


class Answer:
    """One answer, put together from its chunks and shown as they come."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._pieces: list[str] = []
        self.calls: dict[int, dict[str, Any]] = {}  # in OpenAI's form, by their place
        self._usage: Body = {}
        self._began = time.monotonic()
        self._first = self._last = 0.0
        self._finish = ""

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    @property
    def is_cut(self) -> bool:
        """True if the answer was ended before its end."""
        return self._finish not in _WHOLE

    def take(self, chunk: Body) -> None:
        """Add a chunk; raise EndpointError for one of another form."""
        try:
            self._take(chunk)
        except (TypeError, AttributeError, LookupError, ValueError, OverflowError) as error:
            raise EndpointError(f"the stream has no chunks as OpenAI's: {error}") from None

    def _take(self, chunk: Body) -> None:
        usage = chunk.get("usage")
        if usage:
            self._usage = dict(usage)
        for choice in chunk.get("choices") or ():
            self._finish = choice.get("finish_reason") or self._finish
            delta = choice.get("delta") or {}
            content = delta.get("content")
            reasoning = delta.get("reasoning") or delta.get("reasoning_content")
            calls = delta.get("tool_calls") or ()
            if content or reasoning or calls:
                self._last = time.monotonic()
                self._first = self._first or self._last
            if reasoning:
                self._display.reasoning(_text(reasoning))
            if content:
                self._pieces.append(_text(content))
                self._display.text(content)
            for call in calls:
                self._add_call(call)

    def _add_call(self, delta: Body) -> None:
        index = int(delta.get("index") or 0)
        if index not in self.calls and len(self.calls) == MAX_CALLS:
            raise EndpointError(f"the answer calls more than {MAX_CALLS} functions")
        made = self.calls.setdefault(
            index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        )
        function = delta.get("function") or {}
        made["id"] += _text(delta.get("id") or "")
        made["function"]["name"] += _text(function.get("name") or "")
        made["function"]["arguments"] += _text(function.get("arguments") or "")

    def end(self) -> None:
        """Say why an answer is not complete."""
        if self._finish == "length":
            self._display.note("(cut: the limit of tokens is reached, --max-tokens or the model's)")

    def statistics(self) -> str:
        """Return a line about the tokens and the time."""
        if not self._first:
            return "there is no answer so far"
        parts = []
        prompt, generated = self._usage.get("prompt_tokens"), self._usage.get("completion_tokens")
        if isinstance(prompt, int):
            details = self._usage.get("prompt_tokens_details")
            cached = details.get("cached_tokens") if isinstance(details, dict) else 0
            cached = cached if isinstance(cached, int) else 0
            parts.append(f"{prompt} prompt tokens ({cached} cached)")
        parts.append(f"first token after {1000 * (self._first - self._began):.0f} ms")
        if isinstance(generated, int):
            parts.append(f"{generated} tokens")
            if generated > 1 and self._last > self._first:
                parts.append(f"{(generated - 1) / (self._last - self._first):.1f} tokens/s")
        else:
            parts.append("no counts of tokens from the server")
        return ", ".join(parts)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} in the place of a text")
    return value
