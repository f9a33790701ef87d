"""The catalogue of a server's metrics: each name with its kind, its meaning and its labels."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import NamedTuple

from octavo.observe.exposition import Named
from octavo.observe.traces.traces import Traces
from octavo.serving.durable.service import Durability
from octavo.serving.server import add_shared_metrics
from tests.observe.traces.test_traces import FakeCollector
from tests.server.engine import make_directory
from tests.server.make import serving

SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",), "gauge": ("",)}


class Entry(NamedTuple):
    """One metric, as a scrape shows it."""

    name: str
    kind: str
    meaning: str
    has_model: bool  # its series have the labels of a model

    @property
    def series(self) -> list[str]:
        """The names of its samples."""
        return [self.name + suffix for suffix in SUFFIXES[self.kind]]


def catalogue(prefix: str = "octavo") -> dict[str, Entry]:
    """Return the metrics of a server with a journal and traces, by name."""
    found: dict[str, Entry] = {}
    for name, metric, base in asyncio.run(_named(prefix)):
        has_model = any(label == "model_name" for label, _ in base)
        found.setdefault(name, Entry(name, metric.kind, metric.meaning, has_model))
    return found


async def _named(prefix: str) -> list[Named]:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place)
        async with serving(make_directory(path), journal=path / "journal") as client:
            server = client.server
            traces = Traces(FakeCollector())
            add_shared_metrics(server.metrics, server.responses, traces)
            server.durability = Durability.open(server)
            try:
                return server.metrics.named(server.model_name, prefix)
            finally:
                await server.durability.close()
                traces.close()
