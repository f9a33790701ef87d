"""The reference's state of one open slot: its tokens, and whatever follows its output."""

from __future__ import annotations

import numpy as np
from msgspec import structs

from octavo.backends.step import SlotSampling
from octavo.backends.torch.sampling import noise
from octavo.backends.torch.sampling.pooling import PooledSum
from octavo.backends.torch.sampling.rules import Rules


class Slot:
    """An open slot, from its opening until it is freed."""

    __slots__ = ("pooled", "rules", "sampling", "tokens")

    def __init__(self, sampling: SlotSampling) -> None:
        self.sampling = sampling
        self.tokens: list[int] = sampling.tokens.tolist()  # the prompt, then the output
        self.rules = Rules(sampling) if sampling.has_rules else None
        self.pooled = PooledSum()

    def branch(self) -> Slot:
        """Return a slot with the same tokens and rules, which goes on by itself."""
        return Slot(structs.replace(self.sampling, tokens=np.array(self.tokens, np.int32)))

    @property
    def is_plain(self) -> bool:
        """True if its rows need neither rules nor filters, and so are drawn with others."""
        return self.rules is None and not (self.sampling.has_filters and self.sampling.temperature)

    def keys(self) -> tuple[int, int]:
        """Return the keys of the noise at the next output position."""
        return noise.keys(self.sampling.seed, len(self.tokens) - self.sampling.num_prompt)

    def append(self, token: int) -> None:
        """Add a drawn token to the output."""
        self.tokens.append(token)
        if self.rules is not None:
            self.rules.add(token)
