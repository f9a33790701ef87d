"""The table of the routes for operators."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from octavo.dialects.adapters.routes import adapter_routes
from octavo.dialects.llama import adapters
from octavo.server.admin import commands, pausing
from octavo.serving.ending import AbortRequests
from octavo.transport.route import Route

ADMIN_ROUTES: Sequence[Route] = (
    Route("GET", "/in_flight", commands.in_flight, "Every request that is being answered."),
    Route(
        *("POST", "/abort_requests", commands.abort, "End requests."),
        AbortRequests,
    ),
    Route("POST", "/pause", pausing.pause, "Plan no more steps.", query=(pausing.MODE,)),
    Route("POST", "/resume", pausing.resume, "Continue after /pause or /drain."),
    Route("GET", "/is_paused", pausing.is_paused, "Whether steps are planned."),
    Route("POST", "/drain", pausing.drain, "Reject new requests; running ones may finish."),
    Route(
        *("POST", "/sleep", pausing.sleep, "End the engine, and free its memory."),
        query=(pausing.LEVEL, pausing.MODE),
    ),
    Route("POST", "/wake_up", pausing.wake_up, "Start an engine again after /sleep."),
    Route(
        *("POST", "/restart_engines", pausing.restart),
        "Restart the engines, one after the other; their requests continue.",
    ),
    Route("GET", "/is_sleeping", pausing.is_sleeping, "Whether there is an engine."),
    Route(
        *("POST", "/reset_prefix_cache", commands.reset_prefix_cache),
        "Stop sharing prefixes that were computed before now.",
    ),
    Route(
        *("POST", "/log_level", commands.log_level, "Set the level of the log."),
        commands.LogLevel,
    ),
    *adapter_routes("operator"),
    Route("GET", "/lora-adapters", adapters.listed, "The adapters, and which one applies."),
    Route(
        *("POST", "/lora-adapters", partial(adapters.set_scales, is_operator=True)),
        "Set the adapter of requests that name none.",
    ),
    Route(
        *("GET", "/diagnosis", commands.diagnosis),
        "The bottleneck of the last steps, and the setting that would help.",
    ),
)
