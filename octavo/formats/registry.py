"""The formats by name: the descriptions of this package, and files of users."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from octavo.formats.description import Formats, ReasoningFormat, ToolFormat
from octavo.formats.protocol import FormatError

FOLDER = Path(__file__).parent
MAX_FILE_BYTES = 1 << 20
GENERIC = "generic"  # the tool format of models that show none

NO_TOOLS: Mapping[str, ToolFormat] = MappingProxyType({})
NO_REASONING: Mapping[str, ReasoningFormat] = MappingProxyType({})

Format = TypeVar("Format", ToolFormat, ReasoningFormat)


def tool_format(name: str, own: Mapping[str, ToolFormat] = NO_TOOLS) -> ToolFormat:
    """Return the tool format with this name, which is vLLM's, or that of a user's file.

    Raise FormatError for a name that neither has.
    """
    return _named("tool call parser", name, {**_all_tools(), **own})


def reasoning_format(
    name: str, own: Mapping[str, ReasoningFormat] = NO_REASONING
) -> ReasoningFormat:
    """Return the reasoning format with this name; raise FormatError if there is none."""
    return _named("reasoning parser", name, {**_all_reasoning(), **own})


def choose(
    template: str,
    special_tokens: Collection[str],
    *,
    tools: str | None = None,
    reasoning: str | None = None,
    plugin: Path | None = None,
) -> Formats:
    """Return the formats of a model: those with the given names, else those that it shows.

    A name may be of this package or of the `plugin` file; "none" switches a format off. A model
    that shows no tool format gets the generic one.
    """
    own_tools, own_reasoning = ({}, {}) if plugin is None else load_plugin(plugin)
    found = detect(template, special_tokens)
    calls, thoughts = found.tools, found.reasoning
    if tools is None:
        calls = calls or tool_format(GENERIC)
    else:
        calls = None if tools == "none" else tool_format(tools, own_tools)
        if found.tools is not None and found.tools.variant_of == tools:
            calls = found.tools
    if reasoning is not None:
        thoughts = None if reasoning == "none" else reasoning_format(reasoning, own_reasoning)
    elif calls is not None and calls.reasoning is not None:
        thoughts = reasoning_format(calls.reasoning, own_reasoning)
    return Formats(calls, thoughts)


def detect(template: str, special_tokens: Collection[str]) -> Formats:
    """Return the formats that a chat template and the model's special tokens show."""
    text = "\n".join((template, *special_tokens))
    return Formats(_best(text, _all_tools()), _best(text, _all_reasoning()))


def tool_names() -> list[str]:
    """Return the names of all tool formats in order."""
    return sorted(_all_tools())


def reasoning_names() -> list[str]:
    """Return the names of all reasoning formats in order."""
    return sorted(_all_reasoning())


def load_plugin(path: Path) -> tuple[dict[str, ToolFormat], dict[str, ReasoningFormat]]:
    """Return the formats that a user's file describes: tables `tools.NAME`, `reasoning.NAME`."""
    tables = _tables(path)
    for name in tables.keys() - {"tools", "reasoning"}:
        raise FormatError(
            f"{path}: the table [{name}] is neither [tools.NAME] nor [reasoning.NAME]; "
            "docs/formats.md describes the file"
        )
    tools = _converted(path, tables.get("tools", {}), ToolFormat, "tools.")
    return tools, _converted(path, tables.get("reasoning", {}), ReasoningFormat, "reasoning.")


@cache
def _all_tools() -> dict[str, ToolFormat]:
    return _folder("tools", ToolFormat)


@cache
def _all_reasoning() -> dict[str, ReasoningFormat]:
    return _folder("reasoning", ReasoningFormat)


def _folder(folder: str, kind: type[Format]) -> dict[str, Format]:
    formats: dict[str, Format] = {}
    for path in sorted((FOLDER / folder).glob("*.toml")):
        formats |= _converted(path, _tables(path), kind, "")
    return formats


def _best(text: str, formats: Mapping[str, Format]) -> Format | None:
    """Return the format with the most characters among those whose strings are all in the text."""
    found = [
        (sum(map(len, strings)), name)
        for name, one in formats.items()
        for strings in one.detect
        if all(string in text for string in strings)
    ]
    return formats[max(found)[1]] if found else None


def _named(what: str, name: str, formats: Mapping[str, Format]) -> Format:
    if name not in formats:
        names = ", ".join(sorted(formats))
        raise FormatError(f"there is no {what} {name!r}; the names are {names}")
    return formats[name]


def _tables(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise FormatError(f"cannot read the formats in {path}: {error.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise FormatError(f"{path} has more than {MAX_FILE_BYTES} bytes, the limit of such a file")
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not TOML, the language of formats: {error}") from None


def _converted(path: Path, tables: Any, kind: type[Format], prefix: str) -> dict[str, Format]:
    formats = {}
    if not isinstance(tables, dict):
        raise FormatError(f"{path}: {prefix.rstrip('.')} is not a table of formats by name")
    for name, table in tables.items():
        try:
            if not isinstance(table, dict):
                raise TypeError("it is not a table")
            given = {key: value for key, value in table.items() if key != "same_as"}
            if "same_as" in table:  # everything that the table does not give
                base = tables.get(str(table["same_as"]))
                if not isinstance(base, dict):
                    raise TypeError(f"this file has no format {table['same_as']!r}")
                given = {**base, **given}
            formats[name] = msgspec.convert({**given, "name": name}, kind)
        except (msgspec.ValidationError, TypeError) as error:
            raise FormatError(f"{path}: [{prefix}{name}] is no format: {error}") from None
    return formats
