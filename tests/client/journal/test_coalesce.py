"""Merged events: every token once and in order, and nothing else lost."""

from __future__ import annotations

import random
from array import array

from octavo.client.journal.client import coalesce
from octavo.core.plan import HiddenPayload, LogprobsPayload
from octavo.core.request import TokenEvent
from octavo.core.stats import RequestStats

STATS = RequestStats(arrival=0.0, num_prompt_tokens=1, added_at=0.0)
PAYLOAD, HIDDEN = LogprobsPayload((), 1), HiddenPayload(array("f", [0.5]))


def test_tokens_of_several_steps_become_one_event() -> None:
    events = [
        TokenEvent("a", 0, (5,)),
        TokenEvent("b", 7, (1,)),
        TokenEvent("a", 1, (6, 7)),
        TokenEvent("b", 8, (2,), "stop", 2, stats=STATS),
        TokenEvent("a", 3, (8,), "length", stats=STATS),
    ]
    assert coalesce(events) == [
        TokenEvent("a", 0, (5, 6, 7, 8), "length", stats=STATS),
        TokenEvent("b", 7, (1, 2), "stop", 2, stats=STATS),
    ]


def test_the_last_state_of_a_sampler_stays() -> None:
    events = [TokenEvent("a", each, (5,), sampler_state=0.5 + each) for each in range(3)]
    assert coalesce(events) == [TokenEvent("a", 0, (5, 5, 5), sampler_state=2.5)]


def test_an_event_with_more_than_tokens_is_not_merged() -> None:
    first = TokenEvent("a", 0, (5,), stats=STATS)
    payload = TokenEvent("a", 1, (6,), payload=PAYLOAD)
    last = TokenEvent("a", 3, (), "error", message="why")
    events = [first, payload, TokenEvent("a", 2, (7,)), last]
    assert coalesce(events) == events


def test_merging_random_events_loses_nothing() -> None:
    chance = random.Random(0)
    for _ in range(300):
        positions = dict.fromkeys("abc", 0)
        events: list[TokenEvent] = []
        for _ in range(chance.randrange(20)):
            name = chance.choice("abc")
            tokens = tuple(chance.randrange(9) for _ in range(chance.randrange(3)))
            payload = chance.choice([None, None, PAYLOAD, HIDDEN])
            stats = chance.choice([None, None, STATS])
            events.append(TokenEvent(name, positions[name], tokens, payload=payload, stats=stats))
            positions[name] += len(tokens)
        merged = coalesce(events)
        for name in "abc":
            mine, before = ([e for e in each if e.request_id == name] for each in (merged, events))
            assert [t for e in mine for t in e.tokens] == [t for e in before for t in e.tokens]
            at = 0
            for event in mine:
                assert event.position == at
                at += len(event.tokens)
            for field in ("payload", "stats"):
                kept = [getattr(e, field) for e in mine if getattr(e, field) is not None]
                assert kept == [getattr(e, field) for e in before if getattr(e, field) is not None]
