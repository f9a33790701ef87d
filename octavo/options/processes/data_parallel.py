"""vLLM's flags for engines that are divided among several servers behind a balancer.

Engines need nothing of each other, so each server only has to know which of all engines are its
own: their number, and the first one's place, by which metrics, the log and events name them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from octavo.core.config import ConfigError

log = logging.getLogger(__name__)

RANK, LOCAL, FIRST = "data_parallel_rank", "data_parallel_size_local", "data_parallel_start_rank"
EXTERNAL, HYBRID = "data_parallel_external_lb", "data_parallel_hybrid_lb"
# Where ranks meet. Here they need not.
_PLACES = ("data_parallel_address", "data_parallel_rpc_port")
SWITCHES = (EXTERNAL, HYBRID)
NAMES = (RANK, LOCAL, FIRST, *SWITCHES, *_PLACES)


def with_own_engines(options: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the options without vLLM's names for a server's own engines, and the first's number.

    `data_parallel_size` then counts the engines of this server.
    """
    kept = {name: value for name, value in options.items() if name not in NAMES}
    given = {name: options[name] for name in NAMES if _is_given(options.get(name))}
    if not given:
        return kept, 0
    asked = options.get("data_parallel_size")
    size = 1 if asked is None else _whole("data_parallel_size", asked, 1)
    for name in SWITCHES:
        if given.get(name, True) is not True:
            raise ConfigError(f"{name}={given[name]!r} must be True or False")
    if HYBRID in given and (EXTERNAL in given or RANK in given):
        raise ConfigError(
            f"{HYBRID} and {EXTERNAL if EXTERNAL in given else RANK} exclude each other: a server "
            "has several of the engines, or one; leave one of them out"
        )
    if EXTERNAL in given or RANK in given:
        first, count = _external(given, size)
    elif HYBRID in given:
        first, count = _hybrid(given, size)
    else:
        _check_internal(given, size)
        return kept, 0
    places = [name for name in _PLACES if name in given]
    if places:
        log.warning("without effect, since engines need not meet: %s", ", ".join(places))
    return {**kept, "data_parallel_size": count}, first


def _is_given(value: object) -> bool:
    """Return whether a value is more than a default; 0 is a rank."""
    return value is not None and value is not False


def _external(given: Mapping[str, Any], size: int) -> tuple[int, int]:
    """Return the only engine of a server with one, and that there is one."""
    if RANK not in given:
        raise ConfigError(f"{EXTERNAL} needs {RANK}, the number of this server's engine; give it")
    rank = _whole(RANK, given[RANK], 0)
    _check_room(RANK, rank, 1, size)
    for name, right in ((LOCAL, 1), (FIRST, rank)):
        if given.get(name, right) != right:
            raise ConfigError(
                f"{name}={given[name]!r} contradicts {RANK}={rank}, of one engine; leave it out"
            )
    return rank, 1


def _hybrid(given: Mapping[str, Any], size: int) -> tuple[int, int]:
    """Return the first engine of a server with several of all, and how many it has."""
    if LOCAL not in given:
        raise ConfigError(f"{HYBRID} needs {LOCAL}, the number of this server's engines; give it")
    first, count = _whole(FIRST, given.get(FIRST, 0), 0), _whole(LOCAL, given[LOCAL], 1)
    _check_room(FIRST, first, count, size)
    return first, count


def _check_internal(given: Mapping[str, Any], size: int) -> None:
    """Refuse engines on other machines, which no front end of this one serves."""
    if given.get(LOCAL, size) == size and given.get(FIRST, 0) == 0:
        given = {name: value for name, value in given.items() if name not in (LOCAL, FIRST)}
    for name, value in given.items():
        raise ConfigError(
            f"{name}={value!r} is not possible: one front end serves the engines of its machine; "
            f"for a server on each, behind `octavo route` or a balancer, give {HYBRID} or {RANK}"
        )


def _check_room(name: str, first: int, count: int, size: int) -> None:
    if first + count > size:
        last = first + count - 1
        raise ConfigError(
            f"{name}={first}: this server would have engine {last}, and data_parallel_size={size} "
            f"counts those of all servers, which end at {size - 1}; raise it, or lower the other"
        )


def _whole(name: str, value: Any, least: int) -> int:
    """Return a whole number; refuse anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name}={value!r} must be a whole number from {least}")
    return value
