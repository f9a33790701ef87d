"""What llama.cpp's tests ask for that cannot pass here, by the names of tests, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

_TEXT = "models read text alone"
_UNSET = "a template's variable that is not set is undefined"
_PRESETS = "all models have the same settings"
_CORS = "keys come in headers, and no cookie is read"
_SYNTHETIC = "every draft is verified exactly"
_SHIFTED = "a text that is too long is refused"
# Not run: each asks for something that there is not.
NOT_HERE: Mapping[str, str] = {
    "test_mcp_servers.py::*": "the server runs no tools",
    "test_tools_builtin.py::*": "the server runs no tools",
    "test_proxy.py::*": "the server runs no tools",
    "test_security.py::*router*": "the server runs no tools",
    "test_security.py::test_cors_options*Credentials*": _CORS,
    "test_security.py::test_cors_options*Allow-Headers*": "headers are named",
    "test_security.py::test_cors_origins_localhost_rejects*": "a page that may not call gets 403",
    "test_security.py::test_cors_origins_defaults*": "the server runs no tools",
    "test_security.py::test_cors_proxy*": "the server runs no tools",
    "test_security.py::test_local_media_file*": _TEXT,
    "test_vision_api.py::*": _TEXT,
    "test_slot_save.py::*": "KV is not written to files",
    "test_kv_keep_only_active.py::*": "KV is not kept in slots",
    "test_ctx_shift.py::test_ctx_shift_enabled*": _SHIFTED,
    "test_sleep.py::test_server_sleep_read_only*": "/metrics counts the requests for it too",
    "test_metrics.py::test_metrics_disabled*": "/metrics is always there",
    "test_router.py::test_router_props": "a build has a name of its own",
    "test_router.py::test_router_queue_client_disconnect*": "no request is made slow for a test",
    "test_router.py::test_router_reload*": _PRESETS,
    "test_router.py::test_router_dedup*": _PRESETS,
    "test_router.py::test_router_remote*": _PRESETS,
    "test_router.py::test_router_download*": "clients download no models",
    "test_router.py::test_router_delete*": "clients delete no files",
    "test_stream.py::*": "a stream is continued by the id of its last event",
    "test_compat_gcp.py::*": "Google's variables are those of vLLM's here",
    "test_template.py::test_date_inside_prompt[[]fireworks*": _UNSET,
    "test_lora.py::test_lora[[]*": "which adapter all requests have is the operator's to set",
    "test_basic.py::test_server_multiple_addresses*": "a server has one address",
    "test_basic.py::test_no_ui*": "/ has the console for browsers alone",
    "test_compat_anthropic.py::*image*": _TEXT,
    "test_compat_anthropic.py::*vision*": _TEXT,
    "test_embedding.py::test_embedding_pooling_none_oai*": "/v1/embeddings has vectors of tokens",
    "test_speculative.py::test_with_and_without*": _SYNTHETIC,
    "test_speculative.py::test_synth*": _SYNTHETIC,
    "test_speculative.py::test_with_ctx_shift*": _SHIFTED,
    "test_chat_completion.py::test_chat_template": "a mark is not followed by a space",
    "test_completion.py::test_n_probs_post*": "probabilities are the model's own",
    "test_completion.py::*openai_library*": "fingerprints do not begin with llama.cpp's letter",
}
# Run, and expected to fail: each compares words, or numbers of tokens, of the model itself.
WORDS: tuple[str, ...] = (
    *("test_completion.py::test_completion[[]*", "test_completion.py::test_completion_stream[[]*"),
    "test_completion.py::test_completion_prompt_cache*",
    *("test_rerank.py::test_rerank", "test_rerank.py::test_rerank_tei_format"),
    *("test_rerank.py::test_rerank_usage*", "test_speculative.py::test_multi_requests*"),
    "test_compat_oai_responses.py::*openai_library*",
    *("test_chat_completion.py::test_chat_completion[[]*", "test_basic.py::test_load_split_model*"),
    "test_chat_completion.py::test_chat_completion_cached_tokens*",
    "test_chat_completion.py::test_chat_completion_stream[[]*",
    "test_chat_completion.py::test_chat_completion_with_openai_library*",
    *("test_infill.py::test_infill_with*", "test_lora.py::test_lora_per*"),
    "test_ctx_shift.py::test_ctx_shift_disabled_short_prompt[[]-1*",
)


def reason_of(name: str) -> str | None:
    """Return why a test is not run, or None."""
    return next((why for each, why in NOT_HERE.items() if fnmatchcase(name, each)), None)


def is_of_words(name: str) -> bool:
    """Return whether a test is about what the model says."""
    return any(fnmatchcase(name, each) for each in WORDS)
