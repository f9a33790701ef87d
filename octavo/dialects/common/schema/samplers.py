"""The fields of further samplers, by llama.cpp's names, which other servers use too."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from octavo.core.sampling_params import (
    MAX_BREAKER_LENGTH,
    MAX_BREAKERS,
    MAX_REPEATED,
    MAX_WINDOW,
    SAMPLERS,
)

INT32 = 2**31 - 1

Part = Annotated[float, Meta(ge=0, le=1)]
Order = Annotated[list[str], Meta(max_length=len(SAMPLERS))]
Breaker = Annotated[str, Meta(min_length=1, max_length=MAX_BREAKER_LENGTH)]


class SamplerFields(Struct, kw_only=True):
    """The values of samplers besides temperature, top-k, top-p and min-p; None: off.

    Their order, `samplers`, has a form of its own in each dialect.
    """

    typical_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_n_sigma: Annotated[float, Meta(ge=-1, le=1000)] | None = None  # 0 or below: off
    xtc_probability: Part | None = None
    xtc_threshold: Part | None = None  # above 0.5: off
    dynatemp_range: Annotated[float, Meta(ge=0, le=100)] | None = None
    dynatemp_exponent: Annotated[float, Meta(ge=0, le=100)] | None = None
    min_keep: Annotated[int, Meta(ge=0, le=INT32)] | None = None
    repeat_last_n: Annotated[int, Meta(ge=-1, le=INT32)] | None = None  # -1: all; 0: no penalties
    dry_multiplier: Annotated[float, Meta(ge=0, le=100)] | None = None
    dry_base: Annotated[float, Meta(ge=1, le=100)] | None = None
    dry_allowed_length: Annotated[int, Meta(ge=1, le=MAX_REPEATED)] | None = None
    dry_penalty_last_n: Annotated[int, Meta(ge=-1, le=MAX_WINDOW)] | None = None  # -1: the most
    dry_sequence_breakers: Annotated[list[Breaker], Meta(max_length=MAX_BREAKERS)] | None = None
    mirostat: Annotated[int, Meta(ge=0, le=2)] | None = None  # its version; 0: off
    mirostat_tau: Annotated[float, Meta(ge=0, le=100)] | None = None
    mirostat_eta: Annotated[float, Meta(ge=0, le=100)] | None = None
