"""Small listings: recorded operation by operation, and whole models of made-up weights."""

from __future__ import annotations

from typing import cast

from octavo.backends.base import Backend
from octavo.layers import PagedAttention
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.program.describe import describe
from octavo.program.listing import Listing, Value
from octavo.program.passes.fusion import Pass, rewrite
from octavo.program.recorder import Ids, RecordedBatch, Recorder, record
from tests.models.made_up import MadeUpWeights, make_model
from tests.program.fakes import FakeBackend, FakeMatrix

WIDTH = 32
POSITIONS = Ids("Positions")
ARCHITECTURES = ["LlamaForCausalLM", "GPTNeoXForCausalLM", "Qwen2MoeForCausalLM"]


class Recorded:
    """A recorder, an embedding as the first value, and weights for more operations."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.batch = RecordedBatch()
        self.x = self.recorder.embed(Ids("Tokens"), FakeMatrix(50, WIDTH))

    def norm(self, x: Value) -> Value:
        return self.recorder.rms_norm(x, object(), 1e-6, 0.0)

    def linear(
        self, x: Value, outputs: int = WIDTH, gated: bool = False, kind: str = "floats"
    ) -> Value:
        return self.recorder.linear(x, FakeMatrix(outputs, x.width, gated, kind), None)

    def attend(self, q: Value, k: Value, v: Value) -> Value:
        """Record attention of two heads and one KV head."""
        layer = PagedAttention(2, 1, 8, scale=1.0)
        layer.place = (0, 0)
        return self.recorder.attention(q, k, v, layer, self.batch)

    def qkv(self, x: Value) -> tuple[Value, ...]:
        return self.recorder.split(self.linear(x), (16, 8, 8))

    def listing(self, *passes: Pass) -> Listing:
        """Return the listing after these passes."""
        listing = Listing(self.recorder.instructions)
        rewrite(listing, passes)
        return listing

    def after(self, *passes: Pass) -> str:
        """Describe what remains behind the embedding after these passes."""
        return "; ".join(describe(self.listing(*passes)).splitlines()[1:])


def recorded(architecture: str) -> Listing:
    """Record a small model of an architecture."""
    model = make_model(architecture)
    place_layers(model)
    bind(model, cast(Backend, FakeBackend()), MadeUpWeights(model))
    return record(model)
