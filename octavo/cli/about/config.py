"""Checks the options of `octavo serve`, and prints those that are given, with their origins.

It reads the same flags, variables and file as `octavo serve`, and loads no model. API keys are
counted and not printed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from octavo import env
from octavo.cli import serve
from octavo.cli.output import table
from octavo.cli.parsing import Parser
from octavo.options.declare import declared_in
from octavo.options.engine import NOT_OPTIONS
from octavo.options.models import ModelsSettings

_DEFAULT, _FOLLOWS = "default", "follows from others"
_OWN = (
    "engine",
    "log_level",
    "log_format",
    "download_dir",
)  # flags of `octavo serve` that are in no struct
_MOST_CHARACTERS = 200  # of a value

Row = tuple[str, str, str]


def add_arguments(parser: Parser) -> None:
    """Add the flags of `octavo serve`, and one of this command."""
    parser.add_argument(
        "--show", action="store_true", help="print all settings, those with their defaults too"
    )
    serve.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the settings, or those that are given."""
    rows = [row for row in _rows(arguments) if arguments.show or row[1] != _DEFAULT]
    if rows:
        sys.stdout.write(table([("setting", "from", "value"), *rows]))
    else:
        sys.stdout.write("all settings have their defaults, which --show prints\n")
    return 0


def _rows(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each setting: its name, where its value is from, and the value."""
    settings = serve.settings_of(arguments)
    origins = {**_origins_of_keys(arguments.origins), **arguments.origins}
    if env.allows_lora_updating():
        origins.setdefault("allow_runtime_lora_updating", env.LORA_UPDATING)
    model = settings.engine.model if settings.several is None else ", ".join(arguments.model_word)
    yield "model", origins.get("model", _DEFAULT), _text(model)
    for name in _OWN:
        yield _key(name), origins.get(name, _DEFAULT), _text(getattr(arguments, name))
    several = settings.several or ModelsSettings()
    structs: tuple[Any, ...] = (settings.server, several, settings.engine, settings.timing)
    for struct in structs:
        kind: type = type(struct)
        for each in declared_in(kind):
            if each.name in NOT_OPTIONS:
                continue
            value = getattr(struct, each.name)
            default = {} if each.default is dataclasses.MISSING else each.default
            origin = origins.get(each.name, _DEFAULT if value == default else _FOLLOWS)
            text = f"{len(value)} (not shown)" if each.name == "api_keys" else _text(value)
            yield _key(each.name), origin, text


def _origins_of_keys(origins: Mapping[str, str]) -> dict[str, str]:
    """Return the origins of the API keys, which come from several places at once."""
    found = [origins[name] for name in ("api_key", "api_key_file") if name in origins]
    if env.api_keys():
        found.append(env.API_KEY)
    foreign, _ = env.foreign_api_keys()
    if foreign and not found:
        found.append(foreign)
    return {"api_keys": ", ".join(found)} if found else {}


def _key(name: str) -> str:
    """Return the key that a file of options has for a setting."""
    return name.replace("_", "-")


def _text(value: Any) -> str:
    """Return a value in one line, shortened if it is long."""
    text = value if isinstance(value, str) else json.dumps(value, default=_plain)
    if not text.isprintable():
        text = json.dumps(text)
    if len(text) > _MOST_CHARACTERS:
        text = f"{text[:_MOST_CHARACTERS]}... ({len(text):,} characters)"
    return text


def _plain(value: Any) -> Any:
    """Return what JSON has for a value of another type."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((each.name, getattr(value, each.name)) for each in dataclasses.fields(value))
        return {name: part for name, part in pairs if part is not None}
    return dict(value) if isinstance(value, Mapping) else str(value)
