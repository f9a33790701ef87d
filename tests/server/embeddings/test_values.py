"""Vectors of one byte a number are those of PyTorch's types, rounded as PyTorch rounds."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.dialects.common.values import Kind, in_bytes

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("order", ["native", "big", "little"])
@pytest.mark.parametrize(
    ("kind", "name", "largest"),
    [("fp8_e4m3", "float8_e4m3fn", 448.0), ("fp8_e5m2", "float8_e5m2", 57344.0)],
)
def test_numbers_are_rounded_to_one_byte(kind: Kind, name: str, largest: float, order: str) -> None:
    drawn = np.random.default_rng(7).normal(size=4000).astype(np.float32)
    scales = np.exp2(np.arange(4000) % 40 - 24).astype(np.float32)
    exact = torch.arange(256, dtype=torch.uint8).view(getattr(torch, name)).float().numpy()
    finite = np.sort(exact[np.isfinite(exact)])
    ties = (finite[1:] + finite[:-1]) / 2  # between two neighbours
    values = np.clip(np.concatenate([drawn * scales, finite, ties]), -largest, largest)
    expected = torch.from_numpy(values).to(getattr(torch, name)).view(torch.uint8).numpy()
    found = np.frombuffer(in_bytes(values.tolist(), kind, order), np.uint8)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("kind", "code"), [("fp8_e4m3", 0x7E), ("fp8_e5m2", 0x7B)])
def test_a_number_that_is_too_large_becomes_the_largest(kind: Kind, code: int) -> None:
    assert in_bytes([1e9, -1e9], kind, "native") == bytes([code, code | 0x80])
