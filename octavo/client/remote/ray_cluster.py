"""A connection to the Ray cluster that this machine belongs to."""

from __future__ import annotations

from typing import Any

from octavo.core.config import ConfigError


def connected(what: str) -> Any:
    """Return the module of Ray, connected to a cluster; raise ConfigError without one."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError(f"{what} need Ray: pip install 'octavo[ray]'") from error
    if not ray.is_initialized():
        try:
            ray.init(address="auto", log_to_driver=True)
        except ConnectionError as error:
            raise ConfigError(
                f"there is no Ray cluster here: {error}; start one: ray start --head"
            ) from error
    return ray
