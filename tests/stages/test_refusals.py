"""Settings that stages cannot follow are refused by name, before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo import LLM
from octavo.core.config import ConfigError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pipeline_parallel_size": 0}, "pipeline_parallel_size=0 must be between 1 and 64"),
        ({"pipeline_parallel_size": 2, "enable_lora": True}, "stages compute no rows with"),
        ({"pipeline_parallel_size": 2, "packed_cache": "auto"}, "each stage packs its own"),
        (
            {
                "pipeline_parallel_size": 2,
                "tensor_parallel_size": 2,
                "enable_expert_parallel": True,
                "enable_eplb": True,
            },
            "the ranks of stages copy no experts",
        ),
        ({"pipeline_parallel_size": 2, "spare_engine": True}, "a spare engine has no stages"),
        (
            {"pipeline_parallel_size": 2, "speculative_config": {"model": "m"}},
            "ngram and suffix work",
        ),
        (
            {"pipeline_parallel_size": 2, "speculative_config": {"method": "mtp"}},
            "ngram and suffix work",
        ),
        (
            {"pipeline_parallel_size": 2, "backend": "torch"},
            "pipeline_parallel_size=2 is a setting of the native backend",
        ),
    ],
)
def test_what_stages_cannot_follow_is_named(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        LLM(str(tmp_path), **options)
