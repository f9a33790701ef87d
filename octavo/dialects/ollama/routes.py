"""The routes of Ollama's dialect."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.dialects.ollama import embeddings, models, requests
from octavo.dialects.ollama.dialect import OLLAMA
from octavo.dialects.ollama.model_schema import (
    OllamaModels,
    OllamaShown,
    OllamaStatus,
    OllamaVersion,
    PullRequest,
    ShowRequest,
)
from octavo.dialects.ollama.schema import (
    OllamaAnswer,
    OllamaChatRequest,
    OllamaEmbeddingRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaVector,
    OllamaVectors,
)
from octavo.serving.generate import generating
from octavo.transport.route import Route

OLLAMA_ROUTES: Sequence[Route] = (
    Route(
        *("POST", "/api/generate"),
        models.loading(
            OllamaGenerateRequest,
            generating(OllamaGenerateRequest, requests.translate_generate),
        ),
        "Answer a prompt, in Ollama's dialect.",
        *(OllamaGenerateRequest, OllamaAnswer, OllamaAnswer),
        dialect=OLLAMA,
    ),
    Route(
        *("POST", "/api/chat"),
        models.loading(
            OllamaChatRequest,
            generating(OllamaChatRequest, requests.translate_chat),
        ),
        "Answer a conversation, in Ollama's dialect.",
        *(OllamaChatRequest, OllamaAnswer, OllamaAnswer),
        dialect=OLLAMA,
    ),
    Route(
        *("POST", "/api/embed", generating(OllamaEmbedRequest, embeddings.translate_embed)),
        "Vectors of texts, in Ollama's dialect.",
        *(OllamaEmbedRequest, OllamaVectors),
        dialect=OLLAMA,
    ),
    Route(
        *("POST", "/api/embeddings"),
        generating(OllamaEmbeddingRequest, embeddings.translate_embedding),
        "The vector of one text, in Ollama's older form.",
        *(OllamaEmbeddingRequest, OllamaVector),
        dialect=OLLAMA,
    ),
    Route(
        *("GET", "/api/tags", models.tags, "The served model."),
        response=OllamaModels,
        dialect=OLLAMA,
    ),
    Route(
        *("POST", "/api/show", models.show, "The facts about the model."),
        *(ShowRequest, OllamaShown),
        dialect=OLLAMA,
    ),
    Route(
        *("POST", "/api/pull", models.pull, "Whether a model is there: the served one is."),
        *(PullRequest, OllamaStatus, OllamaStatus),
        dialect=OLLAMA,
    ),
    Route(
        *("GET", "/api/ps", models.loaded, "The loaded model."),
        response=OllamaModels,
        dialect=OLLAMA,
    ),
    Route(
        *("GET", "/api/version", models.version, "The version."),
        response=OllamaVersion,
        dialect=OLLAMA,
    ),
    *(
        Route(method, f"/api/{name}", models.refuse, f"Refused: {advice}.", dialect=OLLAMA)
        for method, name, advice in models.REFUSED
    ),
)
