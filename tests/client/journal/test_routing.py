"""The choice of an engine, by itself: prefixes, what waits, and a simulation of conversations."""

from __future__ import annotations

import random
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from octavo.client.journal.prefixes import Prefixes
from octavo.core.request import EncoderInput, Request
from octavo.core.sampling_params import SamplingParams
from octavo.routing import GRAIN_TOKENS, Candidate, KnownPrefixes, choose

EMPTY = array("i")


def request(tokens: Sequence[int], **more: Any) -> Request:
    return Request("a", array("i", tokens), SamplingParams(), 0.0, **more)


def keys_of(tokens: Sequence[int], num_prompt: int, **more: Any) -> list[int]:
    """Return the names of the prefixes of tokens, of which the last were emitted one by one."""
    prefixes = Prefixes(request(tokens[:num_prompt], **more))
    emitted = array("i")
    for token in tokens[num_prompt:]:
        prefixes.extend(emitted)
        emitted.append(token)
    return prefixes.extend(emitted)


@pytest.mark.parametrize("num_tokens", [0, 1, GRAIN_TOKENS - 1, GRAIN_TOKENS, 5 * GRAIN_TOKENS + 3])
def test_names_do_not_depend_on_which_tokens_were_emitted(num_tokens: int) -> None:
    tokens = [random.Random(num_tokens).randrange(1000) for _ in range(num_tokens)]
    whole = keys_of(tokens, num_tokens)
    assert len(whole) == num_tokens // GRAIN_TOKENS
    for num_prompt in range(1, num_tokens, 7):
        assert keys_of(tokens, num_prompt) == whole


def test_names_are_of_what_must_be_equal_for_kv_to_be_shared() -> None:
    tokens = list(range(2 * GRAIN_TOKENS))
    same = keys_of(tokens, len(tokens))
    assert keys_of([*tokens, 1, 2, 3], len(tokens)) == same
    others: list[dict[str, Any]] = [
        {"cache_scope": "b"},
        {"lora": "c"},
        {"salts": ((3, b"d"),)},
        {"encoder": EncoderInput(2, b"e")},
    ]
    for other in others:
        assert not set(keys_of(tokens, len(tokens), **other)) & set(same)
    changed = keys_of([1, *tokens[1:]], len(tokens))
    assert not set(changed) & set(same)


def test_known_prefixes_are_bounded_and_the_beginning_is_kept_longest() -> None:
    known = KnownPrefixes(4 * GRAIN_TOKENS)
    known.note([1, 2, 3])
    assert known.num_tokens([1, 2, 3, 4]) == 3 * GRAIN_TOKENS
    assert known.num_tokens([9, 2, 3]) == 0
    known.note([5, 6])
    assert len(known) == 4
    assert known.num_tokens([1, 2, 3]) == 2 * GRAIN_TOKENS
    known.note([1])
    known.note([7, 8])
    assert known.num_tokens([1, 2]) == GRAIN_TOKENS
    known.note(range(100, 200))
    assert known.num_tokens(range(100, 200)) == 4 * GRAIN_TOKENS
    known.clear()
    assert not len(known)
    assert known.num_tokens([100]) == 0


def test_the_longest_prefix_attracts_until_too_much_waits_there() -> None:
    def where(cached: int, waiting: int, num_requests: int = 0) -> int:
        first = Candidate(0, cached, waiting, num_requests, 256, 10)
        return choose(1000, [first, Candidate(1, 0, 0, 0, 256, 0)])

    assert where(800, 0) == 0
    assert where(800, 2000, 4) == 0
    assert where(800, 5000) == 1
    assert where(800, 0, 100) == 1
    assert where(0, 0) == 1  # it was given less
    equal = [Candidate(index, 64, 0, 0, 256, 5) for index in (2, 0, 1)]
    assert choose(64, equal) == 0


@pytest.mark.parametrize(
    ("nums_requests", "most_running", "expected"),
    [
        ([12, 0], 256, 0),
        ([13, 0], 256, 1),  # twelve more at most, whatever is cached
        ([13, 0, 1], 256, 1),
        ([45, 30], 256, 0),
        ([46, 30], 256, 1),  # or half as many more
        ([5, 4], 5, 1),  # it would wait there
        ([5, 5], 5, 0),
        ([7, 5], 5, 0),
        ([18, 5], 5, 1),
    ],
)
def test_a_prefix_attracts_to_no_engine_that_is_far_busier(
    nums_requests: list[int], most_running: int, expected: int
) -> None:
    cached = [8000, *[0] * 9]
    candidates = [
        Candidate(index, cached[index], 0, number, most_running, 100 - index)
        for index, number in enumerate(nums_requests)
    ]
    assert choose(8032, candidates) == expected


