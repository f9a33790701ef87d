"""Octavo: an engine that serves large language models."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.core.config import ConfigError
    from octavo.core.sampling_params import RequestError, RequestOutputKind, SamplingParams
    from octavo.frontend.async_llm import AsyncLLM
    from octavo.frontend.beam_search import BeamSearchParams
    from octavo.frontend.llm import LLM
    from octavo.frontend.outputs import (
        CompletionOutput,
        EmbeddingRequestOutput,
        EngineDeadError,
        PoolingRequestOutput,
        RequestOutput,
    )

# Public names and where they are; none is imported before it is asked for.
_PLACES = {
    "LLM": "octavo.frontend.llm",
    "AsyncLLM": "octavo.frontend.async_llm",
    "BeamSearchParams": "octavo.frontend.beam_search",
    "CompletionOutput": "octavo.frontend.outputs",
    "ConfigError": "octavo.core.config",
    "EmbeddingRequestOutput": "octavo.frontend.outputs",
    "EngineDeadError": "octavo.frontend.outputs",
    "PoolingRequestOutput": "octavo.frontend.outputs",
    "RequestError": "octavo.core.sampling_params",
    "RequestOutput": "octavo.frontend.outputs",
    "RequestOutputKind": "octavo.core.sampling_params",
    "SamplingParams": "octavo.core.sampling_params",
}

__all__ = [
    "LLM",
    "AsyncLLM",
    "BeamSearchParams",
    "CompletionOutput",
    "ConfigError",
    "EmbeddingRequestOutput",
    "EngineDeadError",
    "PoolingRequestOutput",
    "RequestError",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    from octavo.observe.collection import no_collection  # here, as with all that is asked for

    with no_collection():
        return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return __all__
