"""The formats of a server's answers: chosen at the start, by name or from the chat template."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from octavo.api.reading import Reading
from octavo.formats.description import Formats
from octavo.formats.parser import make_parser
from octavo.formats.protocol import FormatError, Tool
from octavo.formats.registry import choose
from octavo.server.answers.call_ids import short_id
from octavo.server.settings import ServerSettings, ServerSettingsError
from octavo.text.token_table import TokenTable

log = logging.getLogger(__name__)


class AnswerFormats:
    """The formats in which a model writes calls and reasoning."""

    def __init__(self, formats: Formats, tokenizer: TokenTable) -> None:
        self.formats = formats
        added, special = tokenizer.added_tokens, tokenizer.special_ids
        kept = formats.kept(added[each] for each in special if each in added)
        self._kept = frozenset(each for each in special if added.get(each) in kept)
        # Tokens that end an answer with calls, beside the model's own.
        self.stop_ids = sorted(each for each in special if added.get(each) in formats.stops)

    @property
    def has_short_ids(self) -> bool:
        """The answer to whether the chat template accepts only ids of one length."""
        return self.formats.tools is not None and self.formats.tools.call_ids == "nine_letters"

    def known_id(self, given: str | None) -> str | None:
        """Return a past call's id as the chat template accepts it."""
        return short_id(given) if self.has_short_ids else given

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
    template = config.chat_template or templates.get("tool_use") or templates.get("default") or ""
    formats = _chosen(config, template, tuple(tokenizer.added_tokens.values()))
    for what, one, name in (
        ("tool calls", formats.tools, config.tool_call_parser),
        ("reasoning", formats.reasoning, config.reasoning_parser),
    ):
        if one is not None:
            how = "which the chat template shows" if name is None else "as asked"
            log.info("%s: the format is %s, %s", what, one.name, how)
    return AnswerFormats(formats, tokenizer)


def check_names(config: ServerSettings) -> None:
    """Raise ServerSettingsError for settings that name a format or a file that is none."""
    _chosen(config, "", ())


def _chosen(config: ServerSettings, template: str, special_tokens: Sequence[str]) -> Formats:
    try:
        return choose(
            template,
            special_tokens,
            tools=config.tool_call_parser,
            reasoning=config.reasoning_parser,
            plugin=config.tool_parser_plugin,
        )
    except FormatError as error:
        raise ServerSettingsError(str(error)) from error
