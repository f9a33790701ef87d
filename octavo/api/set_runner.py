"""The requests of one call, run through engines in processes of their own to their ends.

A thread with an event loop supervises the engines, also between two calls, and whether or not the
caller's thread has a loop of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from octavo.adapter_copies.copies import AdapterCopies
from octavo.api.offline_runner import ProgressLine, Take
from octavo.api.outputs import EngineDeadError, RequestOutput
from octavo.api.requests import CheckedRequest, RequestTable
from octavo.api.text_model import TextModel
from octavo.core.request import Request, TokenEvent
from octavo.core.sampling_params import LogitsProcessor
from octavo.options.engine import EngineArguments
from octavo.wire.commands import NO_ENGINE, ResetPrefixCache
from octavo.wire.facts import EngineFacts

if TYPE_CHECKING:
    from octavo.client.client import EngineClient

# Requests that the engines have, for each that they run at once: more wait here.
OPEN_FOR_EACH = 4

Result = TypeVar("Result")


def start_set(
    arguments: EngineArguments,
    processors: Mapping[str, LogitsProcessor] | None,
    copies: AdapterCopies | None,
) -> tuple[TextModel, SetRunner]:
    """Start engines in processes of their own; return the text side of their model, and a runner.

    They are imported here: most programs have one engine, in their own process.
    """
    from octavo.client.process import start

    client = start(arguments, None, processors)
    try:
        model = TextModel(client.facts, arguments)
        return model, SetRunner(client, model, copies)
    except BaseException:
        client.close()
        raise


def close_with(owner: object, runner: SetRunner, copies: AdapterCopies | None) -> None:
    """Close a runner once its owner is freed: its own thread would keep it alive."""

    def close() -> None:
        runner.close()
        if copies is not None:
            copies.close()

    # The owner may be freed in any thread, even in that of the engines, which `close` waits for.
    ending = weakref.finalize(owner, lambda: threading.Thread(target=close).start())
    ending.atexit = False  # the engines end with this process


class OpenRequests:
    """The requests of one call that the engines have, so few that no queue rejects any.

    A queue rejects what it has no room for, and a rejected request is lost. How many of them an
    engine gets, and which of them wait there, is not known here, so each queue has room for all.
    """

    def __init__(self, facts: EngineFacts, num_engines: int) -> None:
        most_useful = OPEN_FOR_EACH * facts.max_num_seqs * num_engines
        self._most = min(most_useful, facts.max_num_waiting)
        self._most_tokens = facts.max_waiting_tokens
        self._longest = facts.longest_tokens
        self._num_tokens = 0
        self._open: dict[str, int] = {}  # with the tokens that a queue may have to keep of each

    def take(self, backlog: deque[Request]) -> list[Request]:
        """Take requests from the front, as many as there is room for, or one if none is open."""
        taken: list[Request] = []
        while backlog and len(self._open) < self._most:
            request = backlog[0]
            num_tokens = min(request.max_total, self._longest) + len(request.prediction)
            if self._open and self._num_tokens + num_tokens > self._most_tokens:
                break
            self._open[request.request_id] = num_tokens
            self._num_tokens += num_tokens
            taken.append(backlog.popleft())
        return taken

    def end(self, name: str) -> None:
        """Note that a request has ended."""
        self._num_tokens -= self._open.pop(name, 0)


class SetRunner:
    """Engines for one call at a time; what it has is what `LLM` uses of `OfflineRunner`."""

    def __init__(
        self, client: EngineClient, model: TextModel, copies: AdapterCopies | None
    ) -> None:
        self._client = client
        self._table = RequestTable(model, copies)
        self._num_requests = 0
        self._death: BaseException | None = None
        self._is_closed = False
        self._busy = threading.Lock()
        self._events: deque[TokenEvent] = deque()
        self._news = asyncio.Event()  # there are events, or there is no engine any more
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="octavo engines", daemon=True
        )
        self._thread.start()
        self._wait_for(self._attach)

    def next_name(self) -> str:
        """Return the next request id; they count from 1."""
        self._num_requests += 1
        return str(self._num_requests)

    def run(
        self,
        requests: Sequence[CheckedRequest],
        *,
        shows_progress: bool,
        take: Take | None = None,
    ) -> list[RequestOutput]:
        """Run requests to their ends; return their last outputs in the same order.

        `take` is called with each output as it comes, in the thread of the engines. A request that
        fails has the finish reason "error" and the message; the others are complete.
        """
        with self._alone():
            return self._wait_for(lambda: self._drive(requests, shows_progress, take))

    def reset_prefix_cache(self) -> None:
        """Share no KV that was computed before now."""
        with self._alone():
            self._wait_for(self._reset)

    def close(self) -> None:
        """End the engines; later calls raise an error."""
        if self._is_closed:
            return
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("this LLM is in use by another call; close it when that has ended")
        self._is_closed = True
        self._client.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._busy.release()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Refuse other calls at the same time, and calls of engines that have ended."""
        if not self._busy.acquire(blocking=False):
            raise RuntimeError(
                "this LLM is in use by another call; give it all prompts in one call, "
                "or use AsyncLLM"
            )
        try:
            self._check_alive()
            yield
        finally:
            self._busy.release()

    def _check_alive(self) -> None:
        if self._is_closed:
            raise EngineDeadError("this LLM is closed; make a new LLM")
        if self._death is not None:
            raise EngineDeadError(f"{self._death}; make a new LLM") from self._death

    def _wait_for(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """Return the result of a coroutine in the loop; a Ctrl-C ends it first."""

        async def whole() -> Result:
            return await call()

        future = asyncio.run_coroutine_threadsafe(whole(), self._loop)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                future.cancel()
            raise

    # in the loop

    async def _attach(self) -> None:
        self._client.attach(self._take, self._die)

    async def _reset(self) -> None:
        error = (await self._client.command(ResetPrefixCache())).error
        if error is not None and error.code != NO_ENGINE:
            raise RuntimeError(f"the prefix cache was not reset: {error.message}")

    def _take(self, events: Sequence[TokenEvent]) -> None:
        self._events.extend(events)
        self._news.set()

    def _die(self, error: EngineDeadError) -> None:
        self._death = error
        self._news.set()

    async def _drive(
        self, requests: Sequence[CheckedRequest], shows_progress: bool, take: Take | None
    ) -> list[RequestOutput]:
        names: list[str] = []
        backlog: deque[Request] = deque()
        arrival = time.monotonic()
        try:
            for request in requests:
                names.append(self.next_name())
                backlog.extend(self._table.open(names[-1], request, arrival))
            progress = ProgressLine(len(names), shows_progress)
            return await self._run(names, backlog, progress, take)
        finally:
            aborts = [abort for name in names for abort in self._table.close(name)]
            if self._death is None:
                self._client.send(aborts)

    async def _run(
        self,
        names: Sequence[str],
        backlog: deque[Request],
        progress: ProgressLine,
        take: Take | None,
    ) -> list[RequestOutput]:
        outputs: dict[str, RequestOutput] = {}
        open_requests = OpenRequests(self._client.facts, len(self._client.members))
        while len(outputs) < len(names):
            self._check_alive()
            started = open_requests.take(backlog)
            if started:
                self._client.send(started)
            await self._news.wait()
            self._news.clear()
            num_tokens = 0
            while self._events:
                event = self._events.popleft()
                num_tokens += len(event.tokens)
                if event.finish_reason is not None:
                    open_requests.end(event.request_id)
                output, aborts = self._table.receive(event)
                if aborts:
                    self._client.send(aborts)
                if output is None:
                    continue
                if take is not None:
                    take(output)
                if output.finished:
                    outputs[output.request_id] = output
            progress.show(len(outputs), num_tokens)
        progress.close()
        return [outputs[name] for name in names]
