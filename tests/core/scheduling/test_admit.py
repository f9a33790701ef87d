"""Refusals of requests that could never run or find the queue full, and places of admission."""

from typing import Any

import pytest

from octavo.core.config import KVGroup
from octavo.core.request import TokenEvent
from tests.core.make import Rig, tokens

REFUSALS: list[tuple[dict[str, Any], int, dict[str, Any], list[str]]] = [
    ({}, 0, {}, ["the prompt has no tokens"]),
    ({}, 64, {}, ["64 prompt tokens", "max_tokens=16", "max_model_len=64"]),
    ({}, 64, {"max_tokens": 2, "pooling": "last"}, ["64 prompt tokens", "max_tokens=2"]),
    ({}, 65, {"max_tokens": 0, "pooling": "last"}, ["65 prompt tokens", "max_tokens=0"]),
    ({}, 9, {"max_tokens": 2, "emitted": [1, 2]}, ["9 prompt tokens and 2 already emitted", "=2"]),
    ({}, 5, {"priority": 1_000_001}, ["priority=1000001", "±1000000"]),
    ({}, 5, {"arrival": float("nan")}, ["arrival=nan"]),
    ({}, 5, {"arrival": float("inf")}, ["arrival=inf"]),
    (
        {"num_blocks": 6},
        10,
        {"max_tokens": 12},
        ["22 tokens", "need 6 KV blocks of 4", "there are 5 in all"],
    ),
    (
        {"num_blocks": 8, "groups": (KVGroup(), KVGroup())},
        10,
        {"max_tokens": 7},
        ["17 tokens", "need 8 KV blocks", "there are 7"],
    ),
    (
        {"chunked_prefill": False, "max_num_batched_tokens": 16},
        10,
        {"max_tokens": 8},
        ["prompt (10 tokens)", "max_tokens (8)", "max_num_batched_tokens=16"],
    ),
    ({}, 5, {"lora": "x"}, ["adapter 'x'", "max_loras=0"]),
    (
        {"groups": (KVGroup(kind="none"),), "chunked_prefill": False},
        5,
        {"max_tokens": 2},
        ["one token at most", "max_tokens=2"],
    ),
    ({}, 5, {"salts": ((5, b"cat"),)}, ["salts at [5]", "prompt of 5 tokens"]),
]


@pytest.mark.parametrize(
    ("settings", "prompt", "fields", "words"), REFUSALS, ids=[words[0] for *_, words in REFUSALS]
)
def test_a_request_that_could_never_run_is_refused_with_numbers(
    settings: dict[str, Any], prompt: int, fields: dict[str, Any], words: list[str]
) -> None:
    rig = Rig(**settings)
    event = rig.add("a", prompt, **fields)
    assert event is not None
    assert (event.finish_reason, event.tokens, event.stats) == ("refused", (), None)
    assert event.position == len(fields.get("emitted", ()))
    for word in words:
        assert word in str(event.message)
    assert rig.scheduler.sequences == {}
    assert rig.scheduler.stats.num_finished == {"refused": 1}


JUST_FITS: list[tuple[dict[str, Any], int, dict[str, Any]]] = [
    ({}, 63, {}),
    ({}, 64, {"max_tokens": 0, "pooling": "last"}),
    (
        {"chunked_prefill": False, "max_num_batched_tokens": 64},
        64,
        {"max_tokens": 0, "pooling": "mean"},
    ),
    ({}, 9, {"max_tokens": 2, "emitted": [1]}),
    ({}, 5, {"priority": -1_000_000}),
    ({"num_blocks": 6}, 10, {"max_tokens": 11}),
    ({"num_blocks": 9, "groups": (KVGroup(), KVGroup())}, 10, {"max_tokens": 7}),
    ({"chunked_prefill": False, "max_num_batched_tokens": 16}, 10, {"max_tokens": 7}),
    ({"max_loras": 1}, 5, {"lora": "x"}),
]


@pytest.mark.parametrize(("settings", "prompt", "fields"), JUST_FITS)
def test_a_request_that_just_fits_runs_to_its_end(
    settings: dict[str, Any], prompt: int, fields: dict[str, Any]
) -> None:
    rig = Rig(**settings)
    assert rig.add("a", prompt, **fields) is None
    rig.finish()
    assert rig.ends() == {"a": "stop" if "pooling" in fields else "length"}


