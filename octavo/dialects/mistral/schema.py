"""The request of /v1/fim/completions; its answers are those of chats."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from octavo.core.config import MAX_PRIORITY
from octavo.dialects.common.schema.sampling import (
    INT32,
    MAX_DEADLINE_MS,
    MAX_STOPS,
    Count,
    Penalty,
    StopString,
)
from octavo.dialects.common.schema.unsupported import RULES
from octavo.serving.schema.rules import FieldRules


class FimRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The text before and after what is written; without a suffix, the prompt is continued."""

    rules: ClassVar[FieldRules] = replace(
        RULES,
        open=frozenset(),
        with_lists=frozenset(),
        closed=frozenset(),
        other_names={"max_completion_tokens": "max_tokens", "seed": "random_seed"},
    )
    model: Annotated[str, Meta(max_length=512)] | None = None
    prompt: str
    suffix: str | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=INT32)] | None = None  # None: as many as fit
    min_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    random_seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    deadline_ms: Annotated[int, Meta(ge=1, le=MAX_DEADLINE_MS)] | None = None
