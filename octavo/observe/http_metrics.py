"""The metrics of a process that serves HTTP, whatever it serves: connections, responses, itself."""

from __future__ import annotations

import time
from collections.abc import Callable

from octavo.observe.exposition import Counter, Gauge, Histogram, Labels, Metric
from octavo.observe.machine import (
    max_open_files,
    num_open_files,
    process_start,
    resident_bytes,
    virtual_bytes,
)

_LAG = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class HttpMetrics:
    """The metrics that connections and exchanges count on, and those of their process."""

    def __init__(self) -> None:
        self.responses = Counter("http_responses", "Responses.", ("route", "status"))
        self.disconnects = Counter("disconnects", "Clients that disconnected before the end.")
        self.slow_readers = Counter(
            "slow_readers", "Clients that were disconnected because they read nothing."
        )
        self.refused_connections = Counter(
            "refused_connections",
            "Connections beyond a limit (503, 429), and failed handshakes (tls).",
            ("reason",),
        )
        self.protocol_refusals = Counter(
            "protocol_refusals", "Requests refused before their route was known.", ("status",)
        )
        self.num_connections: Callable[[], float] = lambda: 0.0  # who listens replaces it
        self.loop_lag = Histogram(
            "event_loop_lag_seconds", "Lateness of a regular timer of the event loop.", _LAG
        )
        self._own: list[Metric] = [  # under our prefix alone
            *(self.responses, self.disconnects, self.slow_readers),
            *(self.refused_connections, self.protocol_refusals),
            Gauge("connections", "Open connections.", lambda: self.num_connections()),
            self.loop_lag,
        ]
        self._cpu_seconds = Counter("cpu_seconds", "Processor time, of user and system.")
        self._process: list[Metric] = [  # under Prometheus's names for any process
            self._cpu_seconds,
            Gauge("resident_memory_bytes", "Resident memory.", resident_bytes),
            Gauge("virtual_memory_bytes", "Address space in use.", virtual_bytes),
            Gauge("open_fds", "Open file descriptors.", num_open_files),
            Gauge("max_fds", "File descriptors that may be open.", max_open_files),
            Gauge("start_time_seconds", "Start of the process, since 1970.", process_start),
        ]

    def of_process(self) -> list[tuple[str, Metric, Labels]]:
        """Return the metrics of the process, with their names."""
        self._cpu_seconds.raise_to(time.process_time())
        return [(f"process_{metric.name}", metric, ()) for metric in self._process]
