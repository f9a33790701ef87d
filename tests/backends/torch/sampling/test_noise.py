"""The noise is uniform, independent in each of its arguments, and the same everywhere."""

import math

import numpy as np
import pytest

from octavo.backends.torch.sampling import noise

GOLDEN = [
    ["0x6f58094f1e322052", "0x331191d0612be7b9", "0x6686383987f92a32"],
    ["0xa4baa7ff522d974d", "0x511d4ac98c498d24", "0x3f533e8bdc59dd4"],
    ["0x88967a4363162235", "0xb3137a8b32bcdaa1", "0xbf364cc9d543b8e2"],
]
TOKENS = noise.spread(np.arange(50_000))


def drawn(seed: int, position: int) -> np.ndarray:
    """Draw uniform numbers, one for each token."""
    return noise.uniform(noise.bits([noise.keys(seed, position)], TOKENS))[0]


def streams() -> dict[str, np.ndarray]:
    """Return streams that vary one of the arguments while the other two are fixed."""
    one = noise.spread(np.array([17]))
    return {
        "tokens": drawn(0, 0),
        "tokens of another seed": drawn(2**63 - 1, 3),
        "positions": noise.uniform(noise.bits([noise.keys(5, p) for p in range(50_000)], one))[
            :, 0
        ],
        "seeds": noise.uniform(noise.bits([noise.keys(s, 9) for s in range(50_000)], one))[:, 0],
    }


def test_the_bits_never_change() -> None:
    """Other bits would change the output of every seeded request."""
    ids = noise.spread(np.array([0, 1, 128_255]))
    pairs = [noise.keys(0, 0), noise.keys(42, 7), noise.keys(-1, 100_000)]
    assert [[hex(x) for x in row] for row in noise.bits(pairs, ids).tolist()] == GOLDEN


def test_bits_are_what_the_docstring_says() -> None:
    """The documented construction, written in plain integers, gives the same bits."""
    mask, golden = 2**64 - 1, 0x9E3779B97F4A7C15

    def mix(x: int, between: int = 0) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
        x = x + between & mask
        x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
        return x ^ x >> 31

    for seed, position, token in [(0, 0, 0), (7, 1, 2), (-3, 999, 49_151), (2**63 - 1, 5, 61)]:
        one = mix(mix(seed + golden & mask) + position * golden & mask)
        two = mix(one ^ 0x6A09E667F3BCC909)
        expected = mix(one + token * golden & mask, two)
        ids = noise.spread(np.array([token]))
        assert noise.bits([noise.keys(seed, position)], ids)[0, 0] == expected


@pytest.mark.parametrize("name", streams())
def test_each_stream_is_uniform(name: str) -> None:
    values = np.sort(streams()[name])
    count = len(values)
    distance = np.abs(values - (np.arange(count) + 0.5) / count).max()
    assert distance < 1.95 / math.sqrt(count)  # Kolmogorov and Smirnov, 1 in 1000
    for digits in (16, 256):  # of the leading bits and of later ones
        for scale in (1, 2**20):
            cells = (values * scale % 1 * digits).astype(int)
            observed = np.bincount(cells, minlength=digits)
            expected = count / digits
            chi = ((observed - expected) ** 2 / expected).sum()
            assert abs(chi - (digits - 1)) < 4.5 * math.sqrt(2 * (digits - 1))


@pytest.mark.parametrize("name", streams())
def test_neighbours_in_a_stream_are_independent(name: str) -> None:
    values = streams()[name] - 0.5
    limit = 4 / math.sqrt(len(values))
    for lag in (1, 2, 3, 16, 61, 1024):
        assert abs(np.mean(values[lag:] * values[:-lag]) * 12) < limit
        pairs = (values[lag:] + 0.5) * 8 // 1 * 8 + (values[:-lag] + 0.5) * 8 // 1
        observed = np.bincount(pairs.astype(int), minlength=64)
        expected = len(pairs) / 64
        chi = ((observed - expected) ** 2 / expected).sum()
        assert abs(chi - 63) < 4.5 * math.sqrt(2 * 63)


@pytest.mark.parametrize("other", [(1, 0), (0, 1), (2**32, 0), (-1, 0), (0, 2**20)])
def test_streams_of_near_seeds_and_positions_are_independent(other: tuple[int, int]) -> None:
    one, two = drawn(0, 0) - 0.5, drawn(*other) - 0.5
    for shift in (0, 1, 2):
        product = one[: len(one) - shift] * two[shift:]
        assert abs(product.mean() * 12) < 4 / math.sqrt(len(one))


def test_every_input_bit_flips_half_of_the_output_bits() -> None:
    base = int(noise.bits([noise.keys(3, 12)], noise.spread(np.array([5])))[0, 0])
    changed = [(3 ^ 1 << bit, 12, 5) for bit in range(63)]
    changed += [(3, 12 ^ 1 << bit, 5) for bit in range(31)]
    changed += [(3, 12, 5 ^ 1 << bit) for bit in range(31)]
    counts = []
    for seed, position, token in changed:
        ids = noise.spread(np.array([token]))
        counts.append((base ^ int(noise.bits([noise.keys(seed, position)], ids)[0, 0])).bit_count())
    assert min(counts) >= 14
    assert max(counts) <= 50
    assert abs(np.mean(counts) - 32) < 4 * 4 / math.sqrt(len(counts))


def test_a_token_s_noise_does_not_depend_on_the_other_tokens() -> None:
    pairs = [noise.keys(seed, 3) for seed in range(5)]
    whole = noise.gumbel(pairs, TOKENS[:3001])
    for subset in (np.array([3000]), np.array([5, 4, 2999]), np.arange(1, 3000, 7)):
        for draw in range(5):
            part = noise.gumbel([pairs[draw]], TOKENS[subset])[0]
            assert np.array_equal(part, whole[draw][subset])


def test_noise_is_finite_at_the_edges() -> None:
    edges = np.array([0, 2**64 - 1], np.uint64)
    u = noise.uniform(edges)
    assert u[0] > 0.0
    assert u[1] < 1.0
    assert np.isfinite(-np.log(-np.log(u))).all()
