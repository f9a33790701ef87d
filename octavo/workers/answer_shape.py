"""The grammar of a whole answer: reasoning, calls of tools, text of a shape, as a worker's job.

Schemas of tools are hostile input as shapes are, so that a worker checks and compiles both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct

from octavo.core.structured_outputs import ShapeError, StructuredOutputsParams
from octavo.formats.description import Formats, ToolFormat
from octavo.formats.grammar import after_thinking, calls_grammar, unenforced
from octavo.formats.protocol import Tool
from octavo.grammar.checked import CheckedShape, ShapeJob


class CallableTool(Struct, frozen=True):
    """A tool that answers may call, and the place of its parameters in the request."""

    name: str
    parameters: dict[str, Any]
    strict: bool
    place: str  # such as "[0].function.parameters"


class AnswerJob(Struct, frozen=True, kw_only=True, tag=True):
    """A description of what an answer consists of."""

    formats: Formats
    tools: list[CallableTool]
    field: str  # of the request, that has the tools
    must_call: bool
    is_parallel: bool
    only_these: bool  # the request has tools beside these, and they are not to be called
    prompt_end: str
    tokens: dict[str, int]  # the model's added tokens that are marks of the formats
    shape: ShapeJob | None  # of an answer that is no call
    vocabulary: int


def check_answer(job: AnswerJob) -> CheckedShape:
    """Return the grammar of answers, with what of the schemas it does not enforce."""
    # The libraries are loaded when they are needed.
    from octavo.grammar.protocol import GrammarError
    from octavo.grammar.shapes import grammar_of
    from octavo.grammar.trial import try_grammar

    warnings: list[tuple[str, str]] = []
    try:
        shape: str | None = None
        if job.shape is not None and not job.must_call:
            made = grammar_of(StructuredOutputsParams(**job.shape.fields), job.vocabulary)
            shape, warnings = made.text, made.warnings
        num_of_shape = len(warnings)
        tools = list(_enforced(job, warnings))
        text = _grammar(job, tools, shape)
        try:
            if text is not None:
                try_grammar(text, job.vocabulary)
        except GrammarError:  # the tool at fault is named, or its schema simplified
            warnings = warnings[:num_of_shape]
            text = _grammar(job, list(_enforced(job, warnings, is_tried=True)), shape)
            try_grammar(text or "", job.vocabulary)
    except ShapeError as error:
        return CheckedShape(what=error.what, field=error.field, path=error.path)
    except GrammarError as error:
        return CheckedShape(what=f"calls of these cannot be enforced: {error}", field=job.field)
    return CheckedShape(grammar=text or "", warnings=warnings)


def _enforced(
    job: AnswerJob, warnings: list[tuple[str, str]], *, is_tried: bool = False
) -> Iterator[Tool]:
    """Yield the tools with what of their schemas is enforced: nothing if calls are free.

    If it `is_tried`, each schema compiles by itself.
    """
    from octavo.grammar.json_schema.blame import compilable
    from octavo.grammar.json_schema.simplify import simplified
    from octavo.grammar.trial import try_schema

    for tool in job.tools:
        is_bound = job.must_call or tool.strict
        if not (is_bound or _format(job).is_generic):
            yield Tool(tool.name, strict=job.only_these)
            continue
        schema = {"type": "object", **tool.parameters}
        given: dict[str, Any] = {"path": tool.place, "strict": tool.strict}
        try:
            if is_tried:
                result = compilable(schema, job.field, try_schema, **given, closes=False)
            else:
                result = simplified(schema, job.field, **given)
        except ShapeError as error:
            if is_bound:
                raise
            warnings.append((f"{job.field}{error.path}", error.what))
            yield Tool(tool.name, strict=True)  # any arguments
            continue
        warnings += result.warnings
        if result.core is False:
            raise ShapeError("no arguments have this shape", job.field, tool.place)
        enforced = Tool(tool.name, {} if result.core is True else result.core, strict=True)
        # The client knows the paths of its own schema, so these are named where possible.
        if left := unenforced(_format(job), enforced):
            for path in unenforced(_format(job), Tool(tool.name, schema)) or left:
                _leave(job, tool, path, warnings)
        yield enforced


def _format(job: AnswerJob) -> ToolFormat:
    assert job.formats.tools is not None, "tools are refused where there is no format of calls"
    return job.formats.tools


def _leave(job: AnswerJob, tool: CallableTool, path: str, warnings: list[tuple[str, str]]) -> None:
    """Note a keyword that the format's grammar leaves out; raise ShapeError if it may not."""
    what = "it cannot be enforced in the format in which this model writes calls"
    place = f"{tool.place}.{path}"
    if tool.strict:
        raise ShapeError(what, job.field, place)
    warnings.append((f"{job.field}{place}", what))


def _grammar(job: AnswerJob, tools: list[Tool], shape: str | None) -> str | None:
    """Return the grammar in Lark's syntax; None if nothing is constrained."""
    formats, end, tokens = job.formats, job.prompt_end, job.tokens
    choice: Literal["auto", "required"] = "auto"
    if job.must_call or shape is not None:
        choice = "required"
    calls: str | None = None
    if tools:
        calls = calls_grammar(
            formats,
            tools,
            choice,
            parallel=job.is_parallel,
            prompt_end=end,
            tokens=tokens,
        )
    if shape is None:
        return calls
    if formats.reasoning is not None:
        shape = after_thinking(formats.reasoning, shape, prompt_end=end, tokens=tokens)
    if calls is None:
        return shape
    return f"start: calls | answer\ncalls: %lark {{\n{calls}\n}}\nanswer: %lark {{\n{shape}\n}}\n"
