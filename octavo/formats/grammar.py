"""Grammars for calls: what a model may write when it must call, or once it has begun to."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from octavo.formats.description import Formats, ReasoningFormat, ToolFormat
from octavo.formats.lark import Lark
from octavo.formats.protocol import FormatError, Tool
from octavo.formats.thinking import Thinking, thinking_before

# White space between the reasoning and the answer.
SPACE = r"/[ \n]{0,4}/"


def calls_grammar(
    formats: Formats,
    tools: Sequence[Tool],
    choice: Literal["auto", "required"],
    *,
    parallel: bool = True,
    prompt_end: str = "",
    tokens: Mapping[str, int],
) -> str | None:
    """Return the grammar of an answer, in llguidance's Lark; None if nothing is constrained.

    With "required" the answer consists of calls of these tools, with arguments that match their
    schemas. With "auto" it may hold text, and a call that the format's mark opens is constrained;
    the arguments of tools that are not strict may then be any object. A reasoning model may think
    first. `tokens` has the ids of the model's added tokens by their text, `prompt_end` is the end
    of the prompt.
    """
    if formats.tools is None:
        raise FormatError("calls of this model are in no format; give one: --tool-call-parser")
    if choice == "auto" and not any(tool.strict for tool in tools):
        return None
    lark = Lark(tokens)
    calls = _Calls(formats.tools, tools, lark, parallel=parallel)
    thinking = _thinking(formats.reasoning, prompt_end, lark)
    if choice == "required":
        return lark.finish(f"{thinking}{calls.required()}")
    calls.tools = [tool if tool.strict else Tool(tool.name) for tool in tools]
    return lark.finish(f"{thinking}{calls.optional(formats.reasoning)}")


def unenforced(tool_format: ToolFormat, tool: Tool) -> list[str]:
    """Return the paths of keywords in a tool's schema that a grammar of its calls ignores.

    Formats that write arguments as JSON enforce whatever the grammar engine does. Others do not
    enforce all that can be said about a string that stands without quotes, or about an object.
    """
    return tool_format.forms[0].body.unenforced(tool)


def after_thinking(
    reasoning: ReasoningFormat, grammar: str, *, prompt_end: str = "", tokens: Mapping[str, int]
) -> str:
    """Return a grammar that allows any reasoning first, and then what `grammar` allows."""
    lark = Lark(tokens)
    thinking = _thinking(reasoning, prompt_end, lark)
    if not thinking and not reasoning.answer_open:
        return grammar
    before, after = lark.text(reasoning.answer_open), lark.text(reasoning.answer_close)
    return lark.finish(f"{thinking}{before} %lark {{\n{grammar}\n}} {after}")


def _thinking(reasoning: ReasoningFormat | None, prompt_end: str, lark: Lark) -> str:
    """Return the expression of the reasoning, with a space behind it; "" if there is none."""
    before = thinking_before(reasoning, prompt_end)
    if reasoning is None or before is Thinking.CLOSED:
        return ""
    rest = f"{lark.until(reasoning.close[0].strip())} {lark.terminal(SPACE)}"
    if before is Thinking.OPEN:
        return f"{rest} "
    return f"({lark.text(reasoning.open[0].strip())} {rest})? "


class _Calls:
    """The calls of one format, as expressions of a grammar."""

    def __init__(
        self, description: ToolFormat, tools: Sequence[Tool], lark: Lark, *, parallel: bool
    ) -> None:
        self.tools = tools
        self._form, self._lark = description.forms[0], lark
        self._is_generic = description.is_generic
        self._result = _beginning(description.result[0].strip(), self._form.trigger)
        end = "".join(self._form.call_end)
        # A mark that is a stop token is not part of the text: it ends it.
        self._is_last = end.strip() in description.stops
        self._end = "" if self._is_last else end
        self._parallel = parallel and not self._is_last

    def required(self, skip: int = 0) -> str:
        """Return the expression of calls; `skip` characters of their opening have been read."""
        form, lark = self._form, self._lark
        rules = (form.body.rule(tool, lark) for tool in self.tools)
        names = [lark.rule(f"tool_{index}", rule) for index, rule in enumerate(rules)]
        call = lark.rule("call", f"({' | '.join(names)}) {lark.text(self._end)}")
        more = ""
        if self._parallel and (form.section or form.at_start or self._is_generic or not skip):
            more = f"({lark.text(form.separator + ''.join(form.call))} {call})*"
        opening = lark.text("".join(form.opening)[skip:])
        closing = lark.text("".join(form.section_end))
        end = f"{closing} {lark.terminal(SPACE)}" if self._is_generic else closing
        return f"{opening} {call} {more} {end}"

    def optional(self, reasoning: ReasoningFormat | None) -> str:
        """Return the expression of text in which calls may stand."""
        form, lark = self._form, self._lark
        if reasoning is not None and reasoning.answer_open:
            text = lark.until(reasoning.answer_close) if reasoning.answer_close else lark.any()
            return f"({self.required()} | {lark.text(reasoning.answer_open)} {text})"
        if form.at_start:
            first = re.escape(("".join(form.opening) or form.body.first)[0])
            other = lark.terminal(rf"/([^ \t\r\n{first}](?s:.*))?/")
            return f"({self.required()} | {other})"
        result = self._result if self._is_generic else ""
        calls = f"{lark.until(form.trigger, result)} {self.required(len(form.trigger))}"
        text = lark.without(form.trigger, result)
        if self._is_last or self._is_generic:  # else a model would make up the calls' results
            return f"({calls} | {text})"
        return f"({calls}){'*' if self._parallel else '?'} {text}"


def _beginning(mark: str, other: str) -> str:
    """Return the shortest beginning of a mark that is none of the other."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(mark, other, strict=False))
    return mark[: len(list(same)) + 1]
