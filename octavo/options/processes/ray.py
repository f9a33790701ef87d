"""The settings of an application of Ray Serve, beside those of a server and its engine."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.options.declare import check, option
from octavo.options.transport import ServerSettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings:
    """The settings of replicas, and of the fronts that share requests among them."""

    min_replicas: int = option(1, "the fewest replicas, each a server with engines", "COUNT")
    max_replicas: int | None = option(
        None, "the most replicas; between the two, load decides (default: the fewest)", "COUNT"
    )
    replicas_per_node: int = option(
        1, "the most replicas on a machine; with several, say the KV cache of each", "COUNT"
    )
    replica_cpus: int = option(1, "the processors that Ray reserves for a replica", "COUNT")
    fronts: int = option(1, "the processes that take requests, each on a machine", "COUNT")
    target_requests: int | None = option(
        None,
        "the open requests of a replica that scaling aims at (default: as many as its engines "
        "run at once)",
        "COUNT",
    )
    target_kv_use: float = option(
        0.8, "the used part of a replica's KV cache that scaling aims at", "FRACTION", most=1.0
    )
    upscale_seconds: float = option(
        10.0, "how long load must be high before replicas are added", "SECONDS", least=0
    )
    downscale_seconds: float = option(
        300.0, "how long it must be low before replicas are ended", "SECONDS", least=0
    )
    max_open_requests: int = option(1024, "the most requests that a front has open", "COUNT")
    max_held_bytes: int = option(
        256 << 20, "the most bytes of all bodies in a front that no replica answers yet", "SIZE"
    )
    known_tokens: int = option(
        1_000_000,
        "how many tokens of prefixes a front remembers of each replica; about the size of its KV "
        "cache",
        "COUNT",
    )

    def __post_init__(self) -> None:
        check(self, ServerSettingsError)
        if self.most_replicas < self.min_replicas:
            raise ServerSettingsError(
                f"max_replicas={self.max_replicas} is less than min_replicas={self.min_replicas}; "
                "leave one out, or raise the first"
            )

    @property
    def most_replicas(self) -> int:
        """The most replicas that there may be."""
        return self.min_replicas if self.max_replicas is None else self.max_replicas
