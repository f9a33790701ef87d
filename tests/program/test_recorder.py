"""Recording of single operations, and the limits that a backend passes in."""

from __future__ import annotations

import pytest

from octavo.layers import PagedAttention
from octavo.program.listing import RecordingError, Value
from octavo.program.recorder import HeadSizes, Ids, RecordedBatch, Recorder
from tests.program.fakes import FakeMatrix


def attend(recorder: Recorder, head_dim: int) -> Value:
    """Record attention with two heads and one KV head."""
    layer = PagedAttention(2, 1, head_dim, scale=1.0)
    layer.place = (0, 0)
    x = recorder.embed(Ids(by_position=False), FakeMatrix(50, 4 * head_dim))
    q, k, v = recorder.split(x, (2 * head_dim, head_dim, head_dim))
    return recorder.attention(q, k, v, layer, RecordedBatch())


def test_heads_of_any_size_are_recorded_without_limits() -> None:
    assert attend(Recorder(), 12).width == 24
    assert attend(Recorder(), 1000).width == 2000


@pytest.mark.parametrize(
    ("head_dim", "is_refused"), [(8, False), (12, True), (64, False), (72, True)]
)
def test_a_backend_states_the_heads_that_it_supports(head_dim: int, is_refused: bool) -> None:
    recorder = Recorder(HeadSizes(multiple=8, most=64))
    if not is_refused:
        assert attend(recorder, head_dim).width == 2 * head_dim
        return
    with pytest.raises(RecordingError, match=f"heads of {head_dim} numbers"):
        attend(recorder, head_dim)


def test_the_message_names_no_backend_but_the_reference() -> None:
    message = str(RecordingError("something new"))
    assert "something new" in message
    assert "backend='torch'" in message
    assert "native" not in message
