"""The flags of the server, one for every field of ServerSettings, named as in vLLM if it has one.

Flags of vLLM and of other servers that mean the same are understood too.
"""

from __future__ import annotations

import argparse
import logging
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli.parsing import Parser, UsageError, byte_count, seconds, token_count

if TYPE_CHECKING:
    from octavo.serving.settings import ServerSettings

log = logging.getLogger("octavo.cli")

_ON = "store_true"
# Field, type (or _ON), placeholder and help text.
_Row = tuple[str, Any, str, str]
_NETWORK: tuple[_Row, ...] = (
    (
        "host",
        str,
        "ADDRESS",
        "the address to listen on; one that other machines can reach needs a key",
    ),
    ("port", int, "NUMBER", "the port to listen on; 0: any free port"),
    (
        "grpc_port",
        int,
        "NUMBER",
        "the port of the gRPC interface beside HTTP; 0: any free port (octavo[grpc])",
    ),
    ("uds", Path, "PATH", "a unix socket for clients, instead of an address and a port"),
    ("root_path", str, "PREFIX", "a prefix of all paths that a reverse proxy adds or removes"),
    ("ssl_certfile", Path, "FILE", "serve TLS, with this certificate chain (PEM)"),
    ("ssl_keyfile", Path, "FILE", "the certificate's key, if it is in another file"),
    ("ssl_ca_certs", Path, "FILE", "the authorities that sign clients' certificates (PEM)"),
    (
        "ssl_cert_reqs",
        int,
        "MODE",
        "clients' certificates: 0 not asked for, 1 optional, 2 required",
    ),
    ("max_connections", int, "COUNT", "the most open connections"),
    ("max_connections_per_client", int, "COUNT", "the most open connections of one address"),
    ("admin_socket", Path, "PATH", "a unix socket for operators: pause, drain, abort, log level"),
)
_ACCESS: tuple[_Row, ...] = (
    ("insecure_no_auth", _ON, "", "serve other machines without a key"),
    ("public_metrics", _ON, "", "serve /metrics without a key"),
    ("trust_request_chat_template", _ON, "", "render chat templates that requests contain"),
    (
        "cache_scope",
        str,
        "WHO",
        "which requests share prefixes: those with the same key (key), or all (global)",
    ),
    ("log_prompts", _ON, "", "write prompts to the log"),
)
_DIALECT: tuple[_Row, ...] = (
    ("strict", _ON, "", "refuse unknown fields"),
    (
        "enable_force_include_usage",
        _ON,
        "",
        "send the usage in every chunk of every stream, and in a last one of its own",
    ),
    (
        "enable_per_request_metrics",
        _ON,
        "",
        "add the times of a request with one answer to it, in a stream beside the usage at its end",
    ),
    (
        "return_tokens_as_token_ids",
        _ON,
        "",
        "name tokens as token_id:N in log-probabilities, unless a request says otherwise",
    ),
    (
        "tokens_only",
        _ON,
        "",
        "answer with token ids alone: /inference/v1/generate is the only route that generates",
    ),
    ("metrics_names", str, "NAMES", "octavo, or vllm for dashboards that expect its names"),
    (
        "chat_template_content_format",
        str,
        "FORMAT",
        "what chat templates read as a message's content: openai (a list of parts) or string",
    ),
    (
        "tool_call_parser",
        str,
        "NAME",
        "the format of the model's tool calls, instead of the one that its chat template shows",
    ),
    (
        "reasoning_parser",
        str,
        "NAME",
        "the format of its reasoning, likewise; none: it is not separated",
    ),
    (
        "tool_parser_plugin",
        Path,
        "FILE",
        "a description of further formats, for the two options above",
    ),
)
_BOUNDS: tuple[_Row, ...] = (
    ("max_output_tokens", token_count, "TOKENS", "the most tokens of an answer"),
    (
        "max_embed_len",
        token_count,
        "TOKENS",
        "the most tokens of a text to embed; one longer than the model reads is embedded in pieces",
    ),
    (
        "max_request_seconds",
        seconds,
        "SECONDS",
        "the longest time of a request, in the queue and in the engine",
    ),
    (
        "max_response_bytes",
        byte_count,
        "SIZE",
        "the largest body with several answers, estimated from their lengths; streams have none",
    ),
    ("max_waiting_requests", int, "COUNT", "the most requests in the queue; others get a 429"),
    ("max_waiting_tokens", token_count, "TOKENS", "the most prompt tokens in the queue"),
    ("max_waiting_bytes", byte_count, "SIZE", "the most bytes in the queue"),
    ("max_running_sequences", int, "COUNT", "the most sequences in the engine at once"),
    ("max_body_bytes", byte_count, "SIZE", "the largest body of a request"),
    ("max_header_bytes", byte_count, "SIZE", "the largest head of a request"),
    ("max_headers", int, "COUNT", "the most headers of a request"),
    ("num_explained", int, "COUNT", "recent requests that /explain knows"),
)
_TIMES: tuple[_Row, ...] = (
    (
        "drain_seconds",
        seconds,
        "SECONDS",
        "time for running requests to finish after SIGTERM; 0: they end at once",
    ),
    (
        "ready_seconds",
        seconds,
        "SECONDS",
        "how old the engine's last step may be, and how long a test step may take, to be ready",
    ),
    (
        "stall_seconds",
        seconds,
        "SECONDS",
        "time after which a client that reads nothing is disconnected",
    ),
    ("header_seconds", seconds, "SECONDS", "time for the head of a request to arrive"),
    ("body_seconds", seconds, "SECONDS", "time for its body to arrive"),
    ("idle_seconds", seconds, "SECONDS", "time between two requests on a connection"),
    (
        "status_seconds",
        seconds,
        "SECONDS",
        "longest wait for the first token before a stream starts",
    ),
    (
        "ping_seconds",
        seconds,
        "SECONDS",
        "silence after which a stream sends a comment; 0: never",
    ),
    ("template_seconds", seconds, "SECONDS", "for a chat template to be rendered"),
    ("tokenize_seconds", seconds, "SECONDS", "for a text to be tokenised"),
    ("shape_seconds", seconds, "SECONDS", "for the grammar of a response's shape to be compiled"),
    ("prompt_workers", int, "COUNT", "processes that render and tokenise prompts"),
    (
        "prompt_worker_bytes",
        byte_count,
        "SIZE",
        "the most memory of such a process, beside the model's tokenizer",
    ),
)
_DURABLE: tuple[_Row, ...] = (
    (
        "journal",
        Path,
        "PATH",
        "a file from which streams continue after the end of their connection or of the server",
    ),
    (
        "journal_seconds",
        seconds,
        "SECONDS",
        "time for which an answer is kept after its end",
    ),
    ("journal_bytes", byte_count, "SIZE", "the most bytes of requests that are kept"),
)
_RESPONSES: tuple[_Row, ...] = (
    ("responses_store", Path, "PATH", "a file in which responses are kept after the server's end"),
    ("responses_seconds", seconds, "SECONDS", "time for which a response is kept"),
    ("responses_bytes", byte_count, "SIZE", "the most bytes of responses that are kept"),
)
_BATCHES: tuple[_Row, ...] = (
    ("batch_dir", Path, "PATH", "a directory for files and batches, which continue after a kill"),
    ("batch_bytes", byte_count, "SIZE", "the most bytes of all files"),
    ("batch_file_bytes", byte_count, "SIZE", "the largest file of requests"),
    ("batch_lines", int, "COUNT", "the most requests of a batch"),
    ("batch_keep_seconds", seconds, "SECONDS", "time for which files and results are kept"),
)
_GROUPS = {
    "network": _NETWORK,
    "access": _ACCESS,
    "dialect": _DIALECT,
    "limits": _BOUNDS,
    "times": _TIMES,
    "durable requests": _DURABLE,
    "kept responses": _RESPONSES,
    "batches": _BATCHES,
}
_ROWS = tuple(row for rows in _GROUPS.values() for row in rows)

