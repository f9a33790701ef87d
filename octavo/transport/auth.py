"""Access control: API keys, hosts and origins, which are checked before anything else.

Access is denied by default: every path that is not in `PUBLIC` needs a key, whether it exists or
not, and a path of `PUBLIC` outside `HEALTH` needs one unless it is only read. Without keys the host
is compared with a list, so that no web page reaches a server on the operator's machine under a name
of its own (DNS rebinding); such a page has no key, so that with keys any host is served, unless the
operator lists hosts. Pages that call openly state their origin, which must be listed: by default
pages of this machine are.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
from collections.abc import Container, Mapping

from octavo.options.transport import (
    LOOPBACK_NAMES,
    TransportSettings,
    digest_of_key,
    is_loopback,
    name_of_key,
)
from octavo.transport.errors import ApiError

HEALTH = frozenset({"/health", "/v1/health", "/health/live", "/health/ready", "/ping"})
PUBLIC = HEALTH | {"/"}  # which need no key, the latter if it is only read
LOCALHOST = "localhost"  # among allowed origins: pages of this machine
_READS = frozenset({"GET", "HEAD"})
_HOST = re.compile(
    r"(?:\[(?P<address>[0-9a-f]*:[0-9a-f:.]*)\]|(?P<name>[a-z0-9_.-]+))(?::(?P<port>[0-9]{0,5}))?"
)
_MAX_PORT = 65_535
_PORTS = {"http": ":80", "https": ":443"}
_CHALLENGE = ((b"www-authenticate", b"Bearer"),)


def is_public(path: str, method: str, public: Container[str]) -> bool:
    """Return whether a request needs no key, where these paths do not."""
    return path in HEALTH or (path in public and method in _READS)


class AccessControl:
    """The access rules of one server; they depend on a request's path and headers only."""

    def __init__(self, config: TransportSettings) -> None:
        self._digests = tuple(digest_of_key(key) for key in config.api_keys)
        # Without keys there is one name.
        self._names = frozenset(map(name_of_key, config.api_keys)) or {""}
        # Paths that need no key, whether there are keys or not.
        self.public = PUBLIC | ({"/metrics"} if config.public_metrics else frozenset())
        names = config.allowed_hosts
        # Neither a page without a key nor one that a unix socket cannot serve gains by rebinding.
        self._any_host = "*" in names or bool(not names and (config.api_keys or config.uds))
        # But by what needs no key, unless that is health alone.
        self._any_host_for_public = "*" in names or bool(not names and config.uds)
        self._hosts = {name.lower().strip("[]") for name in names}
        self._hosts.update(LOOPBACK_NAMES)
        self._hosts.add(config.host.lower().strip("[]"))
        # DNS rebinding changes what a name refers to, so addresses are safe and names are not.
        self._any_address = not is_loopback(config.host)
        if self._any_address:
            self._hosts.add(socket.gethostname().lower())
        self._origins = frozenset(map(_as_sent, config.allowed_origins))

    def check_address(self, path: str, headers: Mapping[str, str], method: str = "POST") -> None:
        """Raise ApiError for a host or an origin that is not allowed."""
        host = headers.get("host", "").strip().lower()
        is_open = (
            self._any_host_for_public if is_public(path, method, self.public) else self._any_host
        )
        if not (is_open or path in HEALTH or self._is_allowed(_name(host))):
            raise ApiError(
                403,
                "the name in the Host header is not allowed; if clients should use it, start the "
                "server with --allowed-host NAME",
                code="host_not_allowed",
            )
        if "origin" in headers:
            self._check_origin(headers["origin"].lower(), host)

    def is_listed(self, origin: str) -> bool:
        """Return whether web pages of this origin may call the server."""
        origin = origin.lower().rstrip("/")
        if origin and (origin in self._origins or "*" in self._origins):
            return True
        if self._origins and LOCALHOST not in self._origins:
            return False
        scheme, _, host = origin.partition("://")
        return scheme in ("http", "https") and _name(host) in LOOPBACK_NAMES

    def _is_allowed(self, name: str) -> bool:
        return name in self._hosts or (self._any_address and _is_address(name))

    def check_key(self, path: str, headers: Mapping[str, str], method: str = "POST") -> str:
        """Return a name for the key that does not reveal it; raise ApiError for a wrong key."""
        if not self._digests or is_public(path, method, self.public):
            return ""
        return self._check_key(headers)

    def knows(self, name: str) -> bool:
        """Return whether `check_key` gives this name now."""
        return name in self._names

    def _check_origin(self, origin: str, host: str) -> None:
        if self.is_listed(origin):
            return
        if origin in (f"http://{host}", f"https://{host}"):  # a page from this server
            return
        raise ApiError(
            403,
            "web pages of this origin may not call this server; to allow it, start the server "
            "with --allowed-origins ORIGIN",
            code="origin_not_allowed",
        )

    def _check_key(self, headers: Mapping[str, str]) -> str:
        given = headers.get("authorization", "")
        scheme, _, key = given.partition(" ")
        if scheme.lower() != "bearer":
            key = headers.get("x-api-key", "")
        digest = digest_of_key(key.strip())
        # All are compared, so that the time does not reveal which key is similar.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if not any(matches):
            what = "is wrong" if key else "is missing"
            raise ApiError(
                401,
                f"the API key {what}; send it as 'Authorization: Bearer KEY'",
                code="invalid_api_key",
                headers=_CHALLENGE,
            )
        return name_of_key(key.strip())


def _as_sent(origin: str) -> str:
    """Return an origin as browsers write it: without the scheme's own port."""
    origin = origin.lower().rstrip("/")
    scheme = origin.partition("://")[0]
    return origin.removesuffix(_PORTS.get(scheme, "/"))


def _name(host: str) -> str:
    """Return the name in a host, without the port; "" if it has another form.

    An address of IPv6 is in brackets. In another form the name that a browser has used may stand
    somewhere else: `localhost:1@evil.example`, `[::1]evil.example`.
    """
    found = _HOST.fullmatch(host)
    if found is None or int(found["port"] or 0) > _MAX_PORT:
        return ""
    if found["name"] is not None:
        return found["name"]
    return found["address"] if _is_address(found["address"]) else ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
