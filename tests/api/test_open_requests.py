"""The number of requests that a call gives engines in processes of their own at once."""

from __future__ import annotations

from array import array
from collections import deque

import pytest
from msgspec.structs import replace

from octavo.api.set_runner import OPEN_FOR_EACH, OpenRequests
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from tests.client.test_inline import FACTS


def requests(count: int, max_tokens: int | None = 8, num_predicted: int = 0) -> deque[Request]:
    sampling = SamplingParams(max_tokens=max_tokens)  # type: ignore[arg-type]
    prompt, prediction = array("i", range(10)), array("i", range(num_predicted))
    return deque(
        Request(str(index), prompt, sampling, 0.0, prediction=prediction) for index in range(count)
    )


@pytest.mark.parametrize(
    ("limits", "max_tokens", "expected"),
    [
        ({"max_num_waiting": 100_000, "max_waiting_tokens": 100_000}, 8, OPEN_FOR_EACH * 8 * 2),
        ({"max_num_waiting": 16}, 8, 16),
        ({"max_waiting_tokens": 20 * 18}, 8, 20),  # as long as each may become
        ({"max_waiting_tokens": 20 * 18 - 1}, 8, 19),
        ({"max_waiting_tokens": 20 * 64}, None, 20),  # no longer than any can be
        ({"max_waiting_tokens": 1}, 8, 1),  # an empty queue takes any request
    ],
)
def test_no_more_are_open_than_each_queue_has_room_for(
    limits: dict[str, int], max_tokens: int | None, expected: int
) -> None:
    open_requests = OpenRequests(replace(FACTS, **limits), 2)
    backlog = requests(200, max_tokens)
    taken = open_requests.take(backlog)
    assert [each.request_id for each in taken] == [str(index) for index in range(expected)]
    assert len(backlog) == 200 - expected
    assert not open_requests.take(backlog)
    open_requests.end("0")
    open_requests.end("unknown")
    assert [each.request_id for each in open_requests.take(backlog)] == [str(expected)]


def test_a_prediction_waits_with_its_request() -> None:
    open_requests = OpenRequests(replace(FACTS, max_waiting_tokens=100), 2)
    assert len(open_requests.take(requests(9, num_predicted=32))) == 2
