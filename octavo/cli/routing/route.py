"""Shares requests among servers with the API of OpenAI: Octavo, vLLM, llama.cpp and others.

A request goes where its prefix is cached or least waits, and a session stays with its server. The
first SIGTERM or Ctrl-C lets open requests finish; the second ends at once.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.cli.flags.access import add_keys, keys_of, words
from octavo.cli.flags.log_level import add_log_level
from octavo.cli.output import table
from octavo.cli.parsing import Parser, UsageError
from octavo.options.declare import add_flags, given_in
from octavo.options.route import RouteSettings
from octavo.options.transport import read_keys

if TYPE_CHECKING:
    from octavo.route.lifecycle import RouterLifecycle
    from octavo.route.upstream import Upstream

_GROUPS = ("routing", "network", "access", "limits", "times")
_WITHOUT = ("grpc_port", "ping_seconds")  # a router sends nothing of its own


def add_arguments(parser: Parser) -> None:
    """Add the servers, and the flags of the router."""
    parser.add_argument(
        "servers",
        nargs="*",
        metavar="URL",
        help="a server: http://HOST:PORT, also as the base URL of its clients, which ends in /v1",
    )
    add_log_level(parser)
    for title in _GROUPS:
        group = parser.add_argument_group(title)
        add_flags(group, RouteSettings, title, without=_WITHOUT)
        if title == "routing":
            group.add_argument(
                "--kv-events",
                action="append",
                default=[],
                metavar="URL=ENDPOINT[,REPLAY]",
                help="where a server publishes what it caches (its --kv-events-config), and where "
                "it sends missed events again: http://HOST:PORT=tcp://HOST:5557,tcp://HOST:5558; "
                "once for each engine",
            )
        if title == "access":
            add_keys(group)
            group.add_argument(
                "--upstream-api-key-file",
                type=Path,
                metavar="FILE",
                help="the key that the servers want, in place of those of clients, which "
                "are passed on otherwise",
            )
            group.add_argument(
                "--upstream-api-key",
                metavar="KEY",
                help="the same on the command line, where other users of this machine can see it",
            )


def settings_of(arguments: argparse.Namespace) -> RouteSettings:
    """Return the checked settings of the command line and the environment."""
    asked = given_in(arguments, RouteSettings)
    for name in ("allowed_hosts", "allowed_origins"):
        asked[name] = words(asked.get(name))
    asked["servers"] = tuple(arguments.servers)
    asked["kv_events"] = tuple(arguments.kv_events)
    asked["upstream_api_key"] = _upstream_key(arguments)
    return RouteSettings(api_keys=keys_of(arguments), **asked)


def _upstream_key(arguments: argparse.Namespace) -> str:
    """Return the key that the servers want; "" if there is none of their own."""
    file, typed = arguments.upstream_api_key_file, arguments.upstream_api_key
    if file is None:
        if typed == "":
            raise UsageError("--upstream-api-key is empty; leave it out, or give it a key")
        return typed or ""
    keys = read_keys(file, typed or "")
    if len(keys) > 1:
        raise UsageError("all servers have one key: --upstream-api-key-file has several, or both")
    return keys[0]


def run(arguments: argparse.Namespace) -> int:
    """Check everything that can be checked, and route."""
    from octavo.observe.output import output_never_blocks
    from octavo.route.address import read_addresses
    from octavo.route.kv_events.address import read_events_addresses
    from octavo.route.lifecycle import run as route
    from octavo.transport.restart.given import check_addresses
    from octavo.transport.tls import make_context

    config = settings_of(arguments)
    read_events_addresses(config.kv_events, read_addresses(config.servers))
    check_addresses(config)
    if config.ssl_certfile is not None:
        make_context(config)
    with output_never_blocks():
        return route(config, _say_ready)


def _say_ready(life: RouterLifecycle) -> None:
    rows = [(each.name, each.trouble or _models(each)) for each in life.router.upstreams]
    sys.stdout.write(f"{ready_text(life)}\n{table(rows, indent='  ')}")
    sys.stdout.flush()


def _models(upstream: Upstream) -> str:
    if upstream.models is None:
        return f"ready, any model: {upstream.nameless}"
    return f"ready, {', '.join(upstream.models) or 'no model'}"


def ready_text(life: RouterLifecycle) -> str:
    """Return the text of a started router: its address, and a command to try it."""
    config = life.config
    host = "127.0.0.1" if config.host in ("0.0.0.0", "::") else config.host
    scheme = "http" if config.ssl_certfile is None else "https"
    url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{life.port}"
    where, curl = url, "curl"
    if config.uds is not None:
        where, url = f"the unix socket {config.uds}", f"{scheme}://localhost"
        curl = f"curl --unix-socket {shlex.quote(str(config.uds))}"
    key = ' -H "Authorization: Bearer $OCTAVO_API_KEY"' if config.api_keys else ""
    names = life.router.model_names()
    body = {"model": names[0] if names else "MODEL"}
    whole = json.dumps({**body, "messages": [{"role": "user", "content": "Hello"}]})
    count = len(life.router.upstreams)
    return (
        f"Octavo routes at {where} to {count} server{'s' if count > 1 else ''}\n\n"
        f"  {curl} {url}/v1/chat/completions{key} -H 'Content-Type: application/json' "
        f"-d {shlex.quote(whole)}\n"
    )
