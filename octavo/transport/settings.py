"""The settings of connections, each with a default and a comment, checked when they are made."""

from __future__ import annotations

import hashlib
import ipaddress
from dataclasses import dataclass, fields
from pathlib import Path

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportSettings:
    """The addresses, keys, limits and times of connections."""

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
    api_keys: tuple[str, ...] = ()
    insecure_no_auth: bool = False  # serve other machines without a key
    # Host names besides `host`; "*": any. Without names, any host is served if there are keys.
    allowed_hosts: tuple[str, ...] = ()
    # Of web pages that may call, such as "https://app.example". Default: pages of this machine.
    allowed_origins: tuple[str, ...] = ()
    public_metrics: bool = False  # /metrics without a key
    # limits of one request
    max_body_bytes: int = 8 << 20
    max_header_bytes: int = 32 << 10
    max_headers: int = 64
    max_connections: int = 4096
    max_connections_per_client: int = 512
    # time
    header_seconds: float = 10.0  # for the head of a request to arrive
    body_seconds: float = 30.0  # for its body to arrive
    idle_seconds: float = 75.0  # between two requests on a connection
    stall_seconds: float = 30.0  # after which a client that reads nothing is disconnected
    ping_seconds: float = 15.0  # silence after which a stream sends a comment; 0: never
    admin_socket: Path | None = None

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
        if not (self.api_keys or self.insecure_no_auth or self.is_local):
            raise ServerSettingsError(
                f"host={self.host!r} can be reached from other machines, and there is no API key: "
                "set one (--api-key-file, OCTAVO_API_KEY), bind 127.0.0.1, or, if every client "
                "that reaches this address may use the model, add --insecure-no-auth"
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
