"""Gives the prompts of one request to the engine, each when it is its turn.

Otherwise a request of many prompts would occupy the engine until all of them are done, or wait
until the engine has room for all of them, while everything else waits behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from octavo.serving.admission import Ticket
from octavo.serving.bounds.turns import Turns


class Submission:
    """The prompts of one request, and their tickets in the admission queue."""

    def __init__(
        self,
        ticket: Ticket,
        num_tokens: Sequence[int],
        num_samples: int,
        priority: int,
        submit: Callable[[int], None],
        fail: Callable[[int, Exception], None],
    ) -> None:
        self._first = ticket
        self._num_tokens = num_tokens  # of each prompt
        self._num_samples = num_samples  # sequences of each prompt
        self._priority = priority
        self._submit = submit  # a prompt, by its index
        self._fail = fail
        self._tickets: dict[int, Ticket] = {}  # of the prompts in the engine
        self._num_behind = 0  # tokens of the prompts that have no ticket yet
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Wait for the first prompt's turn and submit it; let the others follow."""
        first, *others = self._num_tokens
        num_behind = sum(others)
        await self._first.wait(first, self._num_samples, self._priority, num_behind)
        self._num_behind = num_behind
        self._tickets[0] = self._first
        self._submit(0)
        if others:
            self._task = asyncio.get_running_loop().create_task(self._follow())

    def end(self, index: int) -> None:
        """Give a prompt's place to the next in the queue."""
        self._tickets.pop(index).leave()

    def close(self) -> None:
        """Give all places back; prompts that have had no turn get none."""
        if self._task is not None:
            self._task.cancel()
        for ticket in self._tickets.values():
            ticket.leave()
        self._tickets.clear()
        self._first.hold_back(-self._num_behind)
        self._num_behind = 0

    async def _follow(self) -> None:
        turns = Turns()
        for index in range(1, len(self._num_tokens)):
            await turns.take()
            num_tokens = self._num_tokens[index]
            self._num_behind -= num_tokens
            try:
                self._tickets[index] = await self._first.wait_for_another(
                    num_tokens, self._num_samples, self._priority
                )
                self._submit(index)
            except Exception as error:
                self._fail(index, error)
                return
