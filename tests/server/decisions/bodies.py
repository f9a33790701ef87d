"""The matrix's bodies of the decisions' requests."""

from __future__ import annotations

from typing import Any

from tests.server.matrix.prompts import TEXT

BODIES: dict[str, dict[str, Any]] = {
    "SystemOneRequest": {
        "state": {"text": TEXT},
        "questions": {
            "which": {"type": "choice", "criteria": {"fox": "brown", "dog": None}},
            "true": {"type": "noul", "instructions": "Is it quick?"},
            "much": {"type": "score", "criteria": ["little", "very"]},
        },
    },
    "DecisionsRequest": {
        "input": TEXT,
        "questions": [{"type": "predicate", "instructions": "Is it quick?"}],
    },
}
# Where answers have what was generated or computed; lists on the way are followed.
PLACES = (("answers", "probability"), ("answers", "which", "choice"), ("answers", "much", "score"))
