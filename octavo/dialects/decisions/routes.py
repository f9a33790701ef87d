"""The part of the table of routes that answers questions with probabilities."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.dialects.decisions import listed, system_one
from octavo.dialects.decisions.dialect import DECISIONS
from octavo.dialects.decisions.schema import (
    DecisionsRequest,
    DecisionsResponse,
    SystemOneRequest,
    SystemOneResponse,
)
from octavo.serving.generate import generating
from octavo.transport.route import Route

DECISION_ROUTES: Sequence[Route] = (
    Route(
        *("POST", "/v1/decisions", generating(DecisionsRequest, listed.translate)),
        "The probabilities of the answers to questions about a text.",
        *(DecisionsRequest, DecisionsResponse),
        dialect=DECISIONS,
    ),
    Route(
        *("POST", "/v1/systemone", generating(SystemOneRequest, system_one.translate)),
        "The probabilities of the answers to questions about a state, in vLLM's form.",
        *(SystemOneRequest, SystemOneResponse),
        dialect=DECISIONS,
    ),
)
