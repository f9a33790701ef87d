"""vLLM's settings of reasoning: its format by name or by its marks, and how a budget ends it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from octavo.formats.description import Formats, ReasoningFormat
from octavo.nearest import nearest_or_all
from octavo.options.server import ServerSettings
from octavo.options.transport import ServerSettingsError

_PARSER, _START, _END = "reasoning_parser", "reasoning_start_str", "reasoning_end_str"
_MOST_CHARACTERS = 4096
_OWN = "reasoning_config"  # the name of a format that has the given marks


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
