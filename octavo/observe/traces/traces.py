"""The traces of a server: which requests are traced, and their way to the collector.

A request that ends is put into a queue, and a thread makes its spans and sends them. Nothing waits
for the collector: what finds the queue full, or cannot be delivered, is dropped and counted.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from octavo.observe.traces.context import TraceContext
from octavo.observe.traces.spans import Ended, Span, spans_of

log = logging.getLogger(__name__)

END_SECONDS = 2.0  # for what is left when the server ends


class Limits(NamedTuple):
    """The bounds of the queue, by the variables that OpenTelemetry has for them."""

    most_waiting: int = 2048  # OTEL_BSP_MAX_QUEUE_SIZE
    most_sent: int = 512  # OTEL_BSP_MAX_EXPORT_BATCH_SIZE, of requests at once
    seconds: float = 5.0  # OTEL_BSP_SCHEDULE_DELAY


USUAL = Limits()


class Collector(Protocol):
    """The other side of a connection to a collector."""

    address: str

    def is_sampled(self, parent: TraceContext | None, trace_id: str) -> bool:
        """Return whether a new trace, or one of a client's, is recorded."""

    def send(self, spans: Sequence[Span]) -> str:
        """Deliver spans, however long it takes; return why they could not be, or nothing."""

    def close(self) -> None:
        """End a delivery that waits, and the connection."""


class Traces:
    """The requests whose spans are still to be sent, and the thread that sends them."""

    def __init__(
        self, collector: Collector, limits: Limits = USUAL, *, in_detail: bool = False
    ) -> None:
        self._collector = collector
        self._limits = limits
        self._in_detail = in_detail
        self._waiting: deque[Ended] = deque()
        self._wake = threading.Event()
        self._is_ending = False
        self._reason = ""  # why the last delivery has failed
        self.num_sent = 0
        self.num_dropped = 0
        self._counting = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="octavo-traces", daemon=True)
        self._thread.start()

    def begin(self, parent: TraceContext | None) -> TraceContext:
        """Return the span of a request that has come, in its client's trace if it names one."""
        trace_id = secrets.token_hex(16) if parent is None else parent.trace_id
        is_sampled = self._collector.is_sampled(parent, trace_id)
        above = "" if parent is None else parent.span_id
        return TraceContext(trace_id, secrets.token_hex(8), is_sampled, above)

    def add(self, ended: Ended) -> None:
        """Queue a request that has ended; never waits."""
        if not ended.trace.is_sampled:
            return
        if self._is_ending or len(self._waiting) >= self._limits.most_waiting:
            self._drop(1)
            return
        self._waiting.append(ended)
        if len(self._waiting) >= self._limits.most_sent:
            self._wake.set()

    def close(self, seconds: float = END_SECONDS) -> None:
        """Send what is left, for a while; what cannot be sent in time is dropped."""
        self._is_ending = True
        self._wake.set()
        self._thread.join(seconds)
        self._collector.close()
        self._thread.join(seconds)
        self._drop(len(self._take(len(self._waiting))))

    def _drop(self, count: int) -> None:
        with self._counting:
            self.num_dropped += count

    def _take(self, most: int) -> list[Ended]:
        """Take some requests out of the queue; another thread may do so too."""
        some: list[Ended] = []
        with contextlib.suppress(IndexError):
            while len(some) < most:
                some.append(self._waiting.popleft())
        return some

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._wake.wait(self._limits.seconds)
            self._wake.clear()
            is_last = self._is_ending  # now: what is added before the end must be seen below
            while self._waiting and self._send_some():
                pass

    def _send_some(self) -> bool:
        """Send some requests; return whether to go on with the next ones at once."""
        some = self._take(self._limits.most_sent)
        try:
            spans = [span for each in some for span in spans_of(each, in_detail=self._in_detail)]
            reason = self._collector.send(spans)
        except Exception as error:  # whatever a library does, the thread lives on
            reason = repr(error)
        if reason:
            self._drop(len(some))
        else:
            self.num_sent += len(some)
        self._say(reason)
        return not (reason and self._is_ending)

    def _say(self, reason: str) -> None:
        """Log a line when deliveries begin to fail, and one when they succeed again."""
        if reason and not self._reason:
            log.warning(
                "traces cannot be delivered to %s: %s; requests go on, and traces are dropped and "
                "counted (octavo:traces_dropped) until the collector answers",
                *(self._collector.address, reason),
            )
        elif self._reason and not reason:
            log.info(
                "traces are delivered to %s again; %d have been dropped so far",
                *(self._collector.address, self.num_dropped),
            )
        self._reason = reason
