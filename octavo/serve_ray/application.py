"""The application of Ray Serve: replicas that answer, and fronts that share requests among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray import serve

from octavo.serve_ray.front import Front
from octavo.serve_ray.replica import Engine
from octavo.serve_ray.settings import RayApplicationSettings, read

HEALTH_SECONDS = 2.0  # between two questions to each replica
HEALTH_TIMEOUT_SECONDS = 30.0  # for the answer, three times in a row
STATISTICS_SECONDS = 1.0  # between two for its load
LOOK_BACK_SECONDS = 15.0  # over which Ray averages, at least; it collects every ten
FRONT_CPUS = 0.1  # that Ray reserves for a front
RUNNING = 64  # sequences of an engine at once, where its backend decides, about
MOST_OPEN = 4096  # requests of a replica: its server refuses those beyond its own limits


def application(arguments: Mapping[str, Any]) -> Any:
    """Return the application that these options describe."""
    settings = read(arguments)  # so that a mistake is an error here, and not in each replica
    given = dict(arguments)
    replicas = serve.deployment(Engine).options(**_of_replicas(settings)).bind(given)
    drain = settings.serve.server.drain_seconds
    front = serve.deployment(serve.ingress()(Front)).options(
        name="front",
        num_replicas=settings.ray.fronts,
        max_replicas_per_node=1,
        max_ongoing_requests=settings.ray.max_open_requests + 64,  # beside them, health
        ray_actor_options={"num_cpus": FRONT_CPUS},
        graceful_shutdown_timeout_s=drain,
        health_check_period_s=HEALTH_SECONDS,
        health_check_timeout_s=max(HEALTH_TIMEOUT_SECONDS, settings.serve.timing.silence_seconds),
    )
    return front.bind(given, replicas)


def _of_replicas(settings: RayApplicationSettings) -> dict[str, Any]:
    """Return the options of the replicas' deployment."""
    ray, server, engine = settings.ray, settings.serve.server, settings.serve.engine
    most_running = (engine.max_num_seqs or RUNNING) * engine.data_parallel_size
    found: dict[str, Any] = {
        "name": "engine",
        "max_replicas_per_node": ray.replicas_per_node,
        "max_ongoing_requests": MOST_OPEN,
        "ray_actor_options": {"num_cpus": ray.replica_cpus},
        "graceful_shutdown_timeout_s": server.drain_seconds,
        "health_check_period_s": HEALTH_SECONDS,
        "health_check_timeout_s": max(
            HEALTH_TIMEOUT_SECONDS, settings.serve.timing.silence_seconds
        ),
        "request_router_config": {
            "request_router_class": "octavo.serve_ray.router:PrefixRouter",
            "request_router_kwargs": {
                "known_tokens": ray.known_tokens,
                "most_running": most_running,
            },
            "request_routing_stats_period_s": STATISTICS_SECONDS,
        },
    }
    if ray.most_replicas == ray.min_replicas:
        return {**found, "num_replicas": ray.min_replicas}
    return {
        **found,
        "autoscaling_config": {
            "min_replicas": ray.min_replicas,
            "max_replicas": ray.most_replicas,
            "target_ongoing_requests": ray.target_requests or most_running,
            "upscale_delay_s": ray.upscale_seconds,
            "downscale_delay_s": ray.downscale_seconds,
            "look_back_period_s": max(LOOK_BACK_SECONDS, ray.upscale_seconds),
            "policy": {
                "policy_function": "octavo.serve_ray.scaling:Policy",
                "policy_kwargs": {"target_kv_use": ray.target_kv_use},
            },
        },
    }
