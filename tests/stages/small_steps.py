"""Engines whose steps are so small that each stage computes another one, whatever the requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from octavo.resolve import EngineConfig, resolve


@contextmanager
def small_steps() -> Iterator[None]:
    """Let engines that are built meanwhile divide what they compute as finely as they can."""

    def resolved(*arguments: Any, **named: Any) -> EngineConfig:
        config = resolve(*arguments, **named)
        core = replace(config.core, stage_sequences=1, stage_prompt_tokens=8)
        return structs.replace(config, core=core)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("octavo.engine.build.resolve", resolved)
        yield
