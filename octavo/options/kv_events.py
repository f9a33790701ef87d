"""The settings of published KV events under vLLM's names, checked once, when they are made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from octavo.core.config import ConfigError
from octavo.nearest import nearest_or_all
from octavo.options.values import settings_of

_ADDRESS = re.compile(r"tcp://(?P<host>\*|[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]|::):(?P<port>\d{1,5})")
_PATH = re.compile(r"ipc://(?P<path>[^\x00-\x20]{1,90})")
_BOUND = ("*", "::", "[::]", "0.0.0.0", "127.0.0.1", "[::1]")  # hosts that mean this machine
_RANGES: Mapping[str, tuple[int, int]] = {
    "buffer_steps": (1, 1_000_000),
    "hwm": (1, 1_000_000),
    "max_queue_size": (1, 1_000_000),
}
MOST_TOPIC_BYTES = 255  # so that a subscription to it is as short as readers' messages must be
_EXAMPLE = 'as in {"enable_kv_cache_events": true, "endpoint": "tcp://*:5557"}'


@dataclass(frozen=True, slots=True)
class KVEventsConfig:
    """The addresses and the bounds of what is published."""

    endpoint: str = "tcp://127.0.0.1:5557"  # of events
    replay_endpoint: str | None = None  # of those that a reader has missed; None: there is none
    buffer_steps: int = 10_000  # batches that are kept for that
    hwm: int = 1000  # batches that wait for a slow reader; later ones are lost to it
    max_queue_size: int = 100_000  # batches that wait to be sent
    topic: str = ""  # the first part of each message, by which readers may choose

    def __post_init__(self) -> None:
        for name in ("endpoint", "replay_endpoint"):
            value = getattr(self, name)
            if not (value is None and name == "replay_endpoint"):
                _check_address(name, value)
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            if not (is_whole and least <= value <= most):
                raise _error(f"{name}={value!r} must be a whole number from {least} to {most}")
        if not _is_topic(self.topic):
            raise _error(f"topic must be a text of at most {MOST_TOPIC_BYTES} bytes in UTF-8")

    def check(self, first: int, count: int, *, caches: bool) -> None:
        """Refuse addresses of which several engines would have the same, and none to publish."""
        if not caches:
            raise _error(
                "enable_prefix_caching=False leaves nothing to publish; leave one of them out"
            )
        given = [self.endpoint]
        if self.replay_endpoint is not None:
            given.append(self.replay_endpoint)
        used = [address_of(each, rank) for each in given for rank in range(first, first + count)]
        for each in used:
            if used.count(each) > 1:
                if count == 1:
                    raise _error(f"endpoint and replay_endpoint are both {each}: take two ports")
                raise _error(
                    f"{each} would be used twice, since each of {count} engines has the port of "
                    "the one before and one more: leave more room between endpoint and "
                    "replay_endpoint"
                )


def address_of(endpoint: str, rank: int) -> str:
    """Return the address of one engine of several: its port is higher by the engine's number."""
    if endpoint.startswith("ipc://"):
        return f"{endpoint}_dp{rank}" if rank else endpoint
    base, _, port = endpoint.rpartition(":")
    number = int(port) + rank
    if number > 65535:
        raise _error(f"{endpoint}: engine {rank} would have port {number}; give a lower one")
    return f"{base}:{number}"


def is_bound(endpoint: str) -> bool:
    """Return whether readers connect to an address; publishers connect to any other."""
    found = _ADDRESS.fullmatch(endpoint)
    return found is None or found["host"] in _BOUND


def is_open(endpoint: str) -> bool:
    """Return whether other machines may connect to an address."""
    found = _ADDRESS.fullmatch(endpoint)
    return found is not None and found["host"] in ("*", "::", "[::]", "0.0.0.0")


def read_kv_events_config(given: object) -> KVEventsConfig | None:
    """Turn a user's settings, a mapping or a JSON object, into checked ones; None: off."""
    if given is None or isinstance(given, KVEventsConfig):
        return given
    settings = settings_of(given, "kv_events_config", _EXAMPLE)
    known = [each.name for each in fields(KVEventsConfig)]
    chosen: dict[str, Any] = {}
    is_on, publisher = settings.get("enable_kv_cache_events", False), settings.get("publisher")
    if not isinstance(is_on, bool):
        raise _error(f"enable_kv_cache_events={is_on!r} must be true or false")
    if publisher not in (None, "zmq", "null"):
        raise _error(f"publisher={publisher!r} must be zmq or null")
    for name, value in settings.items():
        if name in ("enable_kv_cache_events", "publisher") or value is None:
            continue
        if name not in known:
            names = [*known, "enable_kv_cache_events", "publisher"]
            raise _error(f"there is no key {str(name)[:100]!r}; {nearest_or_all(str(name), names)}")
        chosen[name] = value
    config = KVEventsConfig(**chosen)
    return config if is_on and publisher != "null" else None


def _is_topic(value: object) -> bool:
    try:
        return isinstance(value, str) and len(value.encode()) <= MOST_TOPIC_BYTES
    except UnicodeEncodeError:  # half of a character, which JSON can write
        return False


def _check_address(name: str, value: object) -> None:
    text = value if isinstance(value, str) else ""
    found = _ADDRESS.fullmatch(text)
    if found is None and _PATH.fullmatch(text) is None:
        raise _error(
            f"{name}={value!r} must be an address such as tcp://127.0.0.1:5557, tcp://*:5557 for "
            "all networks, or ipc:///path/of/a/socket"
        )
    if found is not None and not 1 <= int(found["port"]) <= 65535:
        raise _error(f"{name}={value!r}: the port must be from 1 to 65535")
    try:
        (found["host"] if found is not None else "").encode("idna")
    except UnicodeError:
        raise _error(f"{name}={value!r}: this is no name of a host") from None


def _error(text: str) -> ConfigError:
    return ConfigError(f"kv_events_config: {text}")
