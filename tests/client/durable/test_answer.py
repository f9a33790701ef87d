"""What an answer of a durable request repeats is what has come, with the state of its sampler."""

from __future__ import annotations

from array import array
from itertools import pairwise

import pytest

from octavo.client.durable.answer import MOST_TOKENS, Answer
from octavo.client.durable.records import Emitted, decode, encode, stored
from octavo.core.plan import LogprobsPayload, TokenLogprobs
from octavo.core.request import TokenEvent

LOGPROBS = LogprobsPayload((TokenLogprobs(array("i", [7]), array("f", [-0.5]), 1),))


@pytest.mark.parametrize("with_payloads", [(), (0,), (2,), (0, 1, 2)])
@pytest.mark.parametrize("counts", [(1, 1, 1), (1, MOST_TOKENS, 2)])
def test_the_last_state_of_a_sampler_survives_a_file(
    with_payloads: tuple[int, ...], counts: tuple[int, ...]
) -> None:
    answer = Answer(4)
    for index, count in enumerate(counts):
        payload = LOGPROBS if index in with_payloads else None
        event = TokenEvent(
            "any",
            len(answer.tokens),
            (7,) * count,
            payload=payload,
            sampler_state=0.1 + index,
        )
        assert answer.add(stored(event, 4))
    for copied in (answer, answer.copy()):
        again = Answer(4)
        read = decode(encode(Emitted(tuple(copied.recorded()))))
        assert isinstance(read, Emitted)
        for each in read.events:
            assert again.add(each)
        assert again.tokens == answer.tokens
        assert again.sampler_state == 0.1 + len(counts) - 1
    events = [*again.replayed()]
    assert events[-1].sampler_state == again.sampler_state
    for before, after in pairwise(events):
        assert before.position + len(before.tokens) == after.position