@pytest.mark.parametrize("settings", [{}, {"pipeline_depth": 2}, {"max_num_batched_tokens": 3}])
def test_a_request_about_its_prompt_ends_with_it(settings: dict[str, Any]) -> None:
    """The request has no token, and those beside it have all of theirs."""
    rig = Rig(**settings)
    rig.add("a", 5, max_tokens=0, pooling="mean")
    rig.add("b", 5, max_tokens=4)
    outputs = rig.finish()
    assert rig.ends() == {"a": "stop", "b": "length"}
    assert len(outputs.get("a", ())) == 0
    assert len(outputs["b"]) == 4


def test_max_model_len_ends_a_sequence_with_a_larger_max_tokens() -> None:
    rig = Rig(max_model_len=12)
    rig.add("a", 10, max_tokens=16)
    assert len(rig.finish()["a"]) == 2


def test_with_windows_a_sequence_may_be_longer_than_the_pool() -> None:
    rig = Rig(num_blocks=8, max_num_batched_tokens=4, groups=(KVGroup(window=8),))
    assert rig.add("a", 40, max_tokens=20) is None
    assert len(rig.finish()["a"]) == 20


def test_an_id_is_in_use_while_its_request_lives() -> None:
    rig = Rig()
    assert rig.add("a", 5, max_tokens=1) is None
    with pytest.raises(ValueError, match="request id 'a' is in use"):
        rig.add("a", 5)
    rig.finish()
    assert rig.add("a", 5) is None


def reason(event: TokenEvent | None) -> tuple[str | None, str | None]:
    """Return why a request was rejected, as reason and message."""
    assert event is not None
    return event.finish_reason, event.message


def test_a_request_admitted_before_a_restart_is_admitted_again() -> None:
    """Running and waiting requests all return to the queue at once when an engine dies."""
    rig = Rig(max_num_waiting=1, max_waiting_tokens=5)
    for name in "abc":
        assert rig.add(name, 5, resumed=True, max_tokens=2) is None
    assert reason(rig.add("new", 5))[0] == "overloaded"
    rig.finish()
    assert rig.ends() == {"a": "length", "b": "length", "c": "length", "new": "overloaded"}


def test_the_queue_is_bounded_in_requests() -> None:
    rig = Rig(max_num_waiting=2)
    assert rig.add("a", 5) is None
    assert rig.add("b", 5) is None
    assert reason(rig.add("c", 5)) == ("overloaded", "2 requests wait; max_num_waiting=2")
    rig.step()
    assert rig.add("c", tokens(5, family=2)) is None


def test_the_queue_is_bounded_in_tokens_of_followers_and_emitted_ones_too() -> None:
    rig = Rig(max_waiting_tokens=16)
    rig.add("a", 9)
    rig.add("b", 5, emitted=[7])
    assert reason(rig.add("c", 2)) == (
        "overloaded",
        "15 tokens wait and 2 would be added; max_waiting_tokens=16",
    )
    assert rig.add("c", 1) is None
    rig.finish()
    rig.add("long", 10)
    rig.step()
    rig.add("same", 10, arrival=rig.now)
    assert rig.add("more", 6) is None
    assert reason(rig.add("most", 1))[0] == "overloaded"


def test_the_queue_is_bounded_in_tokens_of_predictions_too() -> None:
    rig = Rig(max_waiting_tokens=16, max_drafts=2)
    rig.add("a", 5, prediction=tokens(6, 7))
    assert reason(rig.add("b", 2, prediction=tokens(4, 7))) == (
        "overloaded",
        "11 tokens wait and 6 would be added; max_waiting_tokens=16",
    )
    assert rig.add("b", 2, prediction=tokens(3, 7)) is None
    rig.finish()
    assert rig.scheduler.queue.num_tokens == 0


def test_a_sequence_preempted_in_a_step_is_admitted_at_its_own_place_at_the_earliest() -> None:
    """A preempted sequence needs less than it gives up, since its tokens in flight are dropped."""
    rig = Rig(
        policy="priority", num_blocks=13, block_size=1, pipeline_depth=4, prefix_caching=False
    )
    for family, (name, length, priority) in enumerate((("a", 1, 0), ("b", 1, 0), ("last", 3, 5))):
        rig.add(name, tokens(length, family), priority=priority, max_tokens=5)
    for _ in range(3):
        rig.plan()
    assert rig.scheduler.kv.pool.num_free == 1
    rig.add("urgent", tokens(1, family=9), priority=3, max_tokens=2)
    plan = rig.plan()
    assert plan is not None
    assert len(set(plan.slots)) == len(plan.slots) == 4
    rig.finish()
