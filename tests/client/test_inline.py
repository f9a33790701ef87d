"""The engine's thread rests while nothing can be computed."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Sequence

from octavo.client.inline import InlineClient
from octavo.core.config import CoreConfig
from octavo.core.engine import EngineCore
from octavo.core.request import Request, TokenEvent
from octavo.core.sampling_params import SamplingParams
from octavo.core.stats import GRAMMAR
from octavo.wire.facts import EngineFacts
from tests.core.make import KEY, Wire, Worker

FACTS = EngineFacts(
    name="counted",
    architecture="none",
    directory="",
    weights=(),
    vocabulary=100,
    max_model_len=64,
    longest_tokens=64,
    block_size=16,
    num_blocks=40,
    max_num_seqs=8,
    max_num_waiting=100,
    max_waiting_tokens=10_000,
    dtype="none",
)


class CountingCore(EngineCore):
    """An engine that counts its steps."""

    num_steps = 0

    def step(self, wait: bool = True) -> list[TokenEvent]:
        self.num_steps += 1
        return super().step(wait)


def test_a_held_request_costs_a_step_at_its_deadline_and_none_before() -> None:
    config = CoreConfig(num_blocks=40, max_model_len=64, hold_seconds=0.1)
    core = CountingCore(config, Wire(Worker(config)), time.monotonic, KEY)
    events: list[TokenEvent] = []

    async def main() -> None:
        client = InlineClient(core, FACTS)
        has_ended = asyncio.Event()

        def deliver(new: Sequence[TokenEvent]) -> None:
            events.extend(new)
            has_ended.set()

        client.attach(deliver, lambda error: None)
        sampling = SamplingParams(seed=1)
        held = Request("held", array("i", [1]), sampling, time.monotonic(), holds=(GRAMMAR,))
        client.send([held])
        await has_ended.wait()
        client.close()

    asyncio.run(main())
    assert [event.finish_reason for event in events] == ["error"]
    # One when it is added, one at the deadline, and one more if a wait ends early.
    assert 2 <= core.num_steps <= 4


def test_the_last_snapshot_is_published_before_its_events() -> None:
    """Totals that are read right after the last token have all that was computed."""
    config = CoreConfig(num_blocks=40, max_model_len=64)
    core = EngineCore(config, Wire(Worker(config)), time.monotonic, KEY)

    async def main() -> None:
        client = InlineClient(core, FACTS)
        for number in range(20):
            seen: list[int] = []
            has_ended = asyncio.Event()

            def deliver(
                new: Sequence[TokenEvent], seen: list[int] = seen, ended: asyncio.Event = has_ended
            ) -> None:
                if any(event.finish_reason for event in new):
                    seen.append(client.snapshot().num_tokens)
                    ended.set()

            client.attach(deliver, lambda error: None)
            sampling = SamplingParams(max_tokens=3, ignore_eos=True, seed=1)
            prompt = array("i", [1, 2, 3 + number])
            client.send([Request(str(number), prompt, sampling, time.monotonic())])
            await has_ended.wait()
            assert seen == [5 * (number + 1)]
        client.close()

    asyncio.run(main())
