"""No table says that something is missing, or has no effect, which exists by now."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields

import pytest

from octavo.cli.commands import COMMANDS
from octavo.cli.execute import make_parser
from octavo.cli.flags.other_servers import OTHERS
from octavo.dialects.common.schema.chat import ChatRequest
from octavo.models.registry import FAMILIES
from octavo.options.engine import EngineArguments
from octavo.options.foreign import FIXED, INERT, MISSING, REFUSED, WITHOUT_EFFECT
from octavo.options.server import ServerSettings
from octavo.options.speculation import _OF_OTHER_METHODS, METHODS, SpeculativeConfig
from octavo.server.admin.routes import ADMIN_ROUTES
from octavo.server.known_routes import NOT_YET
from octavo.server.routes import ROUTES
from octavo.serving.schema.rules import rules_of

PATHS = {route.path for route in (*ROUTES, *ADMIN_ROUTES)}
OPTIONS = {field.name for kind in (EngineArguments, ServerSettings) for field in fields(kind)}
FLAGS = {flag for command in COMMANDS.values() for flag in make_parser(command).flags()}
# What a message may call missing, and whether it is there. A message that says of anything else
# that it is not there yet must add it here.
FEATURES = {
    "structured output": "structured_outputs" in ChatRequest.__struct_fields__,
    "adapter": "enable_lora" in OPTIONS or "/v1/load_lora_adapter" in PATHS,
    "second model": "model" in {field.name for field in fields(SpeculativeConfig)},
    "trained head": any("eagle" in name or "medusa" in name for name in METHODS),
    "predicted output": "prediction" in ChatRequest.__struct_fields__,
    "models with states": any("mamba" in name.lower() for name in FAMILIES),
}
_NOT_YET = re.compile(r"\byet\b")
_PATH = re.compile(r"(?<![\w.:/])/[a-z][\w/{}.]*")
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
_FOREIGN_FLAGS = {"--predict", "--nnodes", "--reverse-prompt", "--node-rank"}


def reasons() -> Iterator[tuple[str, str]]:
    """Yield the messages of all tables, each with the name that it is about."""
    for table in (INERT, MISSING, WITHOUT_EFFECT, NOT_YET, _OF_OTHER_METHODS):
        yield from table.items()
    yield from ((name, reason) for name, (_, reason) in FIXED.items())
    yield from ((name, reason) for name, (_, reason) in REFUSED.items())
    yield from ((row.flags[0], row.reason) for row in OTHERS)
    for route in ROUTES:
        if route.request is not None:
            rules = rules_of(route.request)
            yield from rules.ignored.items()
            yield from ((name, rule.refusal) for name, rule in rules.unsupported.items())


def stale(reason: str) -> list[str]:
    """Return what is wrong with the message of a table."""
    found = []
    if _NOT_YET.search(reason):
        named = [name for name in FEATURES if name in reason]
        found += [f"{name} exists" for name in named if FEATURES[name]]
        if not named:
            found.append("says of what FEATURES does not have that it is not there yet")
    paths = (path.rstrip("/.") for path in _PATH.findall(reason))
    known = {*PATHS, "/render", "/log"}
    found += [f"there is no route {path}" for path in paths if path not in known]
    flags = {*_FLAG.findall(reason)} - FLAGS - _FOREIGN_FLAGS
    return found + [f"there is no flag {flag}" for flag in flags]


def test_no_message_is_stale() -> None:
    wrong = [(name, reason, problems) for name, reason in reasons() if (problems := stale(reason))]
    assert not wrong


@pytest.mark.parametrize(
    ("reason", "problem"),
    [
        ("structured output is not supported yet", "structured output exists"),
        ("there are no wings yet", "says of what FEATURES does not have"),
        ("see /nowhere, which has it", "there is no route /nowhere"),
        ("give --no-such-flag", "there is no flag --no-such-flag"),
    ],
)
def test_stale_messages_are_found(reason: str, problem: str) -> None:
    (found,) = stale(reason)
    assert problem in found


def test_an_option_that_exists_is_in_no_table() -> None:
    """Neither as a setting, nor as a key of speculation."""
    assert not OPTIONS & {*INERT, *MISSING, *FIXED}
    assert not {field.name for field in fields(SpeculativeConfig)} & _OF_OTHER_METHODS.keys()


def test_a_flag_that_exists_is_in_no_table() -> None:
    """A flag that a command shows in its help is no foreign one."""
    shown = {
        flag.removeprefix("--").replace("-", "_")
        for action in make_parser(COMMANDS["serve"]).visible_actions()
        for flag in action.option_strings
    }
    # The library has no such option; its callers set the variable.
    assert shown & {*INERT, *MISSING, *FIXED} == {"download_dir"}
    assert not {f"--{name.replace('_', '-')}" for name in shown} & {
        flag for row in OTHERS for flag in row.flags
    }


def test_a_field_that_exists_is_in_no_table_of_its_route() -> None:
    for route in ROUTES:
        if route.request is None:
            continue
        own, rules = set(route.request.__struct_fields__), rules_of(route.request)
        for table in (rules.unsupported, rules.ignored, rules.other_names):
            assert not own & table.keys(), (route.path, own & table.keys())
        assert not rules.unsupported.keys() & rules.ignored.keys(), route.path
