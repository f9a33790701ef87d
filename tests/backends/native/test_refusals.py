"""What the native engine cannot run is refused by name, and the reference is advised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest

from octavo.backends.native import _native
from octavo.backends.native.passes import PASSES
from octavo.backends.native.refusals import WITHOUT_KERNEL, refuse_unsupported
from octavo.layers import PagedAttention, Rope
from octavo.program.listing import Op, UnsupportedError, Value
from tests.program.recorded import POSITIONS, Recorded

Build = Callable[[Recorded], Any]


def refusal(build: Build) -> str:
    """Record something, apply the passes, and return why it is refused."""
    r = Recorded()
    build(r)
    with pytest.raises(UnsupportedError) as refused:
        refuse_unsupported(r.listing(*PASSES))
    assert "use backend='torch'" in str(refused.value)
    return str(refused.value)


def turned(r: Recorded, x: Value, frequency: float) -> Value:
    return r.recorder.rope(x, POSITIONS, Rope((frequency,) * 4), 8)


def heads_of(dim: int) -> Build:
    def build(r: Recorded) -> None:
        layer = PagedAttention(2, 1, dim, scale=1.0)
        layer.place = (0, 0)
        q, k, v = r.recorder.split(r.linear(r.x, 4 * dim), (2 * dim, dim, dim))
        r.recorder.attention(q, k, v, layer, r.batch)

    return build


def apart(r: Recorded) -> None:
    q, k, _ = r.qkv(r.x)
    r.attend(q, k, r.linear(r.x, 8))


def turned_differently(r: Recorded) -> None:
    q, k, v = r.qkv(r.x)
    r.attend(turned(r, q, 1.0), turned(r, k, 2.0), v)


def turned_alone(r: Recorded) -> None:
    q, k, v = r.qkv(r.x)
    r.attend(q, turned(r, k, 2.0), v)


def read_twice(r: Recorded) -> None:
    q, k, v = r.qkv(r.x)
    r.attend(q, k, v)
    r.recorder.activation(q, "silu")


def gated_twice(r: Recorded) -> None:
    _ = r.linear(r.x, 64, gated=True) * 2.0


REFUSED: dict[str, Build] = {
    "heads of 12 numbers: it takes multiples of 8": heads_of(12),
    "heads of 584 numbers: it takes multiples of 8 up to 576": heads_of(584),
    "keys and values that are not parts of one projection": apart,
    "queries and keys that turn differently": turned_differently,
    "queries, keys or values that something else reads as well": read_twice,
    "a rotation of something else than the queries or keys of an attention": lambda r: turned(
        r, r.x, 1.0
    ),
    "a projection of gates and ups that not only a gate reads": gated_twice,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_run_is_refused_by_name(name: str) -> None:
    assert f"which needs {name}" in refusal(REFUSED[name])


def test_keys_that_alone_are_rotated_are_refused() -> None:
    assert "queries and keys that turn differently" in refusal(turned_alone)


@pytest.mark.parametrize("dim", [8, 64, 512])
def test_heads_of_these_sizes_are_accepted(dim: int) -> None:
    r = Recorded()
    heads_of(dim)(r)
    refuse_unsupported(r.listing(*PASSES))


def test_every_operation_has_a_kernel_or_is_refused() -> None:
    """A new operation has to be added to one of them."""
    by_others = {"AllGather", "Columns", "AddNorm"}
    assert {"Rope", "Experts"} | by_others == WITHOUT_KERNEL
    assert set(_native.Op.__members__) == set(get_args(Op)) - WITHOUT_KERNEL
