"""Tokens and log-probabilities of several stages, bit by bit those of one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo import LLM
from octavo.core.config import ConfigError
from tests.ranks.small import FORMATS, PROMPTS, TIGHT, answers, write
from tests.stages.small_steps import small_steps

pytestmark = pytest.mark.slow


# tests/stages/every_kind.py has the others.
@pytest.mark.parametrize(
    ("kind", "format_", "stages"),
    [("LlamaForCausalLM", "int4", 2), ("Gemma2ForCausalLM", "bf16", 3)],
)
def test_stages_answer_as_one_process(kind: str, format_: str, stages: int, tmp_path: Path) -> None:
    """Prompts are cut, sequences preempted, and prefixes found in the cache."""
    model, options = write(tmp_path, kind), FORMATS[format_]
    expected, _ = answers(model, **options)
    with small_steps():
        found, snapshot = answers(model, pipeline_parallel_size=stages, **options)
    assert found == expected
    assert len(found) == 2 * len(PROMPTS)
    assert snapshot.num_preemptions > 0
    assert snapshot.num_cached_tokens > 0


def test_more_stages_than_layers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pipeline_parallel_size=4: the model can be cut at 2"):
        LLM(str(write(tmp_path, "LlamaForCausalLM")), **TIGHT, pipeline_parallel_size=4)
