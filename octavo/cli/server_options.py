"""The flags of the server: one for every field of ServerSettings, named as vLLM's where it has any.

vLLM's flags that mean nothing here are taken with a line of reason; those that ask for what there
is not are refused with one.
"""

from __future__ import annotations

import argparse
import logging
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli.parsing import Parser, UsageError, byte_count, seconds, token_count

if TYPE_CHECKING:
    from octavo.server.settings import ServerSettings

log = logging.getLogger("octavo.cli")

_ON = "store_true"
# Field, type (or _ON), placeholder, and what it is.
_Row = tuple[str, Any, str, str]
_NETWORK: tuple[_Row, ...] = (
    ("host", str, "ADDRESS", "the address to listen at; others than this machine's need a key"),
    ("port", int, "NUMBER", "0: any that is free"),
    ("max_connections", int, "COUNT", "open at once"),
    ("max_connections_per_client", int, "COUNT", "of one address"),
    ("admin_socket", Path, "PATH", "a unix socket for operators: pause, drain, abort, log level"),
)
_ACCESS: tuple[_Row, ...] = (
    ("insecure_no_auth", _ON, "", "serve the network without a key"),
    ("public_metrics", _ON, "", "/metrics without a key"),
    ("trust_request_chat_template", _ON, "", "render templates that requests bring"),
    ("cache_scope", str, "WHO", "who shares prefixes: those with the same key, or global (all)"),
    ("log_prompts", _ON, "", "write prompts to the log"),
)
_DIALECT: tuple[_Row, ...] = (
    ("strict", _ON, "", "refuse fields that are not known"),
    ("metrics_names", str, "NAMES", "octavo or vllm, for dashboards made for it"),
)
_BOUNDS: tuple[_Row, ...] = (
    ("max_output_tokens", token_count, "TOKENS", "most tokens of an answer"),
    ("max_request_seconds", seconds, "SECONDS", "most time of a request, waiting and generating"),
    ("max_waiting_requests", int, "COUNT", "requests in the queue; more are refused with 429"),
    ("max_waiting_tokens", token_count, "TOKENS", "tokens in the queue"),
    ("max_waiting_bytes", byte_count, "SIZE", "bytes in the queue"),
    ("max_running_sequences", int, "COUNT", "handed to the engine at once"),
    ("max_body_bytes", byte_count, "SIZE", "of a request's body"),
    ("max_header_bytes", byte_count, "SIZE", "of a request's headers"),
    ("max_headers", int, "COUNT", "headers of a request"),
    ("num_explained", int, "COUNT", "recent requests that can be explained"),
)
_TIMES: tuple[_Row, ...] = (
    ("drain_seconds", seconds, "SECONDS", "for running requests to finish after SIGTERM"),
    ("stall_seconds", seconds, "SECONDS", "a reader that takes nothing for so long is dropped"),
    ("header_seconds", seconds, "SECONDS", "for a request's headers to arrive"),
    ("body_seconds", seconds, "SECONDS", "for its body to arrive"),
    ("idle_seconds", seconds, "SECONDS", "between two requests of a connection"),
    ("status_seconds", seconds, "SECONDS", "longest wait before a stream's status line"),
    (
        "ping_seconds",
        seconds,
        "SECONDS",
        "silence after which a stream carries a comment; 0: never",
    ),
    ("template_seconds", seconds, "SECONDS", "for a chat template to be rendered"),
    ("tokenize_seconds", seconds, "SECONDS", "for a text to be tokenised"),
    ("prompt_workers", int, "COUNT", "processes that render and tokenise prompts"),
)
_GROUPS = {
    "network": _NETWORK,
    "access": _ACCESS,
    "dialect": _DIALECT,
    "limits": _BOUNDS,
    "times": _TIMES,
}
_ROWS = tuple(row for rows in _GROUPS.values() for row in rows)

# vLLM's that change nothing here, and why; a flag ending in "!" stands alone.
_INERT = {
    "allow-credentials!": "cookies mean nothing here",
    "allowed-methods": "they are those of each route",
    "allowed-headers": "pages of allowed origins may send what the routes read",
    "api-server-count": "there is one front end",
    "disable-fastapi-docs!": "/docs needs the key like everything else",
    "disable-frontend-multiprocessing!": "--engine inline is the way to one process",
    "disable-uvicorn-access-log!": "requests are not logged",
    "enable-log-outputs!": "answers are never logged",
    "enable-prompt-tokens-details!": "they are always told",
    "enable-request-id-headers!": "they are always sent",
    "enable-server-load-tracking!": "/metrics always tells the load",
    "max-log-len": "prompts are not logged unless --log-prompts",
    "device": "the backend knows",
    "chat-template-content-format": "it is seen from the template",
    "guided-decoding-backend": "structured output is not there yet",
    "structured-outputs-config": "structured output is not there yet",
    "enable-force-include-usage!": "clients that want it send stream_options",
}
# … and those that ask for what there is not.
_REFUSED = {
    "ssl-keyfile": "there is no TLS; put a reverse proxy in front",
    "ssl-certfile": "there is no TLS; put a reverse proxy in front",
    "ssl-ca-certs": "there is no TLS; put a reverse proxy in front",
    "shutdown-timeout": "--drain-seconds says how long running requests may finish",
    "otlp-traces-endpoint": "install OpenTelemetry's ASGI middleware with --middleware",
    "hf-token": "other users could see it in the list of processes; set HF_TOKEN",
    "uds": "it listens on TCP; --admin-socket is a unix socket for operators",
    "config": "options are given on the command line",
    "default-chat-template-kwargs": "send chat_template_kwargs with the request",
    "root-path": "routes begin at /; let the reverse proxy take the prefix away",
    "lora-modules": "there are no adapters yet",
    "tool-call-parser": "tool calls are not parsed yet",
    "enable-auto-tool-choice!": "tool calls are not parsed yet",
    "reasoning-parser": "reasoning is not told apart yet",
    "response-role": "answers are the assistant's",
}


