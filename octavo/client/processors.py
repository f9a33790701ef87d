"""Logits processors as they are given when an engine is made: names, and functions for them."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.core.config import ConfigError


def check_processors(processors: object) -> None:
    """They are by name, so that a request can name them."""
    if processors is not None and not isinstance(processors, Mapping):
        raise ConfigError(
            f"logits_processors is a {type(processors).__name__}; it must map names to functions, "
            "as in {'mine': function}, and requests name them in their SamplingParams"
        )
    for name, processor in (processors or {}).items():
        if not isinstance(name, str) or not callable(processor):
            raise ConfigError(
                f"logits_processors has {name!r}: {processor!r}; it must map names to functions "
                "(prompt_ids, output_ids, logits) -> logits"
            )
