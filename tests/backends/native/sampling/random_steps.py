"""Random steps: slots with any combination of rules, drafts, masks, prompts and pooled rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from octavo.backends.base import Floats, Ints
from octavo.backends.step import (
    ALL_LOGPROBS,
    Draws,
    Dry,
    Masks,
    Mirostat,
    PoolRows,
    PromptRows,
    SlotSampling,
    Stage,
)
from tests.backends.native.sampling.given_logits import sampling_of


def some_ids(random: np.random.Generator, vocabulary: int, most: int) -> list[int]:
    count = int(random.integers(0, min(most, vocabulary) + 1))
    return random.choice(vocabulary, count, replace=False).tolist()


def forbid_odd(prompt: Ints, output: Ints, row: Floats) -> Floats:
    row[1::2] = -np.inf
    row[output] -= 1
    return row


def double(prompt: Ints, output: Ints, row: Floats) -> Floats:
    return row * np.float32(2) + np.float32(prompt[0])


def some_chain(random: np.random.Generator, size: int) -> tuple[Stage, ...]:
    """Return some samplers in any order."""
    keep = int(random.choice([0, 2, 5]))
    spread = float(random.choice([0.0, 0.5, 3.0]))
    stages = [
        Stage("top_k", float(random.choice([1, 3, 20, size + 2]))),
        Stage("min_p", float(random.choice([0.001, 0.1, 1.0])), keep),
        Stage("top_p", float(random.choice([1e-9, 0.5, 0.95])), keep),
        Stage("typical_p", float(random.choice([1e-9, 0.3, 0.9])), keep),
        Stage("top_n_sigma", float(random.choice([0.2, 1.0, 2.5]))),
        Stage("xtc", float(random.choice([0.3, 1.0])), keep, float(random.choice([0.01, 0.2]))),
        Stage(
            "temperature",
            float(random.choice([0.0, 0.4, 1.5])),
            range=spread,
            exponent=float(random.choice([0.5, 1.0, 3.0])),
        ),
    ]
    chosen = random.permutation(len(stages))[: int(random.integers(1, 1 + len(stages)))]
    return tuple(stages[index] for index in chosen)


def some_mirostat(random: np.random.Generator, size: int) -> Mirostat:
    """Return a bound of surprise that is reached, or far away."""
    mu = float(random.choice([-3.0, 0.1, 2.0, 5.0, 40.0, 3000.0]))
    return Mirostat(float(random.choice([0.0, 1.0, 4.0])), float(random.choice([0.1, 2.0])), mu)


def some_dry(random: np.random.Generator, size: int) -> Dry:
    """Return penalties for the repetitions of few tokens."""
    return Dry(
        float(random.choice([0.3, 2.0])),
        float(random.choice([1.0, 1.75, 40.0])),
        int(random.integers(1, 4)),
        int(random.choice([1, 3, 8, 32_768])),
        tuple(some_ids(random, min(6, size), 2)),
    )


Make = Callable[[np.random.Generator, int], Any]

# One field, or several that belong together, each with its probability.
FIELDS: dict[str, tuple[float, Make]] = {
    "temperature": (0.6, lambda random, _: float(random.choice([0.01, 0.5, 1.0, 2.0]))),
    "min_p": (0.2, lambda random, _: float(random.choice([1e-6, 0.05, 0.5, 1.0]))),
    "top_p": (0.3, lambda random, _: float(random.choice([1e-9, 0.3, 0.9, 0.99999]))),
    "top_k": (0.3, lambda random, size: int(random.choice([1, 2, 7, 50, size + 3]))),
    "allowed": (0.2, lambda random, size: [*some_ids(random, size, size), size // 2]),
    "bad_words": (
        0.3,
        lambda random, size: tuple(
            tuple(random.integers(0, min(size, 6), int(random.integers(1, 4))).tolist())
            for _ in range(4)
        ),
    ),
    "min_tokens": (0.3, lambda random, _: int(random.integers(1, 6))),
    "stop_ids": (0.5, lambda random, size: some_ids(random, size, 4)),
    "bias_ids": (0.3, lambda random, size: sorted(some_ids(random, size, 40))),
    "repetition": (0.3, lambda random, _: float(random.choice([0.6, 1.1, 1.9]))),
    "presence": (0.3, lambda random, _: float(random.uniform(-2, 2))),
    "frequency": (0.3, lambda random, _: float(random.uniform(-2, 2))),
    "penalty_window": (0.3, lambda random, _: int(random.integers(1, 12))),
    "chain": (0.3, some_chain),
    "mirostat": (0.2, some_mirostat),
    "dry": (0.3, some_dry),
    "logprobs": (0.3, lambda random, size: int(random.choice([ALL_LOGPROBS, 0, 5, size + 1]))),
    "logprob_ids": (0.2, lambda random, size: some_ids(random, size, 6)),
    "processors": (
        0.1,
        lambda random, _: [(forbid_odd,), (double,), (double, forbid_odd)][random.integers(3)],
    ),
}


def random_sampling(random: np.random.Generator, vocabulary: int) -> SlotSampling:
    """Return a sampling with some of all rules; tokens are from few, so that they repeat."""
    fields: dict[str, Any] = {"seed": int(random.integers(0, 2**63 - 1))}
    for name, (chance, make) in FIELDS.items():
        if random.random() < chance:
            fields[name] = make(random, vocabulary)
    if "mirostat" in fields:
        stages = some_chain(random, vocabulary) if random.random() < 0.5 else ()
        fields["chain"] = (*stages, Stage("mirostat", float(random.choice([1, 2]))))
        fields["temperature"] = 1.0
    if "allowed" in fields:
        fields["allowed"] = list(dict.fromkeys(fields["allowed"]))
    if "bias_ids" in fields:
        fields["bias"] = random.choice([-100, -1.5, 0.3, 8, 100], len(fields["bias_ids"]))
    few = min(vocabulary, 6)
    prompt = random.integers(0, few, int(random.integers(1, 20))).tolist()
    output = random.integers(0, few, int(random.integers(0, 6))).tolist()
    return sampling_of(prompt, output, **fields)


def random_logits(random: np.random.Generator, rows: int, vocabulary: int) -> Floats:
    logits = random.normal(0, float(random.choice([0.3, 3, 30])), (rows, vocabulary))
    if random.random() < 0.3:
        logits = np.round(logits)  # ties
    return logits.astype(np.float32)


@dataclass
class Steps:
    """A world of steps over a table of logits, whose rows they choose."""

    random: np.random.Generator
    vocabulary: int
    has_masks: bool
    open: dict[int, SlotSampling] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)  # to be freed

    def next(self, rows: int) -> tuple[list[int], Draws]:
        """Return the rows of a step's logits, of a table with so many rows, and its draws."""
        random = self.random
        freed = [slot for slot in self.open if slot in self.failed or random.random() < 0.2]
        self.failed.clear()
        for slot in freed:
            del self.open[slot]
        opened = []
        for slot in range(12):
            if slot not in self.open and random.random() < 0.5:
                self.open[slot] = random_sampling(random, self.vocabulary)
                opened.append((slot, self.open[slot]))
        slots = [slot for slot in self.open if random.random() < 0.8]
        num_drafts = [int(random.integers(0, 4)) for _ in slots]
        has_drafts = random.random() < 0.5
        if not has_drafts:
            num_drafts = [0 for _ in slots]
        counts = 1 + np.array(num_drafts, np.int32)
        first_rows = (np.cumsum(counts) - counts).astype(np.int32)
        num_rows = int(counts.sum())
        prompts, pools = [], []
        for slot in self.open:
            if random.random() < 0.2:
                targets = random.integers(0, self.vocabulary, int(random.integers(1, 5)))
                prompts.append(PromptRows(slot, num_rows, targets.astype(np.int32), 3))
                num_rows += len(targets)
            if random.random() < 0.2:
                pools.append(PoolRows(slot, 0, int(random.integers(1, 3)), random.random() < 0.5))
        appended = [
            (slot, tuple(random.integers(0, self.vocabulary, int(random.integers(1, 4))).tolist()))
            for slot in self.open
            if random.random() < 0.1
        ]
        num_rows = max(2, num_rows)
        chosen = random.integers(0, rows, num_rows).tolist()
        return chosen, Draws(
            tuple(freed),
            tuple(opened),
            np.array(slots, np.int32),
            first_rows,
            np.array(num_drafts, np.int32) if has_drafts else None,
            random.integers(0, min(6, self.vocabulary), sum(num_drafts)).astype(np.int32),
            tuple(prompts),
            tuple(pools),
            self._masks(int(counts.sum())) if self.has_masks and slots else None,
            tuple(appended),
        )

    def _masks(self, rows: int) -> Masks:
        chances = self.random.choice(
            [0.0, 0.02, 0.5, 0.98, 1.0], rows, p=[0.04, 0.3, 0.2, 0.26, 0.2]
        )
        allowed = self.random.random((rows, self.vocabulary)) < chances[:, None]
        bits = np.zeros((rows, -(-self.vocabulary // 32) * 32), np.uint8)
        bits[:, : self.vocabulary] = allowed
        return Masks(np.packbits(bits, axis=1, bitorder="little").view(np.uint32)).set_ready()