def add_server_options(parser: Parser) -> None:
    """Flags by what they are about."""
    from octavo.server.settings import ServerSettings

    defaults = {field.name: field.default for field in fields(ServerSettings)}
    for title, rows in _GROUPS.items():
        group = parser.add_argument_group(title)
        for name, kind, metavar, text in rows:
            flag = "--" + name.replace("_", "-")
            if kind is _ON:
                group.add_argument(flag, dest=name, action=_ON, help=text)
                continue
            default = defaults[name]
            shown = f" ({default:,})" if isinstance(default, int) and default > 9999 else ""
            if default is not None and not shown:
                shown = f" ({default:g})" if isinstance(default, float) else f" ({default})"
            group.add_argument(
                flag, dest=name, type=kind, metavar=metavar, default=None, help=text + shown
            )
        _add_special(title, group)
    for name in (*_INERT, *_REFUSED):
        _add_foreign(parser, name)


def _add_special(title: str, group: argparse._ArgumentGroup) -> None:
    """Flags that are not simply a field."""
    match title:
        case "access":
            group.add_argument(
                "--api-key",
                action="append",
                metavar="KEY",
                help="a key that clients must send; other users of this machine can see it in the "
                "list of processes, so better the next, or OCTAVO_API_KEY",
            )
            group.add_argument("--api-key-file", type=Path, metavar="FILE", help="keys, one a line")
            for what, text in (
                ("host", "a name the server is called by, beside the address; *: any"),
                ("origin", "a web page's that may call, as in https://app.example; *: any"),
            ):
                group.add_argument(
                    f"--allowed-{what}",
                    f"--allowed-{what}s",
                    dest=f"allowed_{what}s",
                    action="append",
                    metavar=what.upper(),
                    help=text,
                )
            group.add_argument(
                "--middleware",
                action="append",
                metavar="MODULE:FACTORY",
                help="an ASGI middleware, made by factory(application); give it again for more, "
                "the last of which is the outermost",
            )
        case "dialect":
            group.add_argument(
                "--served-model-name",
                nargs="+",
                action="extend",
                metavar="NAME",
                help="what the model is called; of several names, all of which are taken, answers "
                "tell the first; by default as it is named here",
            )
            group.add_argument(
                "--no-explain",
                dest="enable_explain",
                action="store_false",
                help="do not keep where requests' time went",
            )
            group.add_argument(
                "--chat-template",
                metavar="FILE",
                help="a Jinja template instead of the model's: a file, or the template itself",
            )


def _add_foreign(parser: Parser, name: str) -> None:
    flag, destination = "--" + name.rstrip("!"), "foreign:" + name
    options: dict[str, Any] = {"action": _ON} if name.endswith("!") else {}
    parser.add_argument(flag, dest=destination, default=None, help=argparse.SUPPRESS, **options)


def server_settings(arguments: argparse.Namespace) -> ServerSettings:
    """What was asked for, checked."""
    from octavo import env
    from octavo.server.settings import ServerSettings, read_keys

    _settle_foreign(arguments)
    given = {name: getattr(arguments, name) for name, *_ in _ROWS}
    # A flag that is not given is None or, where it stands alone, False; 0 is a value.
    asked = {
        name: value for name, value in given.items() if value is not None and value is not False
    }
    typed = tuple(arguments.api_key or ())
    keys = read_keys(arguments.api_key_file, env.api_keys())
    for name, choices in (
        ("cache_scope", ("key", "global")),
        ("metrics_names", ("octavo", "vllm")),
    ):
        if name in asked and asked[name] not in choices:
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} {asked[name]!r} must be one of {', '.join(choices)}")
    if arguments.chat_template is not None:
        from octavo.cli.template import read_template

        asked["chat_template"] = read_template(arguments.chat_template)
    if arguments.served_model_name is not None:
        asked["served_model_name"] = tuple(arguments.served_model_name)
    return ServerSettings(
        api_keys=tuple(dict.fromkeys((*typed, *keys))),
        allowed_hosts=_words(arguments.allowed_hosts),
        allowed_origins=_words(arguments.allowed_origins),
        enable_explain=arguments.enable_explain,
        middleware=tuple(arguments.middleware or ()),
        **asked,
    )


def _settle_foreign(arguments: argparse.Namespace) -> None:
    """Refuse vLLM's flags that ask for what there is not; name those that change nothing."""
    given = vars(arguments)
    for name, reason in _REFUSED.items():
        if given.get(f"foreign:{name}") is not None:
            raise UsageError(f"--{name.rstrip('!')} is not possible: {reason}")
    ignored = [
        f"--{name.rstrip('!')} ({reason})"
        for name, reason in _INERT.items()
        if given.get(f"foreign:{name}") is not None
    ]
    if ignored:
        log.warning("taken for compatibility, without effect: %s", ", ".join(ignored))


def _words(given: list[str] | None) -> tuple[str, ...]:
    """Names given one by one, or, as vLLM wants them, as a JSON list."""
    import json

    found: list[str] = []
    for text in given or ():
        if not text.startswith("["):
            found.append(text)
            continue
        try:
            names = json.loads(text)
        except json.JSONDecodeError:
            raise UsageError(f"{text!r} is not a JSON list of names") from None
        if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
            raise UsageError(f"{text!r} is not a JSON list of names")
        found += names
    return tuple(found)
