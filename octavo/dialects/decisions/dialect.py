"""The dialect of these routes: OpenAI's errors, and ids of its own."""

from __future__ import annotations

from dataclasses import replace

from octavo.dialects.common.dialect import OPENAI

DECISION_ID = "decision-"

DECISIONS = replace(OPENAI, id_prefixes=(DECISION_ID,))
