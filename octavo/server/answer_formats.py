"""The formats of a server's answers: chosen at the start, by name or from the chat template."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from octavo.api.reading import Reading
from octavo.formats.description import Formats, ReasoningFormat, ToolFormat
from octavo.formats.parser import make_parser
from octavo.formats.protocol import FormatError, Tool
from octavo.formats.registry import detect, load_plugin, reasoning_format, tool_format
from octavo.server.settings import ServerSettings, ServerSettingsError
from octavo.text.token_table import TokenTable

log = logging.getLogger(__name__)

OFF = "none"  # instead of a format's name


class AnswerFormats:
    """The formats in which a model writes calls and reasoning."""

    def __init__(self, formats: Formats, tokenizer: TokenTable) -> None:
        self.formats = formats
        added, special = tokenizer.added_tokens, tokenizer.special_ids
        marks = formats.marks
        self._kept = frozenset(each for each in special if added.get(each) in marks)
        # Tokens that end an answer with calls, beside the model's own.
        self.stop_ids = sorted(each for each in special if added.get(each) in formats.stops)

    @property
    def reads_calls(self) -> bool:
        """The answer to whether calls in answers are recognised."""
        return self.formats.tools is not None

    def reading_for(
        self, tools: Sequence[Tool], *, is_parallel: bool
    ) -> Callable[[str], Reading] | None:
        """Return how answers are read, by the end of their prompt; None if they are text alone."""
        if not tools and self.formats.reasoning is None:
            return None
        return partial(self._reading, tools, is_parallel)

    def _reading(self, tools: Sequence[Tool], is_parallel: bool, prompt_end: str) -> Reading:
        make = partial(
            make_parser, self.formats, tools, prompt_end=prompt_end, parallel=is_parallel
        )
        return Reading(make, self._kept)


def choose_formats(config: ServerSettings, tokenizer: TokenTable) -> AnswerFormats:
    """Return the formats that the settings name, or else those that the model shows."""
    templates = tokenizer.chat_templates
    shown = config.chat_template or templates.get("tool_use") or templates.get("default") or ""
    found = detect(shown, frozenset(tokenizer.added_tokens.values()))
    named = named_formats(config)
    tools, reasoning = found.tools, found.reasoning
    if config.tool_call_parser is not None:
        tools = named.tools
    if config.reasoning_parser is not None:
        reasoning = named.reasoning
    for what, chosen, name in (
        ("tool calls", tools, config.tool_call_parser),
        ("reasoning", reasoning, config.reasoning_parser),
    ):
        if chosen is not None:
            how = "detected from the chat template" if name is None else "as asked"
            log.info("%s are read in the format %s, %s", what, chosen.name, how)
    return AnswerFormats(Formats(tools, reasoning), tokenizer)


def named_formats(config: ServerSettings) -> Formats:
    """Return the formats that the settings name; raise ServerSettingsError for an unknown name."""
    tools, reasoning = config.tool_call_parser, config.reasoning_parser
    formats = Formats()
    try:
        more_tools: dict[str, ToolFormat] = {}
        more_reasoning: dict[str, ReasoningFormat] = {}
        if config.tool_parser_plugin is not None:
            more_tools, more_reasoning = load_plugin(config.tool_parser_plugin)
        if tools is not None and tools != OFF:
            formats = replace(formats, tools=tool_format(tools, more_tools))
        if reasoning is not None and reasoning != OFF:
            formats = replace(formats, reasoning=reasoning_format(reasoning, more_reasoning))
    except FormatError as error:
        raise ServerSettingsError(str(error)) from error
    return formats
