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

    __slots__ = ("mu", "pooled", "rules", "sampling", "surprise", "tokens")

    def __init__(self, sampling: SlotSampling) -> None:
        self.sampling = sampling
        self.tokens: list[int] = sampling.tokens.tolist()  # the prompt, then the output
        self.rules = Rules(sampling) if sampling.has_rules else None
        self.pooled = PooledSum()
        self.mu = 0.0 if sampling.mirostat is None else sampling.mirostat.mu
        self.surprise: float | None = None  # of the token drawn last, with mirostat

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
        """Add a token to the output."""
        self.tokens.append(token)
        if self.rules is not None:
            self.rules.add(token)

    def append_drawn(self, token: int) -> None:
        """Add the token that was drawn last, and move mirostat's bound by its surprise."""
        self.append(token)
        if self.surprise is not None and self.sampling.mirostat is not None:
            self.mu -= self.sampling.mirostat.eta * (self.surprise - self.sampling.mirostat.tau)
            self.surprise = None
