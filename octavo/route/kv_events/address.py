"""The addresses of events, as an operator gives them: SERVER=ENDPOINT[,REPLAY]."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from octavo.options.transport import ServerSettingsError
from octavo.route.address import Address, read_address

_ENDPOINT = re.compile(
    r"tcp://(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>\d{1,5})|ipc://[^\x00-\x20,]{1,90}"
)
MOST_SOURCES = 200
_MOST_ENDPOINT_BYTES = 100  # a system takes no longer path of a socket


class EventsAddress(NamedTuple):
    """The endpoints of one engine of a server: of its events, and of those that were missed."""

    server: Address
    endpoint: str
    replay: str | None


def read_events_addresses(texts: Sequence[str], servers: Sequence[Address]) -> list[EventsAddress]:
    """Return the addresses of all events, each of a server that the router has."""
    if len(texts) > MOST_SOURCES:
        raise ServerSettingsError(
            f"{len(texts)} addresses of KV events are more than {MOST_SOURCES}, the most of a "
            "router"
        )
    found = [_read(text, servers) for text in texts]
    for index, each in enumerate(found):
        if each.endpoint in [before.endpoint for before in found[:index]]:
            raise ServerSettingsError(
                f"--kv-events: {each.endpoint} is named twice; each engine has an endpoint of its "
                "own"
            )
    return found


def _read(text: str, servers: Sequence[Address]) -> EventsAddress:
    server, found, rest = text.partition("=")
    endpoint, has_replay, replay = rest.partition(",")
    if not found:
        raise _wrong(text, "there is no = in it")
    address = read_address(server)
    if address not in servers:
        known = ", ".join(each.url for each in servers)
        raise _wrong(text, f"{address.url} is none of the servers ({known})")
    for each in (endpoint, replay) if has_replay else (endpoint,):
        match = _ENDPOINT.fullmatch(each)
        if match is None or not _can_be_used(each) or not 1 <= int(match["port"] or 1) <= 65535:
            raise _wrong(text, f"{each[:100]!r} is no endpoint to connect to")
    return EventsAddress(address, endpoint, replay if has_replay else None)


def _wrong(text: str, why: str) -> ServerSettingsError:
    return ServerSettingsError(
        f"--kv-events {text[:200]!r}: {why}; write it as "
        "http://HOST:PORT=tcp://HOST:5557,tcp://HOST:5558, where the second endpoint, at which "
        "missed events are asked for, may be left out"
    )


def _can_be_used(endpoint: str) -> bool:
    """Return whether an endpoint has a length, and a host a form, that the system takes."""
    if endpoint.startswith("ipc://"):
        return len(endpoint.encode()) <= _MOST_ENDPOINT_BYTES
    try:
        endpoint.removeprefix("tcp://").rpartition(":")[0].encode("idna")
    except UnicodeError:
        return False
    return True
