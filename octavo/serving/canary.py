"""Finds out whether the engine completes steps, by a step of its own if none was seen lately."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from octavo.api.async_llm import AsyncLLM
from octavo.api.outputs import EngineDeadError, RequestError
from octavo.api.sinks import WaitingSink
from octavo.core.sampling_params import SamplingParams

_PROMPT = {"prompt_token_ids": [0]}  # any token: the result is not read
_SAMPLING = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, detokenize=False)


class Canary:
    """A request of one token, which waits for no admission and is seen by no client."""

    def __init__(self, llm: AsyncLLM, clock: Callable[[], float], seconds: float) -> None:
        self._llm = llm
        self._clock = clock
        self._seconds = seconds  # how old the last step may be, and how long one may take
        self._running: asyncio.Task[bool] | None = None  # all that ask at once share it
        self._num_sent = 0
        self._has_returned = True  # the last one

    async def completes_steps(self) -> bool:
        """Return whether a step has ended lately, or one that is sent now ends in time."""
        if self._needs_no_step():
            return True
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(self._run())
        return await asyncio.shield(self._running)

    @property
    def is_well(self) -> bool:
        """True unless the last canary did not return and no step was seen since."""
        return self._has_returned or self._needs_no_step()

    def _needs_no_step(self) -> bool:
        """Return whether a step has ended lately, or an operator has paused the engine."""
        stepped_at = max(engine.vitals.stepped_at for engine in self._llm.engines)
        is_seen = self._clock() - stepped_at <= self._seconds
        return is_seen or self._llm.snapshot().is_paused

    async def _run(self) -> bool:
        self._num_sent += 1
        sink = WaitingSink(_SAMPLING.output_kind)
        name = f"canary-{self._num_sent}"
        try:
            self._llm.submit(self._llm.check(_PROMPT, _SAMPLING), sink, name)
            async with asyncio.timeout(self._seconds):
                await sink.get()
            self._has_returned = True
        except (TimeoutError, RequestError, EngineDeadError):
            self._has_returned = False
        finally:
            self._llm.discard(name, sink)
        # Steps of others may have ended meanwhile, behind which the canary still waits.
        return self.is_well
