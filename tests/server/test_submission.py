"""Requests of many prompts: each prompt has its turn, and others do not wait for all of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from octavo.serving.admission import Admission
from octavo.serving.generation import Submission
from octavo.transport.errors import ApiError
from tests.server.admission.test_queue import enqueue, make_admission
from tests.server.make import events, serving


class Many:
    """A request of several prompts, and what became of them."""

    def __init__(self, admission: Admission, num_tokens: list[int], num_samples: int = 1) -> None:
        self.submitted: list[int] = []
        self.failed: list[tuple[int, str]] = []
        self.fails_at: int | None = None
        ticket = admission.register("many", 10)
        self.submission = Submission(
            ticket,
            num_tokens,
            num_samples,
            0,
            self._submit,
            lambda index, error: self.failed.append((index, repr(error))),
        )
        self.started = asyncio.ensure_future(self.submission.start())

    def _submit(self, index: int) -> None:
        if index == self.fails_at:
            raise ValueError("no")
        self.submitted.append(index)


async def turns() -> None:
    """Let all tasks run until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


def assert_empty(admission: Admission) -> None:
    """Check that nothing waits and nothing is admitted."""
    assert admission.num_admitted == admission.num_waiting == admission.num_open == 0
    assert admission.waiting_tokens == admission.waiting_bytes == 0
    for queue in admission._queues.values():
        assert queue.num_waiting == queue.waiting_tokens == queue.waiting_bytes == 0


def test_prompts_follow_as_others_end() -> None:
    async def main() -> None:
        admission = make_admission(capacity=2)
        many = Many(admission, [5, 6, 7, 8])
        await turns()
        assert many.submitted == [0, 1]
        assert admission.waiting_tokens == 7 + 8
        assert admission.num_waiting == 1, "however many prompts are behind"
        many.submission.end(0)
        await turns()
        assert many.submitted == [0, 1, 2]
        many.submission.end(2)
        many.submission.end(1)
        await turns()
        assert many.submitted == [0, 1, 2, 3]
        many.submission.end(3)
        many.submission.close()
        assert_empty(admission)

    asyncio.run(main())


def test_another_key_does_not_wait_for_all_prompts() -> None:
    async def main() -> None:
        admission = make_admission(capacity=2)
        many = Many(admission, [5] * 100)
        await turns()
        other, admitted = await enqueue(admission, "other", 5)
        assert not admitted.done()
        many.submission.end(0)
        await turns()
        assert admitted.done(), "it is next, though 98 prompts came before it"
        assert many.submitted == [0, 1]
        other.leave()
        await turns()
        assert many.submitted == [0, 1, 2]
        many.submission.close()
        await turns()
        assert_empty(admission)

    asyncio.run(main())


def test_as_many_prompts_as_there_is_room_begin_at_once() -> None:
    async def main() -> None:
        admission = make_admission(capacity=64)
        many = Many(admission, [5] * 100)
        await many.started
        await asyncio.sleep(0)
        assert many.submitted == list(range(64))
        many.submission.close()
        await turns()
        assert many.submitted == list(range(64))
        assert_empty(admission)

    asyncio.run(main())


def test_a_prompt_that_fails_ends_the_request() -> None:
    async def main() -> None:
        admission = make_admission(capacity=1)
        many = Many(admission, [5, 5, 5])
        many.fails_at = 1
        await turns()
        many.submission.end(0)
        await turns()
        assert many.failed == [(1, "ValueError('no')")]
        assert many.submitted == [0]
        many.submission.close()
        assert_empty(admission)

    asyncio.run(main())


def test_a_request_that_is_cancelled_while_it_waits_leaves_nothing() -> None:
    async def main() -> None:
        admission = make_admission(capacity=1)
        first, _ = await enqueue(admission, "first", 5)
        many = Many(admission, [5, 6, 7])
        await turns()
        assert admission.waiting_tokens == 18
        many.started.cancel()
        await turns()
        many.submission._first.leave()
        many.submission.close()
        first.leave()
        assert_empty(admission)

    asyncio.run(main())


def test_the_tokens_of_all_prompts_are_checked_before_the_first_is_submitted() -> None:
    async def main() -> None:
        admission = make_admission(capacity=1, max_waiting_tokens=100)
        first, _ = await enqueue(admission, "first", 5)
        second, _ = await enqueue(admission, "second", 20)
        many = Many(admission, [30, 30, 30])
        with pytest.raises(ApiError) as refused:
            await many.started
        assert refused.value.code == "tokens"
        assert admission.waiting_tokens == 20
        many.submission._first.leave()
        many.submission.close()
        first.leave()
        second.leave()
        assert_empty(admission)

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("capacity", [1, 3])
def test_every_prompt_is_answered_where_few_sequences_run(
    directory: Path, stream: bool, capacity: int
) -> None:
    prompts = [[3 + number, 4, 5] for number in range(7)]

    async def main() -> None:
        async with serving(directory, max_running_sequences=capacity) as client:
            body: dict[str, Any] = {"max_tokens": 3, "temperature": 0.0}
            alone = [await client.complete(**body, prompt=prompt) for prompt in prompts]
            body |= {"prompt": prompts, "stream": stream}
            response = await client.post("/v1/completions", json=body)
            texts = [""] * len(prompts)
            for part in events(response.text) if stream else [response.json()]:
                for choice in part["choices"]:
                    texts[choice["index"]] += choice["text"]
            assert texts == [each["choices"][0]["text"] for each in alone]
            assert_empty(client.server.admission)

    asyncio.run(main())
