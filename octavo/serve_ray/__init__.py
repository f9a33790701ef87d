"""An application of Ray Serve: replicas of a model on a cluster, behind one address.

`serve run octavo.serve_ray:app model=MODEL` starts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def app(arguments: Mapping[str, Any]) -> Any:
    """Return the application of Ray Serve that these options of `octavo serve` describe."""
    try:
        import ray.serve  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "octavo.serve_ray is an application of Ray Serve, which is not installed: "
            "pip install 'octavo[ray]'"
        ) from error

    from octavo.serve_ray.application import application

    return application(arguments)
