"""What the parser of a command accepts, as plain values, for completion and manual pages."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from octavo.cli.commands import COMMANDS, Command
from octavo.cli.execute import make_parser
from octavo.cli.parsing import Parser
from octavo.client.restart_policy import Timing
from octavo.loader.pinned import ALIASES
from octavo.options.declare import declared_in
from octavo.options.engine import EngineArguments
from octavo.options.models import ModelsSettings
from octavo.options.server import ServerSettings

_FILES = frozenset({"FILE", "PATH", "PLACE", "TEMPLATE", "IN", "OUT", "MODEL", "MODEL PROMPT"})
_DIRECTORIES = frozenset({"DIR"})


class Argument(NamedTuple):
    """An option, or a word of a command if it has no flags."""

    flags: tuple[str, ...]
    value: str  # its placeholder; empty if it takes no value
    help: str
    group: str
    choices: tuple[str, ...]  # of the value, or examples of it
    is_attached: bool  # whether the value may be left out, and else follows after a =
    repeats: bool

    @property
    def is_file(self) -> bool:
        """True if the value may be the name of a file."""
        return self.value in _FILES

    @property
    def is_directory(self) -> bool:
        """True if the value may be the name of a directory."""
        return self.value in _DIRECTORIES


class Page(NamedTuple):
    """The description of a command."""

    command: Command
    text: str
    more: str  # further paragraphs
    arguments: tuple[Argument, ...]


def pages() -> Iterator[Page]:
    """Yield the description of each command."""
    return map(page, COMMANDS.values())


def page(command: Command) -> Page:
    """Return the description of a command."""
    parser = make_parser(command)
    text, more = parser.description or "", parser.epilog or ""
    return Page(command, text, more, tuple(_arguments(parser)))


def _arguments(parser: Parser) -> Iterator[Argument]:
    """Yield what `--help` shows, in its order."""
    visible = parser.visible_actions()
    for group in parser._action_groups:
        for action in group._group_actions:
            if action in visible:
                yield _argument(action, group.title or "")


def _argument(action: argparse.Action, group: str) -> Argument:
    value = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
    choices = action.choices or _declared().get(action.dest, ())
    if value in ("MODEL", "MODEL PROMPT"):
        choices = tuple(ALIASES)
    return Argument(
        tuple(action.option_strings),
        value,
        " ".join((action.help or "").split()),
        group,
        tuple(map(str, choices)),
        is_attached=action.nargs == argparse.OPTIONAL and bool(action.option_strings),
        repeats=isinstance(action, argparse._AppendAction) or action.nargs in ("+", "*"),
    )


@cache
def _declared() -> dict[str, tuple[object, ...]]:
    """Return the values of settings that have a list of them."""
    structs: tuple[type, ...] = (EngineArguments, ServerSettings, ModelsSettings, Timing)
    return {
        each.name: each.choices
        for struct in structs
        for each in declared_in(struct)
        if each.choices
    }
