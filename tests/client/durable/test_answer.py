"""What an answer of a durable request repeats is what has come, with the state of its sampler."""

from __future__ import annotations

from array import array
from itertools import pairwise

import msgspec
import pytest

from octavo.client.durable.answer import MOST_TOKENS, Answer
from octavo.client.durable.records import Emitted, decode, encode, stored
from octavo.core.plan import LogprobsPayload, TokenLogprobs
from octavo.core.request import TokenEvent
from octavo.wire.message_types import WireEvent

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


FIRST_FIELDS = 8  # of an event in the first version, which reads no event with more


@pytest.mark.parametrize(
    "event",
    [
        TokenEvent("any", 3, (7, 8)),
        TokenEvent("any", 3, (7,), "stop", 7),
        TokenEvent("any", 3, (), "error", message="why"),
        TokenEvent("any", 3, (7,), payload=LOGPROBS),
        TokenEvent("any", 3, (7,), sampler_state=0.0),
    ],
)
def test_versions_read_the_events_of_each_other(event: TokenEvent) -> None:
    """A server that is set back to its earlier version reads what needs no later field."""
    kept = stored(event, 4)
    data = encode(Emitted((kept,)))
    assert decode(data) == Emitted((kept,))
    _, ((*fields,),) = msgspec.msgpack.decode(data)
    assert fields[-1] is not None
    assert (len(fields) > FIRST_FIELDS) == (event.sampler_state is not None)
    earlier = [*fields[:FIRST_FIELDS], *[None] * (FIRST_FIELDS - len(fields))]
    read = decode(msgspec.msgpack.encode((2, [earlier])))
    assert read == Emitted((msgspec.structs.replace(kept, sampler_state=None),))


def test_an_event_of_tokens_alone_has_nothing_else_in_the_file() -> None:
    data = encode(Emitted((WireEvent(4, 3, (7,)),)))
    assert msgspec.msgpack.decode(data) == [2, [[4, 3, [7]]]]
