"""Who may come in: keys, hosts and origins, looked at before anything else is.

Denied by default: what `PUBLIC` does not name wants a key, a path that does not exist included.
The host and the origin are compared with lists of those allowed. That keeps a web page that the
operator has open from reaching a server on the operator's own machine, by whatever name.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Mapping

from octavo.server.http.errors import ApiError
from octavo.server.settings import LOOPBACK_NAMES, ServerSettings, is_loopback

PUBLIC = frozenset({"/health", "/health/live", "/health/ready"})
_CHALLENGE = ((b"www-authenticate", b"Bearer"),)


class AccessControl:
    """Decides about a request by its path and headers alone."""

    def __init__(self, config: ServerSettings) -> None:
        self._digests = tuple(_digest(key) for key in config.api_keys)
        self._public = PUBLIC | ({"/metrics"} if config.public_metrics else frozenset())
        self._any_host = "*" in config.allowed_hosts
        self._hosts = {name.lower().strip("[]") for name in config.allowed_hosts}
        self._hosts.update(LOOPBACK_NAMES)
        self._hosts.add(config.host.lower().strip("[]"))
        # An address cannot be rebound to another machine; a name can.
        self._any_address = not is_loopback(config.host)
        if self._any_address:
            self._hosts.add(socket.gethostname().lower())
        self._origins = frozenset(origin.rstrip("/").lower() for origin in config.allowed_origins)

    def check_address(self, headers: Mapping[str, str]) -> None:
        """Raises ApiError if the request was meant for another server, or comes from a page."""
        self._check_host(headers.get("host", ""))
        origin = headers.get("origin")
        if origin is not None:
            self._check_origin(origin.lower(), headers.get("host", "").lower())

    def is_listed(self, origin: str) -> bool:
        """Whether pages of this origin may call."""
        return bool(origin) and (
            origin.lower().rstrip("/") in self._origins or "*" in self._origins
        )

    def check_key(self, path: str, headers: Mapping[str, str]) -> str:
        """Who asks, as a name that tells nothing of the key; raises ApiError if nobody may."""
        if not self._digests or path in self._public:
            return ""
        return self._check_key(headers)

    def _check_host(self, host: str) -> None:
        name = _host_name(host)
        if self._any_host or name in self._hosts:
            return
        if self._any_address and _is_address(name):
            return
        raise ApiError(
            403,
            "this server is not known by the name in the Host header; if it should be, start it "
            "with --allowed-host NAME",
            code="host_not_allowed",
        )

    def _check_origin(self, origin: str, host: str) -> None:
        if self.is_listed(origin):
            return
        if origin in (f"http://{host}", f"https://{host}"):  # a page of this server itself
            return
        raise ApiError(
            403,
            "web pages of this origin may not call this server; if they should, start it with "
            "--allowed-origin ORIGIN",
            code="origin_not_allowed",
        )

    def _check_key(self, headers: Mapping[str, str]) -> str:
        given = headers.get("authorization", "")
        scheme, _, key = given.partition(" ")
        if scheme.lower() != "bearer":
            key = headers.get("x-api-key", "")
        digest = _digest(key.strip())
        # All of them, so that the time says nothing about which it is like.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if not any(matches):
            what = "is not one of this server's" if key else "is missing"
            raise ApiError(
                401,
                f"the API key {what}; send it as 'Authorization: Bearer KEY'",
                code="invalid_api_key",
                headers=_CHALLENGE,
            )
        return digest.hex()[:16]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _host_name(host: str) -> str:
    """The name in a Host header, without the port and an IPv6 address's brackets."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
