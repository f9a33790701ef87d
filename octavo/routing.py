"""The choice of an engine for a request: where its prefix is cached, and how much waits there.

An engine is one of a set behind a front end, or a whole server behind a router. What it has cached
is known from the requests that it was given. That view is bounded, and may be stale: the engine may
have evicted what it shows, or still have what it has forgotten. A wrong view costs time, and
nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

GRAIN_TOKENS = 32  # prefixes are compared in pieces of so many tokens
# A token that is computed although another engine has it costs the memory of its KV too, and that
# of the turns to come, so it counts as several tokens that wait.
LOST_TOKEN_COST = 4
REQUEST_COST = 64  # of each request that an engine has, in tokens that wait
# Requests that an engine may have more than the one that has fewest. With fewer, conversations that
# by chance are in the same engine lose their KV: 16 at once in two engines found a twentieth less.
LEAST_SPREAD = 12


class Candidate(NamedTuple):
    """An engine that may be given a request, as far as the choice depends on it."""

    engine: int  # its number
    num_cached: int  # tokens of the request that it probably has
    num_waiting_tokens: int  # of other prompts, which it computes first
    num_requests: int
    most_running: int  # of its requests, at once
    num_known: int  # pieces of prefixes that it was given


def choose(num_tokens: int, candidates: Sequence[Candidate]) -> int:
    """Return the number of the engine where a request of so many tokens costs least.

    Among equals it is the one that was given fewest prefixes, so that all fill evenly. An engine
    with far more requests than another gets none, whatever it has cached: all that share a prefix
    would otherwise go to the engine that had the first, and leave the others idle.
    """

    def cost(each: Candidate) -> tuple[int, int, int]:
        lost = LOST_TOKEN_COST * (num_tokens - each.num_cached)
        waiting = each.num_waiting_tokens + REQUEST_COST * each.num_requests
        return lost + waiting, each.num_known, each.engine

    return min(not_too_busy(candidates), key=cost).engine


def not_too_busy(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the engines with room for one more, without those that have far more than another."""
    least = min(each.num_requests for each in candidates)
    most = least + max(LEAST_SPREAD, least // 2)
    even = [each for each in candidates if each.num_requests <= most]
    return [each for each in even if each.num_requests < each.most_running] or even


class KnownPrefixes:
    """The prefixes that an engine was given, those used last, and no more than it can keep."""

    def __init__(self, num_tokens: int) -> None:
        self._most = max(1, num_tokens // GRAIN_TOKENS)
        self._keys: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def num_tokens(self, keys: Sequence[int]) -> int:
        """Return for how many tokens, from the first on, the engine was given this prefix."""
        known = self._keys
        for index, key in enumerate(keys):
            if key not in known:
                return index * GRAIN_TOKENS
        return len(keys) * GRAIN_TOKENS

    def note(self, keys: Sequence[int]) -> None:
        """Note a prefix that the engine has, or will have computed.

        Its end is forgotten first, as engines do: the beginning may be of use to others.
        """
        known = self._keys
        for key in reversed(keys[: self._most]):
            known[key] = None
            known.move_to_end(key)
        while len(known) > self._most:
            known.popitem(last=False)

    def clear(self) -> None:
        """Forget all prefixes, as an engine does that ends."""
        self._keys.clear()
