"""Octavo: an engine that serves large language models."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from octavo.bytecode import use_kept_bytecode

if TYPE_CHECKING:
    from octavo.api.adapters import LoRARequest
    from octavo.api.async_llm import AsyncLLM
    from octavo.api.beam_search import BeamSearchParams
    from octavo.api.llm import LLM
    from octavo.api.outputs import CompletionOutput, EngineDeadError, RequestOutput
    from octavo.api.pooling.outputs import (
        ClassificationRequestOutput,
        EmbeddingRequestOutput,
        PoolingRequestOutput,
        ScoringRequestOutput,
    )
    from octavo.api.pooling.params import PoolingParams
    from octavo.core.config import ConfigError
    from octavo.core.sampling_params import (
        RequestError,
        RequestOutputKind,
        SamplerOptions,
        SamplingParams,
    )
    from octavo.core.stopping.repetition import RepetitionDetectionParams
    from octavo.core.structured_outputs import StructuredOutputsParams

# Public names and their modules, which are imported at first use.
_PLACES = {
    "LLM": "octavo.api.llm",
    "AsyncLLM": "octavo.api.async_llm",
    "BeamSearchParams": "octavo.api.beam_search",
    "ClassificationRequestOutput": "octavo.api.pooling.outputs",
    "CompletionOutput": "octavo.api.outputs",
    "ConfigError": "octavo.core.config",
    "EmbeddingRequestOutput": "octavo.api.pooling.outputs",
    "EngineDeadError": "octavo.api.outputs",
    "LoRARequest": "octavo.api.adapters",
    "PoolingParams": "octavo.api.pooling.params",
    "PoolingRequestOutput": "octavo.api.pooling.outputs",
    "RepetitionDetectionParams": "octavo.core.stopping.repetition",
    "RequestError": "octavo.core.sampling_params",
    "RequestOutput": "octavo.api.outputs",
    "RequestOutputKind": "octavo.core.sampling_params",
    "SamplerOptions": "octavo.core.sampling_params",
    "SamplingParams": "octavo.core.sampling_params",
    "ScoringRequestOutput": "octavo.api.pooling.outputs",
    "StructuredOutputsParams": "octavo.core.structured_outputs",
}

__all__ = [
    "LLM",
    "AsyncLLM",
    "BeamSearchParams",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "ConfigError",
    "EmbeddingRequestOutput",
    "EngineDeadError",
    "LoRARequest",
    "PoolingParams",
    "PoolingRequestOutput",
    "RepetitionDetectionParams",
    "RequestError",
    "RequestOutput",
    "RequestOutputKind",
    "SamplerOptions",
    "SamplingParams",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
]


use_kept_bytecode()


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    from octavo.env import let_numpy_sleep  # here, since importing octavo must be cheap
    from octavo.observe.collection import no_collection

    let_numpy_sleep()
    with no_collection():
        return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return __all__
