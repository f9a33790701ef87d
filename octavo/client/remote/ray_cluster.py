"""A connection to the Ray cluster that this machine belongs to."""

from __future__ import annotations

import socket
from typing import Any

from octavo import env
from octavo.core.config import ConfigError

_REACHED_SECONDS = 10.0  # in which the machine of a cluster answers


def connected(what: str) -> Any:
    """Return the module of Ray, connected to a cluster; raise ConfigError without one."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError(f"{what} need Ray: pip install 'octavo[ray]'") from error
    if not ray.is_initialized():
        _check_reached(env.ray_address())
        try:
            ray.init(address="auto", log_to_driver=True)
        except ConnectionError as error:
            raise ConfigError(
                f"there is no Ray cluster here: {error}; start one: ray start --head"
            ) from error
    return ray


def first_line(error: BaseException) -> str:
    """Return the first line of an error of Ray's, whose others are about its own insides."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _check_reached(address: str) -> None:
    """Refuse a cluster that cannot be reached, for which Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    if "://" in address or not (host and port.isdecimal()):
        return  # there is none, or Ray knows better what it means
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACHED_SECONDS).close()
    except (OSError, OverflowError) as error:
        why = (getattr(error, "strerror", None) or str(error)).lower()
        raise ConfigError(
            f"there is no Ray cluster at RAY_ADDRESS={address}: {why}; start one there (ray start "
            "--head), or unset it"
        ) from error
