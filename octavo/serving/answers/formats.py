"""The formats of a server's answers: chosen at the start, by name or from the chat template."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from octavo.api.reading import Reading
from octavo.core.structured_outputs import StructuredOutputsParams
from octavo.formats.description import Formats, ReasoningFormat
from octavo.formats.parser import make_parser
from octavo.formats.protocol import FormatError, Tool
from octavo.formats.registry import choose
from octavo.formats.thinking import Thinking, thinking_before
from octavo.grammar.checked import job_of
from octavo.nearest import nearest_or_all
from octavo.options.server import ServerSettings
from octavo.options.transport import ServerSettingsError
from octavo.serving.answers.tool_use import ToolUse, short_id
from octavo.serving.operation import GenerationRequest
from octavo.text.token_table import TokenTable
from octavo.transport.errors import invalid
from octavo.workers.answer_shape import AnswerJob

_PARSER, _START, _END = "reasoning_parser", "reasoning_start_str", "reasoning_end_str"
_MOST_CHARACTERS = 4096
_OWN = "reasoning_config"  # the name of a format that has the given marks
log = logging.getLogger(__name__)


_NO_REASONING = (
    "reasoning: the chat template shows no known format, so that what the model thinks is part "
    "of its text; if it thinks, name the format with --reasoning-parser"
)


class AnswerFormats(msgspec.Struct, frozen=True, kw_only=True):
    """The formats in which a model writes calls and reasoning."""

    formats: Formats
    kept_ids: frozenset[int]  # special tokens that a parser must see
    marks: dict[str, int]  # the marks of the formats that are tokens of their own
    stop_ids: tuple[int, ...]  # that end an answer with calls, beside the model's own
    generates: bool  # the model writes answers at all

    @property
    def _is_generic(self) -> bool:
        """True if the model was made for no format of calls: all of them are constrained."""
        return self.formats.tools is not None and self.formats.tools.is_generic

    @property
    def has_parts(self) -> bool:
        """True if answers have parts beside their text: reasoning, or calls."""
        return self.formats.reasoning is not None or not (
            self.formats.tools is None or self._is_generic
        )

    @property
    def separates_reasoning(self) -> bool:
        """True if answers have the reasoning apart from their text, so that it can be left out."""
        return self.formats.reasoning is not None and not self.formats.reasoning.is_kept

    @property
    def has_short_ids(self) -> bool:
        """The answer to whether the chat template accepts only ids of one length."""
        return self.formats.tools is not None and self.formats.tools.call_ids == "nine_letters"

    def known_id(self, given: str | None) -> str | None:
        """Return a past call's id as the chat template accepts it."""
        return short_id(given) if self.has_short_ids else given

    def check(self, use: ToolUse) -> None:
        """Raise ApiError for tools of a model whose calls would not be recognised."""
        if not use.callable or self.formats.tools is not None or not self.generates:
            return  # a request to a model without answers is refused for that
        what = (
            "this server looks for no calls in answers, since it was started with "
            "--tool-call-parser none; leave the tools out, or start it without that"
        )
        raise invalid(f"{use.field}: {what}", use.field, "unsupported_parameter")

    def bind(self, asked: GenerationRequest, use: ToolUse, vocabulary: int) -> None:
        """Set how answers to a request stop, are read and are bound by what it says of tools."""
        if use.callable and self.stop_ids:
            given = asked.sampling.get("stop_token_ids", ())
            asked.sampling["stop_token_ids"] = [*given, *self.stop_ids]
        asked.reading, asked.tools = self.reading_for(use), use
        asked.answer_job = self.job_for(use, asked.shape, vocabulary)

    def has_ended_reasoning(self, prompt_end: str) -> bool | None:
        """Return whether a prompt leaves no reasoning to come; None if the model has no format."""
        if self.formats.reasoning is None:
            return None
        return thinking_before(self.formats.reasoning, prompt_end) is Thinking.CLOSED

    def reading_for(self, use: ToolUse) -> Callable[[str], Reading] | None:
        """Return how answers are read, by the end of their prompt; None if they are text alone."""
        if not use.callable and self.formats.reasoning is None:
            return None
        tools = [Tool(each.name, each.parameters, each.strict) for each in use.callable]
        return partial(self._reading, tools, use)

    def _reading(self, tools: Sequence[Tool], use: ToolUse, prompt_end: str) -> Reading:
        make = partial(
            make_parser,
            self.formats,
            tools,
            prompt_end=prompt_end,
            parallel=use.is_parallel,
            must_call=use.must_call,
        )
        return Reading(make, self.kept_ids)

    def job_for(
        self, use: ToolUse, shape: StructuredOutputsParams | None, vocabulary: int
    ) -> Callable[[str], AnswerJob] | None:
        """Return the job that makes the answers' grammar, by the end of their prompt.

        None where answers are free, or nothing but text in the shape.
        """
        is_bound = use.must_call or use.only_these or any(each.strict for each in use.callable)
        is_bound = is_bound or (bool(use.callable) and self._is_generic)
        has_other_parts = bool(use.callable) or self.formats.reasoning is not None
        if not (is_bound or (shape is not None and has_other_parts)):
            return None
        job = AnswerJob(
            formats=self.formats,
            tools=list(use.callable),
            field=use.field,
            must_call=use.must_call,
            is_parallel=use.is_parallel,
            only_these=use.only_these,
            prompt_end="",
            tokens=self.marks,
            shape=None if shape is None else job_of(shape, vocabulary),
            vocabulary=vocabulary,
        )
        return partial(self._job, job)

    def _job(self, job: AnswerJob, prompt_end: str) -> AnswerJob:
        """Return the job for a prompt; jobs for prompts that end alike are equal."""
        reasoning = self.formats.reasoning
        if reasoning is None:
            return job
        match thinking_before(reasoning, prompt_end):
            case Thinking.OPEN:
                return msgspec.structs.replace(job, prompt_end=reasoning.open[0])
            case Thinking.CLOSED:
                return msgspec.structs.replace(job, prompt_end=reasoning.close[0])
        return job


