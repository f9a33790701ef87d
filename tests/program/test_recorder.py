"""Recording of single operations and of whole models."""

from __future__ import annotations

from typing import Any, cast

import pytest

from octavo.backends.base import Backend
from octavo.layers import Linear, PagedAttention
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.program.describe import describe
from octavo.program.listing import RecordingError, UnsupportedError, Value
from octavo.program.recorder import Ids, RecordedBatch, Recorder, record
from tests.models.made_up import MadeUpWeights, make_model
from tests.program.fakes import FakeBackend, FakeMatrix


def attend(recorder: Recorder, head_dim: int) -> Value:
    """Record attention with two heads and one KV head."""
    layer = PagedAttention(2, 1, head_dim, scale=1.0)
    layer.place = (0, 0)
    x = recorder.embed(Ids("Tokens"), FakeMatrix(50, 4 * head_dim))
    q, k, v = recorder.split(x, (2 * head_dim, head_dim, head_dim))
    return recorder.attention(q, k, v, layer, RecordedBatch())


def test_heads_of_any_size_are_recorded() -> None:
    """Limits of kernels are no limits of what a listing can express."""
    assert attend(Recorder(), 12).width == 24
    assert attend(Recorder(), 1000).width == 2000


UNKNOWN: dict[str, Any] = {
    "the activation 'mish'": lambda r, x: r.activation(x, "mish"),
    "the gated activation 'mish'": lambda r, x: r.gated_activation(x, "mish"),
    "a sum of 32 and 16 columns": lambda r, x: x + r.split(x, (16, 16))[0],
    "a product of 32 and 16 columns": lambda r, x: x * r.split(x, (16, 16))[0],
    "a norm of the kind Linear": lambda r, x: r.head_norm(x, Linear(32, 32), 2),
    "32 columns for a matrix of 31 inputs": lambda r, x: r.linear(x, FakeMatrix(8, 31), None),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_no_listing_can_express_is_refused_by_name(name: str) -> None:
    recorder = Recorder()
    x = recorder.embed(Ids("Tokens"), FakeMatrix(50, 32))
    with pytest.raises(RecordingError) as refused:
        UNKNOWN[name](recorder, x)
    assert f"no operation computes {name}" in str(refused.value)


def test_a_refusal_names_no_backend_but_the_reference() -> None:
    message = str(UnsupportedError("something new"))
    assert "something new" in message
    assert "backend='torch'" in message
    assert "native" not in message


def test_a_model_can_be_recorded_again() -> None:
    """Two engines with one model have listings of their own."""
    model = make_model("LlamaForCausalLM")
    place_layers(model)
    bind(model, cast(Backend, FakeBackend()), MadeUpWeights(model))
    first, second = record(model), record(model)
    assert describe(first) == describe(second)
    assert not {*first} & {*second}
