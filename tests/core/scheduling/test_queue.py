"""The waiting queue and its order."""

from typing import Any

import pytest

from octavo.core.queue import Policy, WaitingQueue
from octavo.core.sequence import Sequence, Status
from tests.core.make import a_line, config, request


def sequence(
    request_id: str,
    policy: Policy,
    prompt: int = 5,
    queue: WaitingQueue | None = None,
    **fields: Any,
) -> Sequence:
    """Return a sequence with its place in the order, in a line of the queue."""
    made = request(request_id, prompt, **fields)
    line = a_line() if queue is None else queue.line_of(made)
    return Sequence(made, policy.order(made), made.max_total, 0.0, line)


def order(policy: Policy, *urgencies: tuple[str, int, float]) -> str:
    """Return the ids of requests (id, priority, arrival) in their order."""
    made = [sequence(i, policy, priority=p, arrival=a) for i, p, a in urgencies]
    return "".join(s.request_id for s in sorted(made, key=lambda s: s.order))


def test_fcfs_orders_by_arrival_and_then_by_number() -> None:
    requests = [("a", 9, 1.0), ("b", 1, 1.0), ("c", 5, 0.5)]
    assert order(Policy(config()), *requests) == "cab"


def test_the_lower_priority_number_goes_first() -> None:
    requests = [("a", 9, 0.0), ("b", -1, 5.0), ("c", -1, 4.0)]
    assert order(Policy(config(policy="priority")), *requests) == "cba"


def test_with_ageing_a_long_wait_outweighs_priority() -> None:
    """Priority 2 goes before priority 0 if it arrived more than 20 s earlier, at 10 s a step."""
    policy = Policy(config(policy="priority", ageing_seconds=10.0))
    assert order(policy, ("new", 0, 21.0), ("old", 2, 0.0)) == "oldnew"
    assert order(policy, ("new", 0, 19.0), ("old", 2, 0.0)) == "newold"


def test_only_a_more_urgent_request_that_is_earlier_in_order_displaces() -> None:
    policy = Policy(config(policy="priority", ageing_seconds=10.0))
    urgent, same, old = (
        sequence("urgent", policy, priority=0, arrival=19.0),
        sequence("same", policy, priority=2, arrival=0.0),
        sequence("old", policy, priority=2, arrival=-2.0),
    )
    assert policy.may_displace(urgent, same)
    assert not policy.may_displace(urgent, old), "its age outweighs its priority"
    assert not policy.may_displace(old, same), "an earlier arrival is no reason"
    assert not policy.may_displace(same, urgent)


def test_under_fcfs_nothing_is_displaced() -> None:
    policy = Policy(config())
    first = sequence("first", policy, priority=0)
    assert not policy.may_displace(first, sequence("later", policy, priority=9))


@pytest.fixture
def waiting() -> tuple[WaitingQueue, dict[str, Sequence]]:
    """A queue of five sequences, added in another order than theirs."""
    queue, policy = WaitingQueue(), Policy(config())
    made = {i: sequence(i, policy, 5 + int(i), queue, arrival=float(i)) for i in "31402"}
    for one in made.values():
        queue.add(one)
    return queue, made


def ids(queue: WaitingQueue) -> str:
    """Return the ids of the sequences that can be admitted, the head first."""
    return "".join(s.request_id for s in queue)


def test_the_queue_is_sorted_for_any_order_of_adding(
    waiting: tuple[WaitingQueue, dict[str, Sequence]],
) -> None:
    queue, made = waiting
    assert ids(queue) == "01234"
    assert (len(queue), queue.num_waiting, queue.num_tokens) == (5, 5, 5 * 5 + 10)
    assert all(one.status is Status.WAITING for one in made.values())


def test_the_head_or_one_behind_it_can_be_taken(
    waiting: tuple[WaitingQueue, dict[str, Sequence]],
) -> None:
    queue, made = waiting
    queue.take(made["0"])
    queue.take(made["3"])
    assert ids(queue) == "124"
    assert queue.num_tokens == 6 + 7 + 9


def test_a_sequence_that_returns_gets_its_old_place(
    waiting: tuple[WaitingQueue, dict[str, Sequence]],
) -> None:
    queue, made = waiting
    queue.take(made["1"])
    made["1"].tokens.extend([7, 8])
    queue.add(made["1"])
    assert ids(queue) == "01234"
    assert queue.num_tokens == 35 + 2


def test_followers_are_set_aside_and_keep_their_place(
    waiting: tuple[WaitingQueue, dict[str, Sequence]],
) -> None:
    queue, made = waiting
    queue.set_aside(made["1"])
    assert [one.request_id for one in made.values() if one.status is Status.HELD] == ["1"]
    assert ids(queue) == "0234"
    assert (len(queue), queue.num_waiting, queue.num_tokens) == (4, 5, 35)
    queue.put_back(made["1"])
    assert made["1"].status is Status.WAITING
    assert (ids(queue), queue.held, queue.num_tokens) == ("01234", {}, 35)


def test_a_sequence_can_be_removed_from_any_place(
    waiting: tuple[WaitingQueue, dict[str, Sequence]],
) -> None:
    queue, made = waiting
    queue.set_aside(made["3"])
    for leaving, left in (("2", "014"), ("3", "014"), ("4", "01"), ("0", "1"), ("1", "")):
        queue.remove(made[leaving])
        assert ids(queue) == left
    assert (queue.num_waiting, queue.num_tokens) == (0, 0)


def test_removing_a_sequence_that_does_not_wait_is_an_error(
    waiting: tuple[WaitingQueue, dict[str, Sequence]],
) -> None:
    queue, made = waiting
    queue.take(made["2"])
    with pytest.raises(AssertionError, match="2 is not waiting"):
        queue.remove(made["2"])
