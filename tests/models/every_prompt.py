"""SmolLM2's text of all fifty prompts: minutes of work, so `make test-smollm2` runs it alone."""

from __future__ import annotations

from tests.models.test_smollm2 import NEW_TOKENS, PROMPTS, Both, both, check_texts

__all__ = ["both"]


def test_text_of_all_prompts(both: Both) -> None:
    """Greedy text, 64 tokens each, is the reference's."""
    assert len(set(PROMPTS)) == 50
    check_texts(both, PROMPTS, NEW_TOKENS)
