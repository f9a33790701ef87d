"""The settings of connections, each declared once, checked when they are made."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

from octavo.options.declare import check, option

MIN_KEY_CHARACTERS = 8  # where other machines can connect
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
# An origin as browsers write it, with a slash at the end at most; null: a page without one.
_ORIGIN = re.compile(r"\*|localhost|null|[a-z][a-z0-9+.-]*://[^\s/,*?#@]+/?", re.IGNORECASE)


class ServerSettingsError(ValueError):
    """An error for settings that cannot work or are dangerous; its message says what to change."""


class ServerStartError(ServerSettingsError):
    """An error for a file or an address that cannot be used now; the settings are not wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportSettings:
    """The addresses, keys, limits and times of connections."""

    host: str = option(
        "127.0.0.1",
        "the address to listen on; one that other machines can reach needs a key",
        "ADDRESS",
        group="network",
    )
    port: int = option(
        8000,
        "the port to listen on; 0: any free port",
        "NUMBER",
        group="network",
        least=0,
        most=65535,
    )
    grpc_port: int | None = option(
        None,
        "the port of the gRPC interface beside HTTP; 0: any free port (octavo[grpc])",
        "NUMBER",
        group="network",
        least=0,
        most=65535,
    )
    uds: Path | None = option(
        None, "a unix socket for clients, instead of an address and a port", "PATH", group="network"
    )
    root_path: str = option(
        "", "a prefix of all paths that a reverse proxy adds or removes", "PREFIX", group="network"
    )
    ssl_certfile: Path | None = option(
        None, "serve TLS, with this certificate chain (PEM)", "FILE", group="network"
    )
    ssl_keyfile: Path | None = option(
        None, "the certificate's key, if it is in another file", "FILE", group="network"
    )
    ssl_ca_certs: Path | None = option(
        None, "the authorities that sign clients' certificates (PEM)", "FILE", group="network"
    )
    ssl_cert_reqs: int = option(
        0,
        "clients' certificates: 0 not asked for, 1 optional, 2 required",
        "NUMBER",
        group="network",
        least=0,
        most=2,
    )
    max_connections: int = option(4096, "the most open connections", "COUNT", group="network")
    max_connections_per_client: int = option(
        512, "the most open connections of one address", "COUNT", group="network"
    )
    admin_socket: Path | None = option(
        None,
        "a unix socket for operators: pause, drain, abort, log level",
        "PATH",
        group="network",
    )
    handover: Path | None = option(
        None,
        "a unix socket by which the next server with the same flag takes the place of this one: no "
        "connection is refused meanwhile",
        "PATH",
        group="network",
    )
    api_keys: tuple[str, ...] = ()
    insecure_no_auth: bool = option(False, "serve other machines without a key", group="access")
    # Without names, any host is served if there are keys.
    allowed_hosts: tuple[str, ...] = option(
        (),
        "a host name of the server, besides its address, or several with commas; *: any, as if "
        "there are keys",
        "HOST",
        group="access",
        flags=("--allowed-host",),
        parts={"action": "append"},
    )
    # Without origins: pages of this machine.
    allowed_origins: tuple[str, ...] = option(
        (),
        "an origin of web pages that may call, or several with commas, or a JSON list; localhost: "
        "those of this machine; *: any (localhost)",
        "ORIGINS",
        group="access",
        flags=("--allowed-origin",),
        parts={"action": "append"},
    )
    public_metrics: bool = option(False, "serve /metrics without a key", group="access")
    max_body_bytes: int = option(8 << 20, "the largest body of a request", "SIZE", group="limits")
    max_header_bytes: int = option(
        32 << 10,
        "the largest head of a request",
        "SIZE",
        group="limits",
        aliases=("--h11-max-incomplete-event-size",),
    )
    max_headers: int = option(
        64,
        "the most headers of a request",
        "COUNT",
        group="limits",
        aliases=("--h11-max-header-count",),
    )
    header_seconds: float = option(
        10.0, "time for the head of a request to arrive", "SECONDS", group="times"
    )
    body_seconds: float = option(30.0, "time for its body to arrive", "SECONDS", group="times")
    idle_seconds: float = option(
        75.0, "time between two requests on a connection", "SECONDS", group="times"
    )
    stall_seconds: float = option(
        30.0,
        "time after which a client that reads nothing is disconnected",
        "SECONDS",
        group="times",
    )
    ping_seconds: float = option(
        15.0,
        "silence after which a stream sends a comment; 0: never",
        "SECONDS",
        group="times",
        least=0,
        aliases=("--sse-keep-alive-interval",),
    )
    drain_seconds: float = option(
        30.0,
        "time for running requests to finish after SIGTERM; 0: they end at once",
        "SECONDS",
        group="times",
        least=0,
        aliases=("--shutdown-timeout",),
    )

    @property
    def is_local(self) -> bool:
        """True if only this machine can reach the server."""
        has_no_port = self.uds is not None and self.grpc_port is None
        return has_no_port or is_loopback(self.host)

    @property
    def has_short_key(self) -> bool:
        """True if a key is so short that it can be guessed."""
        return any(len(key) < MIN_KEY_CHARACTERS for key in self.api_keys)

    def __post_init__(self) -> None:
        check(self, ServerSettingsError)
        if not all(key.strip() for key in self.api_keys):
            raise ServerSettingsError("an API key is empty, and would admit requests without a key")
        if self.has_short_key and not self.is_local:
            raise ServerSettingsError(
                f"an API key has fewer than {MIN_KEY_CHARACTERS} characters, and host="
                f"{self.host!r} can be reached from other machines; choose a longer key"
            )
        self._check_paths()
        self._check_origins()
        if not (self.api_keys or self.insecure_no_auth or self.is_local):
            raise ServerSettingsError(
                f"host={self.host!r} can be reached from other machines, and there is no API key: "
                "set one (--api-key-file, OCTAVO_API_KEY), bind 127.0.0.1, or, if every client "
                "that reaches this address may use the model, add --insecure-no-auth"
            )

    def _check_origins(self) -> None:
        """Refuse what no browser sends, since every page of the meant origin would be refused."""
        for origin in self.allowed_origins:
            if not _ORIGIN.fullmatch(origin):
                raise ServerSettingsError(
                    f"allowed_origins has {origin[:200]!r}, which is the origin of no page: write "
                    "SCHEME://HOST or SCHEME://HOST:PORT, as in https://app.example, and each of "
                    "several in full"
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


def is_unspecified(host: str) -> bool:
    """Return whether `host` means all addresses of a machine, and none by which it is reached."""
    try:
        return host == "*" or ipaddress.ip_address(host.strip("[]")).is_unspecified
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
