"""Clients that leave, close one side, send or read slowly, or send many requests at once."""

from __future__ import annotations

import random

from benchmarks.hostile.attack import (
    CHAT,
    COMPLETIONS,
    LIVE,
    Attack,
    Ending,
    Kinds,
    Right,
    head,
    post,
    request,
)
from benchmarks.hostile.framing import BODY, CHUNKED, chunk

KINDS = Kinds()
LONG = {"prompt": [5, 6, 7], "max_tokens": 400, "ignore_eos": True}
SHORT = {"prompt": [5, 6, 7], "max_tokens": 2}


@KINDS.add(share=4)
def leaves_while_the_engine_works(chance: random.Random) -> Attack:
    body = LONG | {"stream": chance.random() < 0.5, "n": chance.choice([1, 4])}
    ending = chance.choice([Ending.LEAVE, Ending.RESET])
    seconds = chance.choice([0.0, 0.01, 0.3])
    return Attack((post(COMPLETIONS, body),), Right.LEFT, ending, seconds_before_end=seconds)


@KINDS.add(share=4)
def leaves_with_requests_behind(chance: random.Random) -> Attack:
    """Make a client that leaves while requests wait behind its first one."""
    body = LONG | {"stream": chance.random() < 0.5}
    pieces = post(COMPLETIONS, body) + post(COMPLETIONS, body) * chance.choice([1, 3, 20])
    ending = chance.choice([Ending.LEAVE, Ending.RESET])
    return Attack((pieces,), Right.LEFT, ending, seconds_before_end=chance.choice([0.0, 0.2]))


@KINDS.add(share=3)
def leaves_within_a_request(chance: random.Random) -> Attack:
    whole = post(COMPLETIONS, LONG)
    part = whole[: chance.randrange(1, len(whole))]
    return Attack((part,), Right.LEFT, chance.choice([Ending.LEAVE, Ending.RESET]))


@KINDS.add(share=4)
def half_closes(chance: random.Random) -> Attack:
    """Make a client that closes its sending side after a valid request."""
    body = SHORT | {"stream": chance.random() < 0.5}
    return Attack((post(COMPLETIONS, body),), Right.SERVED, Ending.HALF_CLOSE)


@KINDS.add(share=3)
def half_closes_within_a_request(chance: random.Random) -> Attack:
    wholes = [post(COMPLETIONS, SHORT), head(COMPLETIONS, headers=[CHUNKED]) + chunk(BODY)]
    whole = chance.choice(wholes)
    part = whole[: chance.randrange(1, len(whole))]
    return Attack((part,), Right.REFUSED_OR_CLOSED, Ending.HALF_CLOSE)


@KINDS.add(share=2)
def many_requests_at_once(chance: random.Random) -> Attack:
    requests = [post(COMPLETIONS, SHORT), LIVE, post(CHAT, {"messages": 1}), LIVE]
    count = chance.choice([2, 10])
    return Attack((b"".join(requests * count),), Right.SERVED, num_answers=4 * count)


@KINDS.add(share=0.4)
def sends_its_head_slowly(chance: random.Random) -> Attack:
    """Make a client whose head would take minutes."""
    pieces = [bytes([each]) for each in request("/version", method="GET")[:20]]
    return Attack(tuple(pieces), seconds_between=1.0)


@KINDS.add(share=0.4)
def sends_its_body_slowly(chance: random.Random) -> Attack:
    start = request(COMPLETIONS, b"{", length="100")
    return Attack((start, *([b" "] * 20)), seconds_between=1.0)


@KINDS.add(share=1)
def sends_in_small_pieces(chance: random.Random) -> Attack:
    whole = post(COMPLETIONS, SHORT)
    pieces = tuple(bytes([each]) for each in whole)
    return Attack(pieces, Right.SERVED, seconds_between=0.001)


@KINDS.add(share=0.6)
def never_reads(chance: random.Random) -> Attack:
    body = LONG | {"stream": True, "n": 8, "logprobs": 5}
    return Attack((post(COMPLETIONS, body),), Right.LEFT, Ending.NEVER_READ)


@KINDS.add(share=0.6)
def reads_slowly(chance: random.Random) -> Attack:
    body = LONG | {"max_tokens": 60, "stream": True, "n": 4, "logprobs": 5}
    return Attack((post(COMPLETIONS, body),), Right.LEFT, Ending.READ_SLOWLY)


@KINDS.add(share=1)
def opens_and_says_nothing(chance: random.Random) -> Attack:
    seconds = chance.choice([0.0, 0.5, 5.0])
    return Attack((b"",), Right.LEFT, Ending.LEAVE, seconds_before_end=seconds)
