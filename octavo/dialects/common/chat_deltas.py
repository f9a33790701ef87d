"""An answer's deltas in the form of chats: the parts of a stream's chunks, or a whole message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from octavo.dialects.common.schema.chat import AnswerMessage, Delta
from octavo.dialects.common.schema.tools import Call, CallDelta, CalledFunction, CalledFunctionDelta
from octavo.formats import deltas as found
from octavo.serving.answers.tool_use import ToolUse, made_id


class DeltaForms:
    """The forms of one request's deltas."""

    def __init__(self, name: str, use: ToolUse, *, has_reasoning: bool) -> None:
        self._name = name
        self._is_old = use.is_old  # calls are functions
        self._must_call = use.must_call
        self._has_reasoning = has_reasoning
        self._callers: set[int] = set()  # answers with a call

    def parts(self, answer: int, deltas: Sequence[found.Delta]) -> Iterator[Delta]:
        """Yield what is new of an answer; the end is not among it."""
        for delta in deltas:
            match delta:
                case found.TextDelta(text):
                    yield Delta(content=text)
                case found.ReasoningDelta(text) if self._has_reasoning:
                    yield Delta(reasoning=text, reasoning_content=text)
                case found.ToolCallDelta():
                    self._callers.add(answer)
                    yield from self._call_parts(answer, delta)

    def finish_reason(self, answer: int, reason: str) -> str:
        """Return the reason of an end in this dialect: a call is one."""
        if reason != "stop" or answer not in self._callers:
            return reason
        return "function_call" if self._is_old else "tool_calls"

    def message(self, answer: int, deltas: Sequence[found.Delta], role: str) -> AnswerMessage:
        """Return the whole message of an answer."""
        content: list[str] = []
        reasoning: list[str] = []
        calls: dict[int, Call] = {}
        for delta in deltas:
            match delta:
                case found.TextDelta(text):
                    content.append(text)
                case found.ReasoningDelta(text):
                    reasoning.append(text)
                case found.ToolCallDelta(index):
                    if index not in calls:
                        function = CalledFunction(name=delta.name or "", arguments="")
                        calls[index] = Call(id=self._id(answer, delta), function=function)
                    calls[index].function.arguments += delta.arguments
        text = "".join(content)
        thought = "".join(reasoning) if reasoning and self._has_reasoning else None
        message = AnswerMessage(
            role=role,
            content=text if text or not (calls or reasoning or self._must_call) else None,
            reasoning=thought,
            reasoning_content=thought,
        )
        if calls:
            self._callers.add(answer)
            if self._is_old:
                message.function_call = calls[min(calls)].function
            else:
                message.tool_calls = list(calls.values())
        return message

    def _call_parts(self, answer: int, delta: found.ToolCallDelta) -> Iterator[Delta]:
        """Yield the beginning of a call, then more of its arguments."""
        if delta.name is not None:
            begun = CalledFunctionDelta(name=delta.name, arguments="")
            if self._is_old:
                yield Delta(function_call=begun)
            else:
                call_id = self._id(answer, delta)
                call = CallDelta(index=delta.index, id=call_id, type="function", function=begun)
                yield Delta(tool_calls=[call])
        if delta.arguments:
            more = CalledFunctionDelta(arguments=delta.arguments)
            if self._is_old:
                yield Delta(function_call=more)
            else:
                yield Delta(tool_calls=[CallDelta(index=delta.index, function=more)])

    def _id(self, answer: int, delta: found.ToolCallDelta) -> str:
        """Return the call's own id, or one that is the same whenever the answer is written."""
        if delta.call_id is not None:
            return delta.call_id
        return made_id(f"{self._name}/{answer}/{delta.index}")
