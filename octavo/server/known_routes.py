"""Routes of other servers that this one does not have, and what they would do."""

from __future__ import annotations

from collections.abc import Mapping

_AUDIO = "audio"
_IMAGES = "images"
_CONVERSATIONS = (
    "conversations that the server keeps as such; responses are kept: continue one by its "
    "previous_response_id, or send the whole conversation"
)
_ASSISTANTS = "the Assistants API; use /v1/responses, whose answers are kept and can be continued"
_OLLAMA_MODELS = "storing models; the server has the one that it was started with"
_NATIVE = "another server's own API; use /v1/completions"
_HEALTH = "another server's path; /health says whether requests are served"
_LOAD = "another server's path; /metrics says how many requests run and wait"
_MODEL = "another server's path; /v1/models describes the model"
_OPERATORS = "operators' commands; start the server with --admin-socket, whose routes have them"
_WEIGHTS = "replacing weights while the server runs"

_PROFILE = (
    "profiling a server that answers clients, whose steps it would slow down; /diagnosis on the "
    "admin socket names the bottleneck of the last steps, and `octavo bench profile` profiles the "
    "engine alone"
)
# By path; one that ends in "/" stands for all paths below it.
NOT_YET: Mapping[str, str] = {
    "/v1/moderations": "judging texts; /classify serves classifiers",
    "/v1/audio/": _AUDIO,
    "/v1/realtime": _AUDIO,
    "/v1/images/": _IMAGES,
    "/v1/videos": _IMAGES,
    "/v1/messages/batches": "batches of messages; send them one by one",
    "/v1/messages/batches/": "batches of messages; send them one by one",
    "/v1/complete": "the API of Anthropic; use /v1/chat/completions",
    "/v1/conversations": _CONVERSATIONS,
    "/v1/conversations/": _CONVERSATIONS,
    "/v1/assistants": _ASSISTANTS,
    "/v1/assistants/": _ASSISTANTS,
    "/v1/threads": _ASSISTANTS,
    "/v1/threads/": _ASSISTANTS,
    "/v1/fine_tuning/": "training",
    "/vertex_generate": _NATIVE,
    "/v2/models/": "the API of KServe; use /v1/completions",
    "/api/blobs/": _OLLAMA_MODELS,
    "/health_generate": _HEALTH,
    "/get_load": _LOAD,
    "/server_info": _MODEL,
    "/model_info": _MODEL,
    "/get_model_info": _MODEL,
    "/redoc": "this page; /docs lists the routes, and /openapi.json their fields",
    "/abort_request": _OPERATORS,
    "/abort_requests": _OPERATORS,
    "/abort": _OPERATORS,
    "/diagnosis": _OPERATORS,
    "/drain": _OPERATORS,
    "/in_flight": _OPERATORS,
    "/log_level": _OPERATORS,
    "/pause": _OPERATORS,
    "/is_paused": _OPERATORS,
    "/resume": _OPERATORS,
    "/pause_generation": _OPERATORS,
    "/continue_generation": _OPERATORS,
    "/reset_prefix_cache": _OPERATORS,
    "/restart_engines": _OPERATORS,
    "/flush_cache": _OPERATORS,
    "/start_profile": _PROFILE,
    "/stop_profile": _PROFILE,
    "/sleep": _OPERATORS,
    "/wake_up": _OPERATORS,
    "/is_sleeping": _OPERATORS,
    "/release_memory_occupation": _OPERATORS,
    "/resume_memory_occupation": _OPERATORS,
    "/update_weights": _WEIGHTS,
    "/update_weights_from_disk": _WEIGHTS,
    "/update_weights_from_tensor": _WEIGHTS,
    "/update_weights_from_distributed": _WEIGHTS,
    "/init_weights_update_group": _WEIGHTS,
    "/collective_rpc": _WEIGHTS,
}


def missing_feature(path: str) -> str | None:
    """Return what a route of another server does; None for a path that is unknown."""
    found = NOT_YET.get(path)
    if found is None:
        above = (name for name in NOT_YET if name.endswith("/") and path.startswith(name))
        found = next((NOT_YET[name] for name in above), None)
    return found
