"""The flags of the server, one for every field of ServerSettings, and its keys."""

from __future__ import annotations

import argparse
import logging
from typing import Any

from octavo.cli.flags.access import add_keys, keys_of, words
from octavo.cli.flags.adapters import add_adapter_flags, applied
from octavo.cli.parsing import Parser, UsageError
from octavo.options.declare import add_flags, aliases_of, given_in
from octavo.options.server import ServerSettings

log = logging.getLogger("octavo.cli")

_GROUPS = (
    *("network", "access", "dialect", "limits", "times"),
    *("durable requests", "kept responses", "batches", "adapters", "traces"),
)


def add_server_options(parser: Parser) -> None:
    """Add the flags, in groups."""
    for title in _GROUPS:
        group = parser.add_argument_group(title)
        add_flags(group, ServerSettings, title)
        if title == "access":
            _add_keys(group)
        if title == "adapters":
            add_adapter_flags(group)
    parser.add_aliases(aliases_of(ServerSettings))


def _add_keys(group: argparse._ArgumentGroup) -> None:
    """Add the flags of keys, and of the shares of keys."""
    add_keys(group)
    group.add_argument(
        "--key-weight",
        dest="key_weights",
        action="append",
        metavar="NAME=WEIGHT",
        help="a key's share of the engine, compared with 1 of the others; its name is the first "
        "16 hexadecimal digits of its SHA-256, as /metrics shows it",
    )


def server_settings(arguments: argparse.Namespace) -> ServerSettings:
    """Return the checked settings of the command line and the environment."""
    from octavo import env

    asked = given_in(arguments, ServerSettings)
    if "chat_template" in asked:
        from octavo.cli.template import read_template

        asked["chat_template"] = read_template(asked["chat_template"])
    for name in ("allowed_hosts", "allowed_origins"):
        asked[name] = words(asked.get(name))
    for name in ("served_model_name", "middleware", "lora_modules"):
        if name in asked:
            asked[name] = tuple(asked[name])
    if env.allows_lora_updating():
        asked.setdefault("allow_runtime_lora_updating", True)
    asked["lora_modules"] = applied(asked.get("lora_modules", ()), arguments)
    asked["key_weights"] = dict(map(_weight, asked.get("key_weights", ())))
    config = ServerSettings(api_keys=keys_of(arguments), **asked)
    _check_variables(config)
    names_formats = config.tool_call_parser or config.reasoning_parser or config.reasoning_config
    if names_formats or config.tool_parser_plugin:
        from octavo.serving.answers.formats import check_names

        check_names(config)  # before the model is loaded
    return config


def with_adapters(options: dict[str, Any], config: ServerSettings) -> dict[str, Any]:
    """Return the engine's options, with adapters where the server's settings name some."""
    if not config.names_adapters:
        return options
    if options.get("enable_lora") is False:
        raise UsageError("adapters are named, and --no-enable-lora excludes them; leave one out")
    return {**options, "enable_lora": True}


def _check_variables(config: ServerSettings) -> None:
    """Refuse variables of other servers that would protect theirs; name those without effect."""
    from octavo import env
    from octavo.options.foreign import REFUSED, advice_on

    given = env.set_variables()
    for name in given:
        setting, reason = REFUSED.get(name, ("", ""))
        if setting and not getattr(config, setting):
            raise UsageError(f"{name} is set, and has no effect here: {reason}")
    if config.otlp_traces_endpoint is None and (named := env.trace_endpoints()):
        log.warning("%s: no traces are sent without --otlp-traces-endpoint", named)
    if advice := advice_on(given):
        log.warning("variables of other servers, without effect: %s", ", ".join(advice))


def _weight(text: str) -> tuple[str, float]:
    """Return the name of a key and its weight, from a value of --key-weight."""
    name, _, weight = text.partition("=")
    try:
        return name.strip(), float(weight)
    except ValueError:
        raise UsageError(
            f"--key-weight {text!r} must be NAME=WEIGHT with a number, as in 0123456789abcdef=2"
        ) from None
