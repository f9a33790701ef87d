"""Joins what several engines report of one request into one timeline.

An engine that dies takes its statistics with it. Those that came with the request's first token in
it are kept; what it did later is known from its tokens alone.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest

from octavo.core.stats import RESTART, RequestStats, Restart

MAX_ENGINES = 16  # that are named, the last ones


class Timeline:
    """The statistics of one request over all the engines that had it."""

    __slots__ = (
        *("_engines", "_lost_at", "_num_before", "_past", "_restarts", "_seen"),
        "_submitted_at",
    )

    def __init__(self) -> None:
        self._past: RequestStats | None = None  # of the engines that have ended
        self._seen: RequestStats | None = None  # the last that the present one has sent
        self._submitted_at: float | None = None  # to the present engine
        self._num_before = 0  # tokens that earlier ones had emitted
        self._restarts: list[Restart] = []
        self._engines: list[int] = []  # those that had it, by their places in the set
        self._lost_at: float | None = None  # since when it has waited for an engine

    def wait(self, now: float) -> None:
        """Note that from now on there is no engine for the request."""
        if self._lost_at is None:
            self._lost_at = now

    def submit(self, now: float, num_emitted: int, engine: int) -> None:
        """Note that an engine gets the request, with so many tokens emitted before."""
        if self._engines[-1:] != [engine]:
            self._engines = [*self._engines[-MAX_ENGINES + 1 :], engine]
        if self._lost_at is not None:
            self._restarts.append(Restart(self._lost_at, max(self._lost_at, now)))
            self._lost_at = None
        self._submitted_at, self._num_before, self._seen = now, num_emitted, None

    def lose(self, now: float, arrival: float, num_prompt: int, num_emitted: int) -> None:
        """Note that the engine has ended, or does not have the request any more."""
        self.wait(now)
        if self._submitted_at is None:
            return
        life = self._seen
        if life is None:  # it had emitted nothing, and sent nothing
            life = RequestStats(arrival, num_prompt, self._submitted_at)
        elif num_emitted > self._num_before:
            num_steps = num_emitted - self._num_before - 1
            life = replace(life, num_decode_steps=num_steps)
        self._past = life if self._past is None else _joined(self._past, life)
        self._submitted_at = self._seen = None

    def whole(self, stats: RequestStats, num_emitted: int) -> RequestStats:
        """Return what the present engine reports, with what earlier ones had done."""
        self._seen = stats
        stats.engines = self._engines
        if self._past is None and not self._restarts:
            return stats
        joined = stats if self._past is None else _joined(self._past, stats)
        waits = dict(joined.wait_seconds)
        waits[RESTART] = sum(each.resumed_at - each.lost_at for each in self._restarts)
        return replace(
            joined,
            num_output_tokens=num_emitted,
            wait_seconds=waits,
            restarts=list(self._restarts),
            engines=self._engines,
        )


def _joined(first: RequestStats, second: RequestStats) -> RequestStats:
    """Return one timeline of two, of which the second continues the first."""
    was_planned = first.first_planned_at is not None
    waits = dict(first.wait_seconds)
    for reason, seconds in second.wait_seconds.items():
        waits[reason] = waits.get(reason, 0.0) + seconds
    joined = replace(
        first,
        first_planned_at=first.first_planned_at if was_planned else second.first_planned_at,
        first_token_at=second.first_token_at
        if first.first_token_at is None
        else first.first_token_at,
        finished_at=second.finished_at,
        num_cached_tokens=first.num_cached_tokens if was_planned else second.num_cached_tokens,
        num_recached_tokens=first.num_recached_tokens
        + second.num_recached_tokens
        + (second.num_cached_tokens if was_planned else 0),
        num_preemptions=first.num_preemptions + second.num_preemptions,
        num_yields=first.num_yields + second.num_yields,
        num_lost_tokens=first.num_lost_tokens + second.num_lost_tokens,
        num_prefills=first.num_prefills + second.num_prefills,
        num_decode_steps=first.num_decode_steps + second.num_decode_steps,
        num_drafts=first.num_drafts + second.num_drafts,
        num_accepted_drafts=first.num_accepted_drafts + second.num_accepted_drafts,
        num_predicted=first.num_predicted + second.num_predicted,
        num_accepted_predicted=first.num_accepted_predicted + second.num_accepted_predicted,
        drafted_at=_added(first.drafted_at, second.drafted_at),
        accepted_at=_added(first.accepted_at, second.accepted_at),
        num_forced_tokens=first.num_forced_tokens + second.num_forced_tokens,
        chunks=list(first.chunks),
        wait_seconds=waits,
    )
    for chunk in second.chunks:
        joined.add_chunk(chunk)
    return joined


def _added(first: list[int], second: list[int]) -> list[int]:
    return [one + other for one, other in zip_longest(first, second, fillvalue=0)]
