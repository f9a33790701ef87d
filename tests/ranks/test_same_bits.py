"""Tokens and log-probabilities of several ranks, bit by bit those of one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ranks.small import FORMATS, PROMPTS, answers, write

pytestmark = pytest.mark.slow


# tests/ranks/every_kind.py has the others.
@pytest.mark.parametrize(
    ("kind", "format_", "ranks"),
    [("LlamaForCausalLM", "int4", 2), ("DeepseekV3ForCausalLM", "bf16", 3)],
)
def test_ranks_answer_as_one_process(kind: str, format_: str, ranks: int, tmp_path: Path) -> None:
    """Prompts are cut, sequences preempted, and prefixes found in the cache."""
    model, options = write(tmp_path, kind), FORMATS[format_]
    expected, _ = answers(model, **options)
    found, snapshot = answers(model, tensor_parallel_size=ranks, **options)
    assert found == expected
    assert len(found) == 2 * len(PROMPTS)
    assert snapshot.num_preemptions > 0
    assert snapshot.num_cached_tokens > 0
