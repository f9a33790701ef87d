"""The device's noise has the bits of the reference's."""

from __future__ import annotations

import numpy as np
import torch

from octavo.backends.cuda import noise
from octavo.backends.torch.sampling import noise as reference

TOKENS = 5000


def test_the_random_bits_are_the_same() -> None:
    generator = np.random.default_rng(0)
    seeds = [0, 1, 2**63, 2**64 - 1, *map(int, generator.integers(0, 2**63, 8))]
    pairs = [reference.keys(seed, position) for position, seed in enumerate(seeds)]
    spread = reference.spread(np.arange(TOKENS))
    expected = reference.bits(pairs, spread)
    keys = torch.tensor([list(map(noise.signed, pair)) for pair in pairs])
    found = noise.bits(keys, TOKENS).numpy().view(np.uint64)
    np.testing.assert_array_equal(found, expected)
    # Logarithms may differ in their last bit.
    gumbel = noise.gumbel(keys, TOKENS).numpy()
    np.testing.assert_allclose(gumbel, reference.gumbel(pairs, spread), rtol=1e-14, atol=1e-14)


def test_keys_of_many_draws_are_those_of_each() -> None:
    seeds, positions = [0, 5, 2**63, 2**64 - 1], [0, 1, 77, 2**31]
    found = reference.keys_of(reference.mixed(seeds), np.array(positions, np.uint64))
    expected = [reference.keys(*pair) for pair in zip(seeds, positions, strict=True)]
    assert [tuple(map(int, pair)) for pair in found] == expected
