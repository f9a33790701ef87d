"""The numbers the core works under, checked once, before anything is built from them."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Priorities are small integers; the bound keeps `arrival + priority * ageing` well within a double.
MAX_PRIORITY = 1_000_000


class ConfigError(ValueError):
    """A setting, or two settings together, that cannot work; the message says what to change."""


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers whose KV is kept alike; they share one block table a sequence.

    `window` is the number of most recent positions a query may read (itself included);
    None means all of them.
    """

    window: int | None = None

    def first_needed(self, position: int) -> int:
        """The oldest position that a query at `position` reads."""
        if self.window is None or position < self.window:
            return 0
        return position - self.window + 1


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """What the scheduler and the KV manager are built for."""

    num_blocks: int  # in the pool, the null block included
    max_model_len: int  # positions a sequence may have
    block_size: int = 16  # tokens a block
    groups: tuple[KVGroup, ...] = (KVGroup(),)
    max_num_batched_tokens: int = 2048  # tokens a step
    max_num_seqs: int = 256  # slots: sequences running at once
    pipeline_depth: int = 1  # steps in flight; 1 is synchronous
    prefix_caching: bool = True
    chunked_prefill: bool = True
    long_prefill_tokens: int = 0  # cap on one chunk of a long prefill; 0: none
    told_prompt_tokens: int = 0  # cap on a step's tokens of prompts with prompt_logprobs; 0: none
    max_drafts: int = 0  # draft tokens a sequence may have verified in a step
    policy: str = "fcfs"  # or "priority": the lower number first
    ageing_seconds: float = 0.0  # waiting this long makes up for one step of priority; 0: never
    max_num_waiting: int = 10_000  # requests not yet running
    max_waiting_tokens: int = 100_000_000  # their known tokens together
    max_loras: int = 0  # different adapters running at once; 0: no adapters
    watermark: float = 0.01  # share of the blocks kept free when a waiting sequence is admitted

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value < least:
                raise ConfigError(f"{name}={value} is below its least value, {least}")
        if self.policy not in ("fcfs", "priority"):
            raise ConfigError(f"policy={self.policy!r} is unknown; choose 'fcfs' or 'priority'")
        if not 0.0 <= self.watermark < 1.0:
            raise ConfigError(f"watermark={self.watermark} is not in [0, 1)")
        if not (self.ageing_seconds >= 0.0 and math.isfinite(self.ageing_seconds)):
            raise ConfigError(f"ageing_seconds={self.ageing_seconds} is negative or not finite")
        if not self.groups:
            raise ConfigError("groups is empty; a model keeps KV in at least one group")
        for group in self.groups:
            if group.window is not None and group.window < 1:
                raise ConfigError(f"window={group.window} of a KV group is below 1")
        for name in ("long_prefill_tokens", "told_prompt_tokens"):
            if getattr(self, name) and not self.chunked_prefill:
                raise ConfigError(
                    f"{name}={getattr(self, name)} needs chunked_prefill=True: "
                    "a prompt that may not be cut cannot be capped"
                )


_LEAST = {
    "num_blocks": 2,
    "max_model_len": 2,
    "block_size": 1,
    "max_num_batched_tokens": 1,
    "max_num_seqs": 1,
    "pipeline_depth": 1,
    "long_prefill_tokens": 0,
    "told_prompt_tokens": 0,
    "max_drafts": 0,
    "max_num_waiting": 1,
    "max_waiting_tokens": 1,
    "max_loras": 0,
}
