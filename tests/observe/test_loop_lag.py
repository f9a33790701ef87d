"""The lag of the event loop is what its timer is late."""

from __future__ import annotations

import asyncio

import pytest

from octavo.observe import loop_lag
from octavo.observe.loop_lag import LoopLag


class Loop(asyncio.SelectorEventLoop):
    """A loop with a clock that the test sets."""

    now = 100.0

    def time(self) -> float:
        return self.now


def test_each_tick_reports_how_late_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_lag, "TICK_SECONDS", 1.0)
    loop = Loop()
    seen: list[float] = []
    lag = LoopLag(seen.append)

    async def pass_time(until: float) -> None:
        loop.now = until
        for _ in range(3):
            await asyncio.sleep(0)

    async def main() -> None:
        lag.start()
        await pass_time(101.0)
        await pass_time(104.5)  # due at 102
        await pass_time(105.0)  # due at 105.5
        await pass_time(105.5)
        lag.stop()
        await pass_time(200.0)

    loop.run_until_complete(main())
    loop.close()
    assert seen == [0.0, 2.5, 0.0]
