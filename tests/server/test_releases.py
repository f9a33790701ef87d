"""A request of many prompts is released in pieces, between which other requests run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.serving.bounds.turns import PIECE, Releases, Turns
from tests.server.durable.make import Gate
from tests.server.engine import FakeEngine
from tests.server.make import serving, until

NUM_PROMPTS = 5 * PIECE


class Clock:
    """A count of the turns of the event loop."""

    def __init__(self) -> None:
        self.num_turns = 0
        self.task = asyncio.get_running_loop().create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            self.num_turns += 1
            await asyncio.sleep(0)


def test_others_have_a_turn_after_each_piece() -> None:
    async def main() -> None:
        clock, turns = Clock(), Turns()
        worked: Counter[int] = Counter()
        for _ in range(10 * PIECE):
            await turns.take()
            worked[clock.num_turns] += 1
        clock.task.cancel()
        assert max(worked.values()) <= PIECE
        assert sum(worked.values()) == 10 * PIECE

    asyncio.run(main())


def test_a_short_release_is_over_at_once_and_a_long_one_takes_turns() -> None:
    async def main() -> None:
        releases, clock = Releases(), Clock()
        worked: Counter[int] = Counter()

        def work(count: int) -> Iterator[None]:
            for _ in range(count):
                worked[clock.num_turns] += 1
                yield

        releases.add(work(PIECE - 1))
        assert not len(releases)
        assert sum(worked.values()) == PIECE - 1
        worked.clear()
        releases.add(work(NUM_PROMPTS))
        assert len(releases) == 1
        await releases.finish()
        clock.task.cancel()
        assert not len(releases)
        assert sum(worked.values()) == NUM_PROMPTS
        assert max(worked.values()) <= PIECE

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("num_cancels", [1, 3])
def test_a_request_of_many_prompts_that_ends_early_leaves_in_pieces(
    directory: Path, stream: bool, num_cancels: int
) -> None:
    """No prompt stays behind, though the task that did the work is cancelled again and again."""

    async def main() -> None:
        gate = Gate(2)
        engine = FakeEngine(directory, runner=gate.runner, max_num_seqs=NUM_PROMPTS)
        options: dict[str, Any] = {"max_running_sequences": NUM_PROMPTS}
        async with serving(directory, engine, **options) as client:
            server = client.server
            discarded: Counter[int] = Counter()
            discard = engine.discard

            def count(*arguments: Any) -> None:
                discarded[clock.num_turns] += 1
                discard(*arguments)

            engine.discard = count  # type: ignore[method-assign,assignment]
            body = {"prompt": [[5]] * NUM_PROMPTS, "max_tokens": 100, "stream": stream}
            post = asyncio.ensure_future(client.post("/v1/completions", json=body))
            await until(lambda: len(engine._sinks) == NUM_PROMPTS)
            clock = Clock()
            for _ in range(num_cancels):
                post.cancel()
                await asyncio.sleep(0)
            gate.open()
            await until(lambda: not server.active)
            await server.releases.finish()
            clock.task.cancel()
            assert sum(discarded.values()) == NUM_PROMPTS
            assert max(discarded.values()) <= PIECE
            assert not engine._sinks
            assert not engine._table._entries
            await until(lambda: server.admission.num_admitted == 0)
            response = await client.complete(max_tokens=2)
            assert response["usage"]["completion_tokens"] == 2

    asyncio.run(main())
