"""The part of the table of routes that has TGI's own."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.dialects.tgi.dialect import TGI
from octavo.dialects.tgi.requests import translate, translate_stream, translate_whole
from octavo.dialects.tgi.schema import (
    MAX_STOPS,
    TgiAnswer,
    TgiEvent,
    TgiGenerateRequest,
    TgiListedAnswer,
    TgiRequest,
    TgiStreamRequest,
)
from octavo.serving.exchange import Exchange
from octavo.serving.generate import generating
from octavo.serving.server import VERSION
from octavo.transport.route import Route


async def info(exchange: Exchange) -> None:
    """Respond with the facts about the model and the limits of requests."""
    server = exchange.server
    facts = server.llm.facts
    await exchange.respond_json(
        {
            "model_id": server.model_name,
            "model_sha": None,
            "model_dtype": facts.dtype,
            "model_device_type": facts.device,
            "model_pipeline_tag": "text-generation",
            "max_concurrent_requests": server.config.max_waiting_requests,
            "max_best_of": 1,
            "max_stop_sequences": MAX_STOPS,
            "max_input_tokens": facts.longest_tokens - 1,
            "max_total_tokens": facts.longest_tokens,
            "max_client_batch_size": 1,
            "router": "octavo",
            "version": VERSION,
            "sha": None,
            "docker_label": None,
        }
    )


TGI_ROUTES: Sequence[Route] = (
    Route(
        *("POST", "/", generating(TgiRequest, translate)),
        "Continue a text, in the dialect of text-generation-inference.",
        *(TgiRequest, TgiListedAnswer, TgiEvent),
        dialect=TGI,
    ),
    Route(
        *("POST", "/generate", generating(TgiGenerateRequest, translate_whole)),
        "Continue a text, in the dialect of text-generation-inference.",
        *(TgiGenerateRequest, TgiAnswer),
        dialect=TGI,
    ),
    Route(
        *("POST", "/generate_stream", generating(TgiStreamRequest, translate_stream)),
        "Continue a text in events, in the dialect of text-generation-inference.",
        *(TgiStreamRequest, None, TgiEvent),
        dialect=TGI,
    ),
    Route("GET", "/info", info, "The facts about the model, for TGI's clients.", dialect=TGI),
)
