"""Manual pages in roff with the macros of man(7), from the descriptions of the commands."""

from __future__ import annotations

import re

from octavo.cli.about.description import Argument, Page, page
from octavo.cli.commands import COMMANDS, EXIT_CODES, Command
from octavo.cli.version import version_of

_PLAIN_GROUPS = ("options", "positional arguments")
_QUOTED = re.compile(r"`([^`]+)`")
_VARIABLES = (
    "Each option is a variable too: OCTAVO_MAX_MODEL_LEN=4096 is --max-model-len 4096, and "
    "OCTAVO_CONFIG names the file of options. A flag goes before a variable, and a variable before "
    "the file."
)


def overview_page() -> str:
    """Return the page of `octavo`."""
    lines = [*_head("octavo", "serve large language models"), ".SH SYNOPSIS", ".B octavo"]
    lines += [".I COMMAND", "[arguments]", ".SH COMMANDS"]
    for command in COMMANDS.values():
        lines += [".TP", f".B {_escaped(f'{command.words} {command.synopsis}'.strip())}"]
        lines.append(_line(command.summary))
    return _text([*lines, *_exit_codes(), *_see_also(None)])


def command_page(command: Command) -> str:
    """Return the page of one command."""
    described = page(command)
    lines = _head(f"octavo-{command.name}", command.summary)
    lines += [".SH SYNOPSIS", f".B octavo {command.words}"]
    words = [each for each in command.synopsis.split() if each]
    lines += [_line(" ".join([*words, "[options]"])), ".SH DESCRIPTION", _line(described.text)]
    for paragraph in described.more.split("\n\n"):
        if paragraph.strip():
            lines += [".PP", _line(" ".join(paragraph.split()))]
    lines += _options(described)
    if command.name in ("serve", "config"):
        lines += [".SH ENVIRONMENT", _line(_VARIABLES)]
    return _text([*lines, *_exit_codes(), *_see_also(command)])


def _head(name: str, summary: str) -> list[str]:
    version = version_of("octavo") or "from its sources"
    title = f'.TH {_escaped(name.upper())} 1 "" "octavo {_escaped(version)}" "Octavo"'
    return [title, ".SH NAME", f"{_escaped(name)} \\- {_escaped(summary)}"]


def _options(described: Page) -> list[str]:
    """Return the section of options, with a part for each group."""
    lines = [".SH OPTIONS"]
    group = ""
    for each in described.arguments:
        if each.group != group:
            group = each.group
            if group not in _PLAIN_GROUPS:
                lines.append(f".SS {_escaped(group)}")
        lines += [".TP", _tag(each), _line(each.help)]
        if not all(choice in each.help for choice in each.choices):
            lines += [".br", _line(f"Values: {', '.join(each.choices)}.")]
    return lines


def _tag(argument: Argument) -> str:
    """Return an argument as it is typed, with its flags in bold and its value in italics."""
    value = f"\\fI{_escaped(argument.value)}\\fR" if argument.value else ""
    if not argument.flags:
        return f"\\&{value}"
    between = f"[={value}]" if argument.is_attached else f" {value}" if value else ""
    return ", ".join(f"\\fB{_escaped(flag)}\\fR{between}" for flag in argument.flags)


def _exit_codes() -> list[str]:
    lines = [".SH EXIT STATUS"]
    for code, meaning in EXIT_CODES.items():
        lines += [".TP", f".B {code}", _line(meaning)]
    return lines


def _see_also(command: Command | None) -> list[str]:
    names = ["octavo"] if command else []
    names += [f"octavo-{each}" for each in COMMANDS if command is None or each != command.name]
    parts = [f".BR {_escaped(name)} (1)" + ("," if name != names[-1] else "") for name in names]
    return [".SH SEE ALSO", *parts]


def _line(text: str) -> str:
    """Return a paragraph as one line, with quoted words in bold."""
    parts = _QUOTED.split(text)
    marked = [
        f"\\fB{_escaped(part)}\\fR" if index % 2 else _escaped(part)
        for index, part in enumerate(parts)
    ]
    return "\\&" + "".join(marked)


def _escaped(text: str) -> str:
    """Escape what roff takes for more than letters; a hyphen remains one when it is copied."""
    for letter, name in (("\\", "\\(rs"), ("-", "\\-"), ("'", "\\(aq"), ("`", "\\(ga")):
        text = text.replace(letter, name)
    return "".join(each if each.isascii() else f"\\[u{ord(each):04X}]" for each in text)


def _text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"