def choose_formats(
    config: ServerSettings, tokenizer: TokenTable, *, generates: bool = True
) -> AnswerFormats:
    """Return the formats that the settings name, or else those that the model shows."""
    templates = tokenizer.chat_templates
    template = config.chat_template or templates.get("tool_use") or templates.get("default") or ""
    formats = _chosen(config, template, tuple(tokenizer.added_tokens.values()))
    formats = with_marks(formats, config)
    if generates:
        _report(config, formats, shows_tools="tools" in template)
    added, special = tokenizer.added_tokens, tokenizer.special_ids
    kept = formats.kept(added[each] for each in special if each in added)
    marks = formats.kept(added.values())
    return AnswerFormats(
        formats=formats,
        kept_ids=frozenset(each for each in special if added.get(each) in kept),
        marks={text: each for each, text in added.items() if text in marks},
        stop_ids=tuple(sorted(each for each in special if added.get(each) in formats.stops)),
        generates=generates,
    )


def _report(config: ServerSettings, formats: Formats, *, shows_tools: bool) -> None:
    """Log which formats were chosen, and why."""
    for what, one, name in (
        ("tool calls", formats.tools, config.tool_call_parser),
        ("reasoning", formats.reasoning, parser_of(config)),
    ):
        if name is not None:
            log.info(
                "%s: %s, as asked", what, "none" if one is None else f"the format is {one.name}"
            )
        elif one is None:
            log.info(_NO_REASONING)
        elif one is not formats.tools or not one.is_generic:
            log.info("%s: the format is %s, which the chat template shows", what, one.name)
    tools = formats.tools
    if tools is None or (shows_tools and not tools.is_generic):
        return
    if config.tool_call_parser is None and shows_tools:
        log.info(
            "tool calls: the chat template shows tools in no known format; they are shown in the "
            "system message instead, and calls are in the format %s; if you know the model's own "
            "format, name it with --tool-call-parser",
            tools.name,
        )
    else:
        log.info(
            "tool calls: tools are shown in the system message%s, and calls are in the format %s",
            "" if shows_tools else ", since the chat template does not know them",
            tools.name,
        )


def check_names(config: ServerSettings) -> None:
    """Raise ServerSettingsError for settings that name a format or a file that is none."""
    _chosen(config, "", ())


def _chosen(config: ServerSettings, template: str, special_tokens: Sequence[str]) -> Formats:
    try:
        return choose(
            template,
            special_tokens,
            tools=config.tool_call_parser,
            reasoning=parser_of(config),
            plugin=config.tool_parser_plugin,
        )
    except FormatError as error:
        raise ServerSettingsError(str(error)) from error


def parser_of(config: ServerSettings) -> str | None:
    """Return the name of the reasoning's format; refuse two different ones."""
    given = _checked(config.reasoning_config).get(_PARSER)
    if given is None or given == config.reasoning_parser:
        return config.reasoning_parser
    if config.reasoning_parser is not None:
        raise _error(
            f"{_PARSER}={given!r} and --reasoning-parser {config.reasoning_parser!r} name two "
            "formats; leave one out"
        )
    return given


def with_marks(formats: Formats, config: ServerSettings) -> Formats:
    """Return the formats with the text that ends reasoning whose budget is spent.

    A model without a known format gets one of the given marks; its reasoning stays in the text.
    """
    given, reasoning = _checked(config.reasoning_config), formats.reasoning
    start, end = given.get(_START), given.get(_END)
    if start is None and end is None:
        return formats
    if reasoning is None:
        if start is None or end is None:
            raise _error(
                f"the format of the reasoning is unknown: give both {_START} and {_END}, or name "
                f"it as {_PARSER}"
            )
        own = ReasoningFormat(name=_OWN, open=(start,), close=(end,), is_kept=True)
        return Formats(formats.tools, own)
    opening = [mark.strip() for mark in reasoning.open]
    if start is not None and start.strip() not in opening:
        raise _error(
            f"{_START}={start!r} does not begin reasoning in the format {reasoning.name}, which "
            f"begins it with {' or '.join(map(repr, opening))}; leave it out"
        )
    if end is None or end.strip() == reasoning.close[0].strip():
        return formats
    try:
        return Formats(formats.tools, replace(reasoning, forced_end=end))
    except ValueError as error:
        raise _error(f"{_END}={end!r}: {error}") from None


def _checked(given: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the settings that are given; None and the empty text mean the default, as in vLLM."""
    known = (_PARSER, _START, _END)
    found: dict[str, str] = {}
    for name, value in (given or {}).items():
        if name not in known:
            raise _error(f"there is no key {name[:100]!r}; {nearest_or_all(name, known)}")
        if value in (None, ""):
            continue
        if not isinstance(value, str) or len(value) > _MOST_CHARACTERS or not value.strip():
            raise _error(f"{name} must be a text of at most {_MOST_CHARACTERS} characters")
        found[name] = value
    return found


def _error(message: str) -> ServerSettingsError:
    return ServerSettingsError(f"reasoning_config: {message}")
