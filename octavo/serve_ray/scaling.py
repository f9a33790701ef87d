"""How many replicas there should be, by their open requests and by the use of their KV caches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

KV_USE = "octavo_kv_use"  # the used part of a replica's KV cache, from 0 to 1


def wanted(
    num_replicas: int, num_requests: float, target_requests: float, kv_use: float, target_use: float
) -> int:
    """Return the number of replicas that would bring both to their targets, at least one.

    `kv_use` is the mean of the replicas. What a cache keeps for later requests is not in use.
    """
    by_requests = num_requests / target_requests
    by_memory = num_replicas * kv_use / target_use
    return max(1, math.ceil(max(by_requests, by_memory) - 1e-6))


class Policy:
    """The policy of Ray Serve's autoscaling, which keeps Ray's delays and bounds."""

    def __init__(self, target_kv_use: float) -> None:
        self._target_use = target_kv_use

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """Return the number of replicas that is wanted now, and no state."""
        by_replica: Mapping[Any, float] = (context.aggregated_metrics or {}).get(KV_USE, {})
        uses = [*by_replica.values()]
        use = sum(uses) / len(uses) if uses else 0.0
        found = wanted(
            context.current_num_replicas,
            context.total_num_requests,
            context.config.target_ongoing_requests,
            use,
            self._target_use,
        )
        return found, {}
