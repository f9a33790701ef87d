"""The request router of the replicas: Octavo's rule, in the place of Ray Serve's own.

Ray Serve copies this module to the front, names and all, and the others are imported there. So the
front's ledger must be looked up when it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray.serve.request_router import RequestRouter

from octavo.serve_ray import ledger
from octavo.serve_ray.passed import OPEN, Passed


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """A router that sends a request where its prefix is cached or where least waits."""

    def initialize_state(self, known_tokens: int, most_running: int) -> None:
        """Take the settings that the deployment has for this class."""
        ledger.LEDGER.configure(known_tokens, most_running)

    def update_replicas(self, replicas: Sequence[Any]) -> None:
        """Take the replicas that there are now."""
        super().update_replicas(replicas)
        ledger.LEDGER.keep({each.replica_id.unique_id for each in replicas})

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: Any = None
    ) -> list[list[Any]]:
        """Return the replica to ask, and then the others, where it has no room."""
        by_name = {each.replica_id.unique_id: each for each in candidate_replicas}
        reported = {name: int(each.routing_stats.get(OPEN, 0)) for name, each in by_name.items()}
        best = by_name[ledger.LEDGER.choose(_number(pending_request), reported)]
        return [[best], [each for each in candidate_replicas if each is not best]]

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        """Note the replica that has taken a request."""
        ledger.LEDGER.note_routed(_number(pending_request), replica_id.unique_id)


def _number(pending: Any) -> int:
    """Return the number of a request; 0 for one that is no request of the front."""
    found = [each for each in (pending.args if pending is not None else ()) if _is_passed(each)]
    return found[0].number if found else 0


def _is_passed(value: object) -> bool:
    return isinstance(value, Passed)
