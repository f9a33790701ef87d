"""The shares of several keys in what they have in common: no key can take it from the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shares:
    """The rule by which the keys of one server share a bound.

    One key may have half of it, and each finds its share of the other half whatever others have.
    Without keys, or with one, there is nothing to share.
    """

    num_keys: int
    knows: Callable[[str], bool]  # whether a key is one of the server's

    def left(self, owner: str, used: Mapping[str, int], limit: int) -> int:
        """Return how much a key may add; it is negative if the key has too much.

        `used` has what each key has, and `limit` is the bound of all together.
        """
        own = used.get(owner, 0)
        left = limit - own
        others = {name: amount for name, amount in used.items() if name != owner}
        if self.num_keys < 2:
            return left - sum(others.values())
        share = limit // (2 * self.num_keys)
        num_absent = self.num_keys - self.knows(owner)
        for name, amount in others.items():
            is_key = self.knows(name)
            num_absent -= is_key
            left -= max(amount, share) if is_key else amount
        return min(left - max(0, num_absent) * share, limit // 2 - own)

    def most(self, least: int) -> int:
        """Return a bound of a number, of which each key has a share of at least one."""
        return max(least, 2 * self.num_keys)


ALONE = Shares(0, lambda name: False)  # of a server without keys
