"""The pages for operators name settings in one way: by their flags."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from octavo.cli.commands import COMMANDS
from octavo.cli.execute import make_parser
from octavo.client.restart_policy import Timing
from octavo.options.engine import EngineArguments
from octavo.options.server import ServerSettings

DOCS = Path(__file__).parents[2] / "docs"
SETTINGS = {
    field.name for kind in (ServerSettings, Timing, EngineArguments) for field in fields(kind)
}
_QUOTED = re.compile(r"`([^`\n]+)`")
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
_OTHER_PROGRAMS = frozenset({"--unix-socket"})


def words_of(text: str) -> list[str]:
    """Return what a page quotes."""
    return _QUOTED.findall(text)


@pytest.mark.parametrize("page", ["operations.md", "security.md", "durable.md"])
def test_settings_are_named_by_their_flags(page: str) -> None:
    quoted = words_of((DOCS / page).read_text())
    bare = [each for each in quoted if "_" in each and each.partition("=")[0].strip() in SETTINGS]
    assert not bare, f"name the flags of these: {bare}"


@pytest.mark.parametrize("page", ["operations.md", "security.md", "durable.md"])
def test_each_flag_exists(page: str) -> None:
    commands = (COMMANDS["config"], COMMANDS["route"])  # the former has serve's
    known = {flag for each in commands for flag in make_parser(each).flags()} | _OTHER_PROGRAMS
    quoted = " ".join(words_of((DOCS / page).read_text()))
    unknown = set(_FLAG.findall(quoted)) - known
    assert not unknown, f"octavo serve has no such flags: {sorted(unknown)}"
