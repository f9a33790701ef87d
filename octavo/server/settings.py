"""The settings of the server, each with a default and a comment, checked when they are made."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from octavo.core.config import MAX_WEIGHT

MAX_NAME_CHARACTERS = 512  # of a model
MIN_KEY_CHARACTERS = 8  # where other machines can connect
_MAY_BE_ZERO = (
    "port",
    "grpc_port",
    "ping_seconds",
    "num_explained",
    "ssl_cert_reqs",
    "drain_seconds",
)
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class ServerSettingsError(ValueError):
    """An error for settings that cannot work or are dangerous; its message says what to change."""


class ServerStartError(ServerSettingsError):
    """An error for a file or an address that cannot be used now; the settings are not wrong."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings of the HTTP server."""

    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free port
    grpc_port: int | None = None  # of gRPC, beside HTTP; 0: any free port; None: it is not served
    uds: Path | None = None  # a unix socket for clients, instead of host and port
    root_path: str = ""  # a prefix of all paths that a reverse proxy adds or removes
    # TLS, with the certificate chain and its key in PEM files
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None  # default: the certificate's file
    ssl_ca_certs: Path | None = None  # of the authorities that sign clients' certificates
    ssl_cert_reqs: int = 0  # clients' certificates: 0: not asked for, 1: optional, 2: required
    # Default: the model's own name. Responses contain the first of several names.
    served_model_name: str | tuple[str, ...] | None = None
    api_keys: tuple[str, ...] = ()
    # Shares of the engine by key; its name is the first 16 hexadecimal digits of its SHA-256.
    key_weights: Mapping[str, float] = field(default_factory=dict)
    insecure_no_auth: bool = False  # serve other machines without a key
    # Host names besides `host`; "*": any. Without names, any host is served if there are keys.
    allowed_hosts: tuple[str, ...] = ()
    # Of web pages that may call, such as "https://app.example". Default: pages of this machine.
    allowed_origins: tuple[str, ...] = ()
    strict: bool = False  # refuse unknown fields
    enable_force_include_usage: bool = False  # usage in every chunk of every stream
    enable_per_request_metrics: bool = False  # times in answers, beside their usage
    return_tokens_as_token_ids: bool = False  # unless a request says otherwise
    tokens_only: bool = False  # answers are token ids, and no route makes or reads a text
    metrics_names: Literal["octavo", "vllm"] = "octavo"
    public_metrics: bool = False  # /metrics without a key
    cache_scope: Literal["key", "global"] = "key"  # which requests share cached prefixes
    trust_request_chat_template: bool = False
    chat_template: str | None = None  # instead of the model's own
    # What templates read as content: a list of parts, a text, or what they show.
    chat_template_content_format: Literal["auto", "openai", "string"] = "auto"
    # Of templates, where a request does not set them itself.
    default_chat_template_kwargs: Mapping[str, Any] | None = None
    # Formats of answers, by vLLM's names. None: detected from the chat template; "none": none.
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    reasoning_config: Mapping[str, Any] | None = None  # vLLM's: its format, and how it is ended
    # Cohere's route: False: reasoning in requests with tools is a plan; None: by its format.
    cohere_is_reasoning_model: bool | None = None
    tool_parser_plugin: Path | None = None  # a file that describes further formats
    log_prompts: bool = False  # at info, escaped
    enable_explain: bool = True
    middleware: tuple[str, ...] = ()  # "module:factory" of ASGI middlewares
    # limits of one request
    max_body_bytes: int = 8 << 20
    max_header_bytes: int = 32 << 10
    max_headers: int = 64
    max_embed_len: int | None = None  # of a text that is embedded in pieces; None: as one alone
    max_output_tokens: int | None = None  # upper limit of max_tokens; None: the model's length
    max_request_seconds: float = 600.0  # in the queue and in the engine
    # Of several answers in one body, estimated before any work. One answer is always accepted.
    max_response_bytes: int = 256 << 20
    # limits of all requests together
    max_waiting_requests: int = 1000
    max_waiting_tokens: int = 4_000_000
    max_waiting_bytes: int = 64 << 20  # each takes two or three times that in memory
    max_running_sequences: int | None = None  # in the engine at once; None: its slots and a quarter
    max_connections: int = 4096
    max_connections_per_client: int = 512
    # time
    header_seconds: float = 10.0  # for the head of a request to arrive
    body_seconds: float = 30.0  # for its body to arrive
    idle_seconds: float = 75.0  # between two requests on a connection
    stall_seconds: float = 30.0  # after which a client that reads nothing is disconnected
    status_seconds: float = 1.0  # longest wait for the first token before a stream starts
    ping_seconds: float = 15.0  # silence after which a stream sends a comment; 0: never
    ready_seconds: float = 2.0  # how old the engine's last step may be, and how long one may take
    drain_seconds: float = 30.0  # for running requests to finish after SIGTERM; 0: none
    # prompt workers
    prompt_workers: int = 1  # processes that render and tokenise
    prompt_worker_bytes: int = 2 << 30  # memory of one worker, beside its tokenizer
    template_seconds: float = 2.0  # for a conversation, with its tokens
    tokenize_seconds: float = 5.0  # for a text
    shape_seconds: float = 2.0  # for the grammar of a shape
    num_explained: int = 512  # recent requests that can be explained
    admin_socket: Path | None = None
    # durable requests
    journal: Path | None = None  # the file; None: an answer ends with its connection
    journal_seconds: float = 600.0  # for which an answer is kept after its end
    journal_bytes: int = 64 << 20  # of all requests that are kept, in memory; twice in the file
    # batches
    batch_dir: Path | None = None  # the directory of their files; None: there are none
    batch_bytes: int = 10 << 30  # of all files
    batch_file_bytes: int = 200 << 20  # of a file that a client sends
    batch_lines: int = 50_000  # requests of a batch
    batch_keep_seconds: float = 30 * 86_400.0  # for which files and results are kept

    # responses that are kept
    responses_store: Path | None = None  # the file; None: in memory
    responses_seconds: float = 86_400.0  # after their beginning
    responses_bytes: int = 64 << 20  # of all of them

    @property
    def body_reader(self) -> str:
        """The function that returns the reader of large bodies, for workers."""
        return "octavo.server.large_bodies:body_reader"

    @property
    def served_names(self) -> tuple[str, ...]:
        """The names that the model is served under; empty for its own name."""
        names = self.served_model_name
        if names is None:
            return ()
        return tuple(dict.fromkeys((names,) if isinstance(names, str) else names))

    @property
    def is_local(self) -> bool:
        """True if only this machine can reach the server."""
        has_no_port = self.uds is not None and self.grpc_port is None
        return has_no_port or is_loopback(self.host)

    @property
    def has_short_key(self) -> bool:
        """True if a key is so short that it can be guessed."""
        return any(len(key) < MIN_KEY_CHARACTERS for key in self.api_keys)

    def route_path(self, path: str) -> str:
        """Return a request's path as routes have it: without the prefix and slashes at the end."""
        within = path.removeprefix(self.root_path)
        if within != path and not within.startswith("/"):
            within = path if within else "/"  # another path that begins alike, or the prefix
        return within.rstrip("/") or "/"

    def __post_init__(self) -> None:
        for name in self.served_names:
            if not 0 < len(name) <= MAX_NAME_CHARACTERS:
                raise ServerSettingsError(
                    f"served_model_name={name[:64]!r} must have 1 to {MAX_NAME_CHARACTERS} "
                    "characters, so that requests can contain it"
                )
        for name in ("port", "grpc_port"):
            if not 0 <= (getattr(self, name) or 0) <= 65535:
                raise ServerSettingsError(
                    f"{name}={getattr(self, name)} must be between 0 and 65535"
                )
        for each in fields(self):
            value = getattr(self, each.name)
            numeric = isinstance(value, int | float) and not isinstance(value, bool)
            if numeric and value <= 0 and each.name not in _MAY_BE_ZERO:
                raise ServerSettingsError(f"{each.name}={value} must be above 0")
        if not all(key.strip() for key in self.api_keys):
            raise ServerSettingsError("an API key is empty, and would admit requests without a key")
        if self.has_short_key and not self.is_local:
            raise ServerSettingsError(
                f"an API key has fewer than {MIN_KEY_CHARACTERS} characters, and host="
                f"{self.host!r} can be reached from other machines; choose a longer key"
            )
        self._check_paths()
        self._check_weights()
        if self.tokens_only and self.grpc_port is not None:
            raise ServerSettingsError(
                "tokens_only and grpc_port exclude each other: answers over gRPC have a text"
            )
        if not (self.api_keys or self.insecure_no_auth or self.is_local):
            raise ServerSettingsError(
                f"host={self.host!r} can be reached from other machines, and there is no API key: "
                "set one (--api-key-file, OCTAVO_API_KEY), bind 127.0.0.1, or, if every client "
                "that reaches this address may use the model, add --insecure-no-auth"
            )

    def _check_weights(self) -> None:
        names = [name_of_key(key) for key in self.api_keys]
        for name, weight in self.key_weights.items():
            if name not in names:
                raise ServerSettingsError(
                    f"key_weights has {name!r}, and no API key has this name; their names are "
                    f"{', '.join(names) or 'none, since there are no keys'}"
                )
            if not 1 / MAX_WEIGHT <= weight <= MAX_WEIGHT:
                raise ServerSettingsError(
                    f"key_weights: {name}={weight} must be from {1 / MAX_WEIGHT} to {MAX_WEIGHT}"
                )

    def _check_paths(self) -> None:
        root = self.root_path
        if root and (root[0] != "/" or root[-1] == "/"):
            raise ServerSettingsError(
                f"root_path={root!r} must begin with / and must not end with it, as in /llm"
            )
        if self.ssl_certfile is None and (self.ssl_keyfile or self.ssl_ca_certs):
            raise ServerSettingsError(
                "ssl_keyfile and ssl_ca_certs have no effect without ssl_certfile, the server's "
                "certificate; add it"
            )
        if not 0 <= self.ssl_cert_reqs <= 2:
            raise ServerSettingsError(
                f"ssl_cert_reqs={self.ssl_cert_reqs} must be 0, 1 or 2: whether certificates of "
                "clients are not asked for, optional or required"
            )
        if self.ssl_cert_reqs and self.ssl_ca_certs is None:
            raise ServerSettingsError(
                f"ssl_cert_reqs={self.ssl_cert_reqs} needs ssl_ca_certs, a file with the "
                "authorities that sign clients' certificates"
            )


def digest_of_key(key: str) -> bytes:
    """Return the digest by which a key is recognised."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def name_of_key(key: str) -> str:
    """Return a name for a key that does not reveal it."""
    return digest_of_key(key).hex()[:16]


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read_keys(file: Path | None, from_environment: str) -> tuple[str, ...]:
    """Read keys from a file, one per line (# starts a comment), and from the environment."""
    lines: list[str] = []
    if file is not None:
        try:
            lines = file.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ServerStartError(
                f"the key file {file} cannot be read: {reason(error)}; it must be text with one "
                "key per line"
            ) from error
    stripped = (line.strip() for line in [*lines, *from_environment.split(",")])
    keys = tuple(dict.fromkeys(key for key in stripped if key and not key.startswith("#")))
    if file is not None and not keys:
        raise ServerSettingsError(f"the key file {file} contains no key; write one per line")
    return keys


def reason(error: OSError | UnicodeDecodeError) -> str:
    """Return the reason of an error without the name of the file."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    return (error.strerror or str(error)).lower()
