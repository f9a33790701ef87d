"""The settings of the router, each declared once, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from octavo.options.declare import option
from octavo.options.transport import ServerSettingsError, TransportSettings

MOST_SERVERS = 50  # each has series of its own in /metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSettings(TransportSettings):
    """The settings of a router; those of its clients' connections are in its base."""

    port: int = option(
        9000,
        "the port to listen on; 0: any free port",
        "NUMBER",
        group="network",
        least=0,
        most=65535,
    )
    admin_socket: Path | None = option(
        None,
        "a unix socket for operators: list the servers, take them out, put them in",
        "PATH",
        group="network",
    )
    servers: tuple[str, ...] = ()  # the addresses, as the operator wrote them
    kv_events: tuple[str, ...] = ()  # SERVER=ENDPOINT[,REPLAY], as the operator wrote them
    upstream_api_key: str = ""  # empty: the keys of clients are passed on
    upstream_ca_certs: Path | None = option(
        None,
        "the authorities that sign the certificates of servers behind https (PEM; default: the "
        "system's)",
        "FILE",
        group="access",
    )
    max_open_requests: int = option(
        1024, "the most requests that are answered at once", "COUNT", group="limits"
    )
    max_held_bytes: int = option(
        256 << 20,
        "the most bytes of all bodies whose server has not begun to answer",
        "SIZE",
        group="limits",
    )
    max_request_seconds: float = option(
        3600.0, "the longest time of a request", "SECONDS", group="times"
    )
    connect_seconds: float = option(
        5.0, "time for a connection to a server", "SECONDS", group="times"
    )
    silent_seconds: float = option(
        300.0,
        "time after which a server that sends nothing of an answer is given up",
        "SECONDS",
        group="times",
    )
    wait_seconds: float = option(
        10.0,
        "how long a request waits at most until a server for it is ready",
        "SECONDS",
        group="times",
        least=0,
    )
    health_seconds: float = option(
        2.0, "time between two questions for a server's health", "SECONDS", group="routing"
    )
    health_timeout_seconds: float = option(
        5.0, "time for a server to answer one", "SECONDS", group="routing"
    )
    models_seconds: float = option(
        10.0, "time between two questions for a server's models", "SECONDS", group="routing"
    )
    health_path: str = option(
        "/health", "where servers say that they are ready", "ROUTE", group="routing"
    )
    running_per_server: int = option(
        256,
        "how many requests a server runs at once; one with as many gets none while another has "
        "room",
        "COUNT",
        group="routing",
    )
    known_tokens: int = option(
        1_000_000,
        "how many tokens of prefixes are remembered of each server; about the size of its KV cache",
        "COUNT",
        group="routing",
    )

    tokenize_seconds: float = option(
        0.2,
        "time for a server to say which tokens a prompt has, where --kv-events is given",
        "SECONDS",
        group="routing",
    )

    def __post_init__(self) -> None:
        # Not `super()`: a dataclass with slots is another class than the one of this method.
        TransportSettings.__post_init__(self)
        if not self.servers:
            raise ServerSettingsError("a router needs a server: octavo route http://HOST:PORT ...")
        if len(self.servers) > MOST_SERVERS:
            raise ServerSettingsError(
                f"{len(self.servers)} servers are more than {MOST_SERVERS}, the most of a router"
            )
        if not self.health_path.startswith("/"):
            raise ServerSettingsError(f"health_path={self.health_path!r} must begin with /")
        key = self.upstream_api_key
        if key and not (key.isascii() and key.isprintable() and key == key.strip()):
            raise ServerSettingsError("the key for the servers has characters that no header takes")
