"""How one request wants its tokens chosen, as far as the core must know it.

The core decides only when a sequence ends; how a token is drawn is the sampler's affair, to whom
this struct travels unread in the plan that opens a slot.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The end of a sequence, and the seed of its noise."""

    max_tokens: int = 16
    min_tokens: int = 0  # before so many tokens nothing stops the sequence
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens={self.max_tokens} must be at least 1")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise ValueError(
                f"min_tokens={self.min_tokens} must be between 0 and max_tokens={self.max_tokens}"
            )