@pytest.mark.parametrize("num_engines", [2, 3, 4])
@pytest.mark.parametrize("most_running", [4, 256])
def test_all_engines_work_where_all_requests_share_a_prefix(
    num_engines: int, most_running: int
) -> None:
    """Requests that follow one system prompt come, some end, and an engine is away for a time."""
    chance = random.Random(num_engines)
    system = [chance.randrange(1000) for _ in range(2000)]
    views = [KnownPrefixes(1 << 20) for _ in range(num_engines)]
    running: list[list[int]] = [[] for _ in views]  # when each request ends
    given = [0] * num_engines
    for now in range(150):
        running = [[end for end in ends if end > now] for ends in running]
        open_places = list(range(num_engines))
        if 50 <= now < 70:  # the first has ended, and what it had goes on elsewhere
            del open_places[0]
            views[0].clear()
            lost, running[0] = running[0], []
        else:
            lost = []
        new = [now + chance.randrange(4, 12 * num_engines) for _ in range(4)]
        for end in lost + new:
            tokens = system + [chance.randrange(1000) for _ in range(chance.randrange(5, 99))]
            keys = Prefixes(request(tokens)).extend(EMPTY)
            candidates = [
                Candidate(
                    place,
                    views[place].num_tokens(keys),
                    0,
                    len(running[place]),
                    most_running,
                    len(views[place]),
                )
                for place in open_places
            ]
            chosen = choose(len(tokens), candidates)
            given[chosen] += 1
            running[chosen].append(end)
            views[chosen].note(keys)
        if now in (49, 149):
            assert min(given) >= 0.5 * max(given), f"{given} at {now}"
            given = [0] * num_engines
        if now == 69:
            assert given[0] == 0
            given = [0] * num_engines


# A simulation: conversations over engines whose caches evict what was used longest ago.


@dataclass
class Cache:
    """An engine's real cache, in pieces of prefixes."""

    most: int
    pieces: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def run(self, keys: Sequence[int]) -> int:
        """Return the tokens of a prefix that it has, and keep all of it."""
        num_hits = next((i for i, key in enumerate(keys) if key not in self.pieces), len(keys))
        for key in reversed(keys):
            self.pieces[key] = None
            self.pieces.move_to_end(key)
        while len(self.pieces) > self.most:
            self.pieces.popitem(last=False)
        return num_hits


Choice = Callable[[int, list[Candidate]], int]


def hits(
    seed: int, num_engines: int, num_pieces: int, choice: Choice, *, forgets: bool = False
) -> int:
    """Return the pieces found in caches by 64 conversations of 8 turns, 16 of them at a time."""
    chance = random.Random(seed)
    caches = [Cache(num_pieces // num_engines) for _ in range(num_engines)]
    views = [KnownPrefixes(GRAIN_TOKENS * each.most) for each in caches]
    running: deque[tuple[int, int]] = deque()  # the engine of each, and what it computes
    turns = [(index, turn) for turn in range(8) for index in chance.sample(range(64), 64)]
    histories = [[chance.randrange(1000) for _ in range(40)] for _ in range(64)]
    found = 0
    for index, _ in turns:
        history = histories[index]
        history += [chance.randrange(1000) for _ in range(chance.randrange(30, 90))]
        keys = Prefixes(request(history)).extend(EMPTY)
        candidates = [
            Candidate(
                place,
                view.num_tokens(keys),
                sum(tokens for where, tokens in list(running)[-4:] if where == place),
                sum(where == place for where, _ in running),
                256,
                len(view),
            )
            for place, view in enumerate(views)
        ]
        chosen = choice(len(history), candidates)
        running.append((chosen, len(history) - candidates[chosen].num_cached))
        if len(running) > 16:
            running.popleft()
        found += caches[chosen].run(keys)
        history += [chance.randrange(1000) for _ in range(chance.randrange(20, 60))]  # the answer
        views[chosen].note(Prefixes(request(history)).extend(EMPTY))
        caches[chosen].run(Prefixes(request(history)).extend(EMPTY))
        if forgets and chance.random() < 0.02:  # a view may know less than is true
            views[chance.randrange(num_engines)].clear()
    return found


@pytest.mark.parametrize("num_engines", [2, 3, 4])
def test_conversations_return_to_where_their_prefix_is(num_engines: int) -> None:
    """Conversations fit into the engines' caches together, with a little to spare."""
    at_random = random.Random(num_engines)
    num_pieces = 64 * (40 + 8 * 100) // GRAIN_TOKENS * 11 // 10
    one = hits(num_engines, 1, num_pieces, lambda num_tokens, candidates: 0)
    routed = hits(num_engines, num_engines, num_pieces, choose)
    drawn = hits(
        num_engines, num_engines, num_pieces, lambda tokens, all_: at_random.choice(all_).engine
    )
    assert routed >= 0.95 * one
    assert routed >= 1.5 * drawn
    assert hits(num_engines, num_engines, num_pieces, choose, forgets=True) > drawn
