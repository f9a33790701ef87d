"""Grammars for calls: what a model may write when it must call, or once it has begun to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from octavo.formats.description import Form, Formats, ReasoningFormat
from octavo.formats.lark import ANY, Lark
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
        raise FormatError("this model has no known format of calls; give one: --tool-call-parser")
    if choice == "auto" and not any(tool.strict for tool in tools):
        return None
    lark = Lark(tokens)
    form = formats.tools.forms[0]
    if choice == "auto":
        tools = [tool if tool.strict else Tool(tool.name) for tool in tools]
        answer = _optional_calls(form, tools, lark, parallel=parallel)
    else:
        answer = _calls(form, tools, lark, parallel=parallel)
    return lark.finish(f"{_thinking(formats.reasoning, prompt_end, lark)}{answer}")


def after_thinking(
    reasoning: ReasoningFormat, grammar: str, *, prompt_end: str = "", tokens: Mapping[str, int]
) -> str:
    """Return a grammar that allows any reasoning first, and then what `grammar` allows."""
    lark = Lark(tokens)
    thinking = _thinking(reasoning, prompt_end, lark)
    if not thinking:
        return grammar
    marks = [*map(lark.text, reasoning.answer), "", ""]
    return lark.finish(f"{thinking}{marks[0]} %lark {{\n{grammar}\n}} {marks[1]}")


def _thinking(reasoning: ReasoningFormat | None, prompt_end: str, lark: Lark) -> str:
    """Return the expression of the reasoning, with a space behind it; "" if there is none."""
    before = thinking_before(reasoning, prompt_end)
    if reasoning is None or before is Thinking.CLOSED:
        return ""
    rest = f"{lark.until(reasoning.close[0].strip())} {lark.rule('space', SPACE, is_terminal=True)}"
    if before is Thinking.OPEN:
        return f"{rest} "
    return f"({lark.text(reasoning.open[0].strip())} {rest})? "


def _calls(form: Form, tools: Sequence[Tool], lark: Lark, *, parallel: bool, skip: int = 0) -> str:
    """Return the expression of one or more calls; `skip` characters of the opening are before."""
    names = [
        lark.rule(f"tool_{index}", form.body.rule(tool, lark)) for index, tool in enumerate(tools)
    ]
    call = lark.rule("call", f"({' | '.join(names)}) {lark.text(''.join(form.call_end))}")
    more = ""
    if parallel:
        more = f"({lark.text(form.separator + ''.join(form.call))} {call})*"
    opening = lark.text("".join(form.opening)[skip:])
    return f"{opening} {call} {more} {lark.text(''.join(form.section_end))}"


def _optional_calls(form: Form, tools: Sequence[Tool], lark: Lark, *, parallel: bool) -> str:
    """Return the expression of text in which calls may stand."""
    if form.at_start:
        first = re.escape("".join(form.opening) or form.body.first)[:2]
        other = lark.rule("other", rf"/([^ \t\r\n{first}](?s:.*))?/", is_terminal=True)
        return f"({_calls(form, tools, lark, parallel=parallel)} | {other})"
    several = parallel and bool(form.section)  # else each call has the trigger again
    calls = _calls(form, tools, lark, parallel=several, skip=len(form.trigger))
    any_text = lark.rule("any", ANY, is_terminal=True)
    many = "*" if parallel else "?"
    return f"({lark.until(form.trigger)} {calls}){many} {any_text}"
