"""The settings of a request for a vector, classes or a score, under vLLM's names."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from octavo.core.pooling import POOLINGS, PoolingKind
from octavo.core.sampling_params import RequestError

MAX_DIMENSIONS = 1 << 20
TO_FIT = -1  # truncate_prompt_tokens: to what the model can read


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingParams:
    """Settings of what is made of a prompt's hidden states; None: the model's own."""

    pooling: PoolingKind | None = None  # "last", "mean" or "cls"; a task asks for "all"
    dimensions: int | None = None  # the first so many of an embedding
    # An embedding gets length one; classes and scores become probabilities.
    use_activation: bool | None = None
    truncate_prompt_tokens: int | None = None  # the first so many of a text; -1: as many as fit
    prompt_name: str | None = None  # of a text that sentence-transformers puts before each input

    def __post_init__(self) -> None:
        kinds = [kind for kind in POOLINGS if kind != "all"]
        if self.pooling is not None and self.pooling not in kinds:
            raise RequestError(
                f"pooling={self.pooling!r} must be one of {', '.join(kinds)}", param="pooling"
            )
        if self.use_activation is not None and not isinstance(self.use_activation, bool):
            raise RequestError(
                f"use_activation={self.use_activation!r} must be True or False",
                param="use_activation",
            )
        _check_number("dimensions", self.dimensions, 1)
        _check_number("truncate_prompt_tokens", self.truncate_prompt_tokens, TO_FIT)
        if self.truncate_prompt_tokens == 0:
            raise RequestError(
                "truncate_prompt_tokens=0 leaves nothing of the text; give 1 at least, or -1",
                param="truncate_prompt_tokens",
            )


def _check_number(name: str, value: Any, least: int) -> None:
    if value is None:
        return
    try:
        number = -2 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -2
    if not least <= number <= MAX_DIMENSIONS:
        raise RequestError(
            f"{name}={value!r} must be a whole number between {least} and {MAX_DIMENSIONS}",
            param=name,
        )
