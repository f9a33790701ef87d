"""The choice of an engine, by itself: prefixes, what waits, and a simulation of conversations."""

from __future__ import annotations

import random
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from octavo.client.journal.routing import (
    GRAIN_TOKENS,
    Candidate,
    KnownPrefixes,
    Prefixes,
    choose,
)
from octavo.core.request import EncoderInput, Request
from octavo.core.sampling_params import SamplingParams

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
        first = Candidate(0, cached, waiting, num_requests, 10)
        return choose(1000, [first, Candidate(1, 0, 0, 0, 0)])

    assert where(800, 0) == 0
    assert where(800, 2000, 4) == 0
    assert where(800, 5000) == 1
    assert where(800, 0, 100) == 1
    assert where(0, 0) == 1  # it was given less
    equal = [Candidate(index, 64, 0, 0, 5) for index in (2, 0, 1)]
    assert choose(64, equal) == 0


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
