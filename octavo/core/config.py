"""The core's settings, checked once, when they are made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

MAX_WEIGHT = 1000.0  # of an owner; the least is 1 / MAX_WEIGHT

# Priorities are small integers; the bound keeps `arrival + priority * ageing` well within a double.
MAX_PRIORITY = 1_000_000


class ConfigError(ValueError):
    """A setting, or a combination of two, that cannot work; the message says what to change."""


# What the layers of a KV group keep of a sequence:
#   full    keys and values of each position (of the most recent ones if the group has a window)
#   latent  one compressed row for each position, from which keys and values are computed
#   state   one state of fixed size, of all positions so far; it is kept at the ends of blocks
#   cross   keys and values of an encoder's positions, written once, when a sequence starts
#   none    nothing: every step computes the whole sequence
KVKind = Literal["full", "latent", "state", "cross", "none"]
KV_KINDS: tuple[KVKind, ...] = get_args(KVKind)


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that keep the same of each sequence, and share one block table for it.

    `window` is the number of most recent positions that a query may read (its own included);
    None means all of them. `block_bytes` is the size of a block in any unit, the same for all
    groups. A state group keeps a state at every `checkpoint_blocks`-th block end for later
    sequences. `owner` names the model whose layers these are: a drafter has groups of its own.
    """

    window: int | None = None
    kind: KVKind = "full"
    block_bytes: int = 1
    checkpoint_blocks: int = 1
    owner: str = ""

    def first_needed(self, position: int) -> int:
        """Return the oldest position that a query at `position` reads.

        To continue from a state is to read the position before.
        """
        if self.kind == "state":
            return max(0, position - 1)
        if self.window is None or position < self.window:
            return 0
        return position - self.window + 1

    def most_blocks(
        self, num_blocks: int, block_size: int, chunk_tokens: int, max_drafts: int = 0
    ) -> int:
        """Return how many blocks a sequence of so many has at once, at most.

        A chunk has `chunk_tokens` tokens at most. What it no longer reads has been dropped, or is
        the prefix cache's.
        """
        if self.kind == "state":
            # While a chunk runs: the state that it reads; the checkpoints in it; and blocks
            # wherever it or the chunk before might have stopped, if drafts had been rejected.
            entries = -(-(1 + chunk_tokens) // block_size) + 1
            stops = -(-max_drafts // block_size) + 1
            return min(num_blocks, entries, 1 + entries // self.checkpoint_blocks + 1 + 2 * stops)
        if self.window is None:
            return num_blocks
        # The window before a chunk and the chunk itself may begin in the middle of a block.
        return min(num_blocks, -(-(self.window - 1 + chunk_tokens) // block_size) + 1)


def blocks_per_page(groups: Sequence[KVGroup]) -> tuple[int, ...]:
    """Return the number of blocks of each group in a page; the largest block fills it."""
    page_bytes = max(group.block_bytes for group in groups)
    return tuple(page_bytes // group.block_bytes for group in groups)


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """The settings of the scheduler and the KV manager."""

    num_blocks: int  # blocks in the pool, the null block included
    max_model_len: int  # tokens of a sequence, output included
    block_size: int = 16  # tokens in a block
    groups: tuple[KVGroup, ...] = (KVGroup(),)
    max_num_batched_tokens: int = 2048  # tokens in a step
    max_num_seqs: int = 256  # slots: sequences running at once
    pipeline_depth: int = 1  # steps in flight at once; 1 is synchronous
    # Processes through which a step goes one after the other. More than 1: steps in flight have
    # different sequences, so that each process may compute another one.
    num_stages: int = 1
    # What a step of stages has at least, if there is so much. Fewer sequences that decode take as
    # long, since a step reads all weights; with fewer tokens of prompts, products are slower.
    stage_sequences: int = 8
    stage_prompt_tokens: int = 64
    prefix_caching: bool = True
    logs_cache: bool = False  # what enters and leaves the prefix cache is noted for a reader
    chunked_prefill: bool = True
    long_prefill_tokens: int = 0  # cap on the tokens of one chunk; 0: none
    prompt_logprob_tokens: int = 0  # cap on a step's tokens with prompt_logprobs; 0: none
    max_drafts: int = 0  # draft tokens of a sequence verified in one step
    max_step_drafts: int = 0  # … of all sequences together; 0: as many as a step has room for
    # Branches of trees of drafts, of all sequences in a step; 0: drafts are chains.
    max_branches: int = 0
    proposes: bool = True  # False: only sequences with a prediction have drafts
    max_ahead: int = 0  # tokens that a second model proposes behind a sample; 0: there is none
    ahead_width: int = 1  # candidates that it proposes for each of them, if drafts may be trees
    ahead_forks: bool = False  # other candidates than the likeliest may be followed too
    # A pass of the second model proposes all of them: it has a row for the sample and each of them.
    ahead_in_block: bool = False
    max_ahead_len: int = 0  # tokens of a sequence that it can read; 0: as many as the first
    max_ahead_lag: int = 2048  # tokens that it may lack of a sequence and still catch up with
    policy: str = "fcfs"  # or "priority": the lower number goes first
    ageing_seconds: float = 0.0  # waiting so long gains one step of priority; 0: no ageing
    max_num_waiting: int = 10_000  # requests in the queue
    max_waiting_tokens: int = 100_000_000  # theirs and their predictions' together
    max_loras: int = 0  # different adapters running at once; 0: adapters are refused
    watermark: float = 0.01  # share of the blocks that an admission must leave free
    hold_seconds: float = 60.0  # the longest that a request waits for something outside the core
    untimed_holds: tuple[str, ...] = ()  # reasons of holds that something else bounds
    # The longest that a step in which sequences decode may take: in seconds, and as a multiple of
    # its time without prompts; 0: no bound.
    itl_goal: float = 0.0
    itl_ratio: float = 0.0
    ttft_goal: float = 0.0  # seconds until a first token, for which steps may be longer; 0: none
    fair_share: bool = True  # owners of requests share the slots, the blocks and the prefills
    share_quantum: int = 256  # tokens of a turn, where not all owners can run at once

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value < least:
                raise ConfigError(f"{name}={value} must be at least {least}")
        if self.policy not in ("fcfs", "priority"):
            raise ConfigError(f"policy={self.policy!r} is unknown; choose 'fcfs' or 'priority'")
        if not 0.0 <= self.watermark < 1.0:
            raise ConfigError(f"watermark={self.watermark} must be at least 0 and below 1")
        if not (self.ageing_seconds >= 0.0 and math.isfinite(self.ageing_seconds)):
            raise ConfigError(f"ageing_seconds={self.ageing_seconds} must be finite and at least 0")
        if not self.groups:
            raise ConfigError("groups is empty; name at least one KV group")
        if not (self.hold_seconds > 0.0 and math.isfinite(self.hold_seconds)):
            raise ConfigError(f"hold_seconds={self.hold_seconds} must be finite and above 0")
        _check_goals(self)
        for group in self.groups:
            _check_group(group)
        kinds = [group.kind for group in self.groups]
        if "none" in kinds and (len(kinds) > 1 or self.chunked_prefill):
            raise ConfigError(
                "a KV group of kind 'none' keeps nothing, so each step computes a whole prompt: it "
                "must be the only group, and chunked_prefill must be False"
            )
        if self.max_branches and not all(kind in ("full", "latent", "cross") for kind in kinds):
            raise ConfigError(
                f"max_branches={self.max_branches} needs KV groups that keep positions; the drafts "
                f"of groups of the kinds {kinds} must be chains"
            )
        for name in ("long_prefill_tokens", "prompt_logprob_tokens"):
            if getattr(self, name) and not self.chunked_prefill:
                raise ConfigError(
                    f"{name}={getattr(self, name)} needs chunked_prefill=True: "
                    "a prompt that is not cut into chunks cannot be capped"
                )

    @property
    def bounds_step_time(self) -> bool:
        """True if the time of a step is bounded while sequences decode."""
        return bool(self.itl_goal or self.itl_ratio)

    @property
    def blocks_per_page(self) -> tuple[int, ...]:
        """The number of blocks of each group in a page of the pool."""
        return blocks_per_page(self.groups)


def _check_goals(config: CoreConfig) -> None:
    for name in ("itl_goal", "itl_ratio", "ttft_goal"):
        value = getattr(config, name)
        if not (value >= 0.0 and math.isfinite(value)):
            raise ConfigError(f"{name}={value} must be finite and at least 0")
    if 0.0 < config.itl_ratio <= 1.0:
        raise ConfigError(
            f"itl_ratio={config.itl_ratio} leaves no time for prompts; take 2 or more"
        )
    if config.ttft_goal and not config.bounds_step_time:
        raise ConfigError(
            f"ttft_goal={config.ttft_goal} lengthens the steps that itl_goal bounds, and they are "
            "not bounded: set itl_goal too, or leave ttft_goal out"
        )


def _check_group(group: KVGroup) -> None:
    if group.kind not in KV_KINDS:
        raise ConfigError(f"kind={group.kind!r} of a KV group is unknown; choose one of {KV_KINDS}")
    for name in ("block_bytes", "checkpoint_blocks"):
        if getattr(group, name) < 1:
            raise ConfigError(f"{name}={getattr(group, name)} of a KV group must be at least 1")
    if group.window is not None and group.window < 1:
        raise ConfigError(f"window={group.window} of a KV group must be at least 1")
    if group.window is not None and group.kind not in ("full", "latent"):
        raise ConfigError(f"window={group.window} has no meaning for a KV group of {group.kind!r}")


_LEAST = {
    "num_blocks": 2,
    "max_model_len": 2,
    "block_size": 1,
    "max_num_batched_tokens": 1,
    "max_num_seqs": 1,
    "pipeline_depth": 1,
    "num_stages": 1,
    "stage_sequences": 1,
    "stage_prompt_tokens": 1,
    "long_prefill_tokens": 0,
    "prompt_logprob_tokens": 0,
    "max_drafts": 0,
    "max_step_drafts": 0,
    "max_branches": 0,
    "max_ahead": 0,
    "ahead_width": 1,
    "max_ahead_len": 0,
    "max_ahead_lag": 0,
    "max_num_waiting": 1,
    "max_waiting_tokens": 1,
    "max_loras": 0,
    "share_quantum": 1,
}