# Other names of flags, which help does not show: vLLM's own for the same.
_ALIASES = {
    "--max-num-queued-tokens": "--max-waiting-tokens",
    "--sse-keep-alive-interval": "--ping-seconds",
    "--shutdown-timeout": "--drain-seconds",
    "--h11-max-header-count": "--max-headers",
    "--h11-max-incomplete-event-size": "--max-header-bytes",
    "--renderer-num-workers": "--prompt-workers",
}


def add_server_options(parser: Parser) -> None:
    """Add the flags, in groups."""
    from octavo.serving.settings import ServerSettings

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
    parser.add_aliases(_ALIASES)


_KEY_WEIGHT: dict[str, Any] = {
    "dest": "key_weights",
    "action": "append",
    "metavar": "NAME=WEIGHT",
    "help": "a key's share of the engine, compared with 1 of the others; its name is the first 16 "
    "hexadecimal digits of its SHA-256, as /metrics shows it",
}


def _add_special(title: str, group: argparse._ArgumentGroup) -> None:
    """Add the flags of a group that need more than a row in its table."""
    match title:
        case "access":
            group.add_argument(
                "--api-key",
                nargs="+",
                action="extend",
                metavar="KEY",
                help="keys, one of which clients must send; other users of this machine can see "
                "them in the list of processes, unlike --api-key-file and OCTAVO_API_KEY; where no "
                "key is given, those of VLLM_API_KEY or LLAMA_API_KEY count",
            )
            group.add_argument(
                "--api-key-file", type=Path, metavar="FILE", help="keys, one per line"
            )
            group.add_argument("--key-weight", **_KEY_WEIGHT)
            for name, flags, metavar, text in (
                (
                    "allowed_hosts",
                    ("--allowed-host", "--allowed-hosts"),
                    "HOST",
                    "a host name of the server, besides its address; *: any, as if there are keys",
                ),
                (
                    "allowed_origins",
                    ("--allowed-origins", "--allowed-origin"),
                    "ORIGINS",
                    "an origin of web pages that may call, or a JSON list; *: any (this machine)",
                ),
            ):
                group.add_argument(*flags, dest=name, action="append", metavar=metavar, help=text)
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
                help="the names of the model; requests may use any of them, and responses have the "
                "first; by default the name on this command line",
            )
            group.add_argument(
                "--no-explain",
                dest="enable_explain",
                action="store_false",
                help="do not record where the time of requests went",
            )
            group.add_argument(
                "--chat-template",
                metavar="FILE",
                help="a Jinja template instead of the model's: a file, or the template itself",
            )
            group.add_argument("--reasoning-config", **_REASONING_CONFIG)
            group.add_argument("--cohere-is-reasoning-model", **_IS_REASONING)
            group.add_argument(
                "--default-chat-template-kwargs",
                metavar="JSON",
                help="variables of chat templates, where a request does not set them: a JSON "
                "object such as '{\"enable_thinking\": false}'",
            )


