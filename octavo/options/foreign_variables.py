"""Variables of other servers' environments: those that a server refuses, and those without effect.

Keys of other servers are accepted as this server's (`octavo.env.foreign_api_keys`). The variables
of the Hugging Face hub mean here what they mean elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable

_TLS = "the server would speak without TLS; give --ssl-certfile and --ssl-keyfile, or unset it"
_KEY_FILE = "the server would be open; give --api-key-file, or unset it"
_HUB = "models come from the Hugging Face hub"
_ADDRESS = "give --host and --port"

# What a variable would protect, and what to do instead. One that is not needed any more because
# the flag is given has no effect.
REFUSED = {
    "LLAMA_ARG_SSL_CERT_FILE": ("ssl_certfile", _TLS),
    "LLAMA_ARG_SSL_KEY_FILE": ("ssl_certfile", _TLS),
    "LLAMA_ARG_API_KEY_FILE": ("api_keys", _KEY_FILE),
}
# What to use instead, or why nothing is needed.
WITHOUT_EFFECT = {
    "VLLM_CPU_KVCACHE_SPACE": "give --kv-cache-memory",
    "VLLM_CPU_OMP_THREADS_BIND": "give --num-threads",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "give --num-threads",
    "VLLM_USE_MODELSCOPE": _HUB,
    "VLLM_LOGGING_LEVEL": "give --log-level",
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "give --idle-seconds",
    "VLLM_HTTP_MAX_REQUEST_BODY_SIZE": "give --max-body-bytes",
    "VLLM_CACHE_ROOT": "set OCTAVO_CACHE",
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "a sequence has as many positions as the model was made for",
    "VLLM_SERVER_DEV_MODE": "give --admin-socket, whose routes are for operators",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "there are no adapters yet",
    "VLLM_BATCH_INVARIANT": "a request's tokens never depend on the batch",
    "VLLM_LOGGING_CONFIG_PATH": "give --log-level",
    "SGLANG_USE_MODELSCOPE": _HUB,
    "OLLAMA_HOST": _ADDRESS,
    "OLLAMA_ORIGINS": "give --allowed-origins",
    "OLLAMA_MODELS": "name the model's file or directory",
    "OLLAMA_CONTEXT_LENGTH": "give --max-model-len",
    "OLLAMA_NUM_PARALLEL": "give --max-num-seqs",
    "OLLAMA_MAX_QUEUE": "give --max-waiting-requests",
    "OLLAMA_KV_CACHE_TYPE": "give --kv-cache-dtype",
    "OLLAMA_KEEP_ALIVE": "the model stays loaded",
    "TRANSFORMERS_CACHE": "set HF_HUB_CACHE",
    "MODELSCOPE_CACHE": _HUB,
}
# Every variable of llama-server's is a flag of its own.
_PREFIX = "LLAMA_ARG_"


def advice_on(names: Iterable[str]) -> list[str]:
    """Return a phrase for each of these variables that has no effect here, with what to do."""
    found = []
    for name in names:
        if name in WITHOUT_EFFECT:
            found.append(f"{name} ({WITHOUT_EFFECT[name]})")
        elif name.startswith(_PREFIX) and name not in REFUSED:
            found.append(f"{name} (write its flag instead)")
    return found
