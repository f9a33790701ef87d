"""Divides a request's time in its engines into phases, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from octavo.core.stats import PrefillChunk, RequestStats

Kind = Literal["queue", "prefill", "preempted", "recomputed", "decode", "restart", "lost"]


@dataclass(frozen=True, slots=True)
class Phase:
    """A time in which one thing happened to a request.

    It computed its known tokens for the first time ("prefill"), after a preemption, or once more
    after its engine had died ("recomputed"). What an engine did for it that died before its first
    token is not known: it is "lost".
    """

    kind: Kind
    begin: float
    end: float
    chunks: Sequence[PrefillChunk] = field(default=())

    @property
    def seconds(self) -> float:
        """The length of the phase."""
        return max(0.0, self.end - self.begin)


def phases(stats: RequestStats, now: float) -> list[Phase]:
    """Return the phases of a request until its end, or until now if it runs."""
    found: list[Phase] = []
    begin, end = stats.added_at, stats.finished_at or now
    has_emitted = False
    for restart in stats.restarts:
        if restart.lost_at > begin:
            part = list(_in_one_engine(stats, begin, restart.lost_at, has_emitted))
            if part and part[-1].kind == "queue":
                part[-1] = Phase("lost", part[-1].begin, part[-1].end)
            found += part
            first = stats.first_token_at
            has_emitted = first is not None and first <= restart.lost_at
        found.append(Phase("restart", restart.lost_at, restart.resumed_at))
        begin = max(begin, restart.resumed_at)
    found += _in_one_engine(stats, begin, end, has_emitted)
    return sorted(found, key=lambda phase: phase.begin)


def _in_one_engine(
    stats: RequestStats, begin: float, end: float, has_emitted: bool
) -> Iterator[Phase]:
    """Yield the phases between two moments, in which no engine died."""
    groups = _groups([chunk for chunk in stats.chunks if begin <= chunk.planned_at < end])
    if not groups:
        yield Phase("queue", begin, end)
        return
    yield Phase("queue", begin, groups[0][0].planned_at)
    kind: Kind = "recomputed" if has_emitted else "prefill"
    first = stats.first_token_at
    for index, group in enumerate(groups):
        caught_up = group[-1].applied_at
        yield Phase(kind, group[0].planned_at, caught_up, group)
        is_last = index + 1 == len(groups)
        until = end if is_last else groups[index + 1][0].planned_at
        if first is not None and first <= until and until > caught_up:
            yield Phase("decode", caught_up, until)
        kind = "preempted"


def _groups(chunks: Sequence[PrefillChunk]) -> list[list[PrefillChunk]]:
    """Divide chunks into runs that continue each other: each preemption begins a new one."""
    groups: list[list[PrefillChunk]] = []
    for chunk in chunks:
        if groups and chunk.start >= groups[-1][-1].end:
            groups[-1].append(chunk)
        else:
            groups.append([chunk])
    return groups