_IS_REASONING: dict[str, Any] = {
    "action": argparse.BooleanOptionalAction,
    "default": None,
    "help": "on /v2/chat, return reasoning as a block of thinking always, or in requests with "
    "tools as the plan of the calls (default: as the format of the reasoning is)",
}
_REASONING_CONFIG: dict[str, Any] = {
    "metavar": "JSON",
    "help": "how reasoning ends when a request's budget of it is spent: a JSON object with the "
    "keys reasoning_parser, reasoning_start_str and reasoning_end_str, whose text ends with the "
    "mark of the format",
}


def server_settings(arguments: argparse.Namespace) -> ServerSettings:
    """Return the checked settings of the command line and the environment."""
    from octavo import env
    from octavo.serving.settings import ServerSettings
    from octavo.transport.settings import read_keys

    given = {name: getattr(arguments, name) for name, *_ in _ROWS}
    # A missing flag is None or, if it takes no value, False; 0 is a value.
    asked = {
        name: value for name, value in given.items() if value is not None and value is not False
    }
    typed = tuple(arguments.api_key or ())
    keys = tuple(dict.fromkeys((*typed, *read_keys(arguments.api_key_file, env.api_keys()))))
    if not keys:
        variable, keys = env.foreign_api_keys()
        if keys:
            log.info("the API keys are those of %s", variable)
    for name, choices in (
        ("cache_scope", ("key", "global")),
        ("metrics_names", ("octavo", "vllm")),
        ("chat_template_content_format", ("auto", "openai", "string")),
    ):
        if name in asked and asked[name] not in choices:
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} {asked[name]!r} must be one of {', '.join(choices)}")
    if arguments.chat_template is not None:
        from octavo.cli.template import read_template

        asked["chat_template"] = read_template(arguments.chat_template)
    if arguments.default_chat_template_kwargs is not None:
        given = arguments.default_chat_template_kwargs
        asked["default_chat_template_kwargs"] = _object("--default-chat-template-kwargs", given)
    if arguments.reasoning_config is not None:
        asked["reasoning_config"] = _object("--reasoning-config", arguments.reasoning_config)
    if arguments.served_model_name is not None:
        asked["served_model_name"] = tuple(arguments.served_model_name)
    config = ServerSettings(
        api_keys=keys,
        key_weights=dict(map(_weight, arguments.key_weights or ())),
        allowed_hosts=_words(arguments.allowed_hosts),
        allowed_origins=_words(arguments.allowed_origins),
        enable_explain=arguments.enable_explain,
        cohere_is_reasoning_model=arguments.cohere_is_reasoning_model,
        middleware=tuple(arguments.middleware or ()),
        **asked,
    )
    _check_variables(config)
    names_formats = config.tool_call_parser or config.reasoning_parser or config.reasoning_config
    if names_formats or config.tool_parser_plugin:
        from octavo.serving.answers.formats import check_names

        check_names(config)  # before the model is loaded
    return config


def _check_variables(config: ServerSettings) -> None:
    """Refuse variables of other servers that would protect theirs; name those without effect."""
    from octavo import env
    from octavo.foreign_variables import REFUSED, advice_on

    given = env.set_variables()
    for name in given:
        setting, reason = REFUSED.get(name, ("", ""))
        if setting and not getattr(config, setting):
            raise UsageError(f"{name} is set, and has no effect here: {reason}")
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


def _object(flag: str, text: str) -> dict[str, Any]:
    """Return the JSON object that a flag holds."""
    import json

    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{flag} {text[:200]!r} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{flag} {text[:200]!r} must be a JSON object")
    return value


def _words(given: list[str] | None) -> tuple[str, ...]:
    """Return names that were given one by one, or in a JSON list as vLLM takes them."""
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
