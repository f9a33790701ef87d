"""A second decoder for each block type, one element at a time, after the formats' descriptions.

Python's floats are doubles and hold every result exactly, so rounding them to float32 gives the
only right answer. (Q8_K is left out: it has a float32 scale. So are the types with codebooks,
which are compared with those of another package.)
"""

import struct
from collections.abc import Callable

IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# GGUF stores these as whole numbers, so the minus zero of the float format is a plain zero.
E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6)


def half(block: bytes, at: int) -> float:
    value: float = struct.unpack_from("<e", block, at)[0]
    return value


def signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def bits(block: bytes, at: int, first: int, count: int) -> int:
    """Return `count` bits from bit `first` of the little-endian integer at byte `at`."""
    return int.from_bytes(block[at:], "little") >> first & ((1 << count) - 1)


def split_nibble(block: bytes, at: int, index: int, group: int) -> int:
    """Return a nibble; in each group, the first half of the elements has the low nibbles."""
    chunk, place = divmod(index, group)
    upper, byte = divmod(place, group // 2)
    return block[at + chunk * (group // 2) + byte] >> 4 * upper & 15


def split_pair(block: bytes, at: int, index: int) -> int:
    """Return a bit pair; of 128 elements in 32 bytes, the first 32 have the lowest pairs."""
    chunk, place = divmod(index, 128)
    pair, byte = divmod(place, 32)
    return block[at + chunk * 32 + byte] >> 2 * pair & 3


def q4_0(block: bytes, i: int) -> float:
    return half(block, 0) * (split_nibble(block, 2, i, 32) - 8)


def q4_1(block: bytes, i: int) -> float:
    return half(block, 0) * split_nibble(block, 4, i, 32) + half(block, 2)


def q5_0(block: bytes, i: int) -> float:
    value = split_nibble(block, 6, i, 32) + 16 * bits(block, 2, i, 1)
    return half(block, 0) * (value - 16)


def q5_1(block: bytes, i: int) -> float:
    value = split_nibble(block, 8, i, 32) + 16 * bits(block, 4, i, 1)
    return half(block, 0) * value + half(block, 2)


def q8_0(block: bytes, i: int) -> float:
    return half(block, 0) * signed(block[2 + i])


def q8_1(block: bytes, i: int) -> float:
    return half(block, 0) * signed(block[4 + i])


def iq4_nl(block: bytes, i: int) -> float:
    return half(block, 0) * IQ4[split_nibble(block, 2, i, 32)]


def mxfp4(block: bytes, i: int) -> float:
    return float(2.0 ** (block[0] - 127) * E2M1[split_nibble(block, 1, i, 32)])


def nvfp4(block: bytes, i: int) -> float:
    # A number of E4M3 without its sign: four bits of exponent, three of mantissa.
    exponent, mantissa = divmod(block[i // 16] & 127, 8)
    scale = (8 * (exponent > 0) + mantissa) * 2.0 ** (max(exponent, 1) - 10)
    if block[i // 16] == 127:
        scale = 0.0
    return scale * E2M1[split_nibble(block, 4, i, 16)]


def q2_k(block: bytes, i: int) -> float:
    scale = block[i // 16] & 15
    minimum = block[i // 16] >> 4
    value = split_pair(block, 16, i)
    return half(block, 80) * scale * value - half(block, 82) * minimum


def q3_k(block: bytes, i: int) -> float:
    value = split_pair(block, 32, i) + 4 * (block[i % 32] >> i // 32 & 1) - 4
    sub = i // 16
    low = block[96 + sub % 8] >> 4 * (sub // 8) & 15
    high = block[104 + sub % 4] >> 2 * (sub // 4) & 3
    return half(block, 108) * (low + 16 * high - 32) * value


def _k_scale(block: bytes, sub: int, minimum: bool) -> int:
    at = 4 + 4 * minimum
    if sub < 4:
        return block[at + sub] & 63
    return (block[12 + sub - 4] >> 4 * minimum & 15) + 16 * (block[at + sub - 4] >> 6)


def q4_k(block: bytes, i: int) -> float:
    scale, minimum = _k_scale(block, i // 32, False), _k_scale(block, i // 32, True)
    return half(block, 0) * scale * split_nibble(block, 16, i, 64) - half(block, 2) * minimum


def q5_k(block: bytes, i: int) -> float:
    scale, minimum = _k_scale(block, i // 32, False), _k_scale(block, i // 32, True)
    value = split_nibble(block, 48, i, 64) + 16 * (block[16 + i % 32] >> i // 32 & 1)
    return half(block, 0) * scale * value - half(block, 2) * minimum


def q6_k(block: bytes, i: int) -> float:
    value = split_nibble(block, 0, i, 128) + 16 * split_pair(block, 128, i) - 32
    return half(block, 208) * signed(block[192 + i // 16]) * value


def iq4_xs(block: bytes, i: int) -> float:
    sub = i // 32
    scale = bits(block, 4, 4 * sub, 4) + 16 * bits(block, 2, 2 * sub, 2) - 32
    return half(block, 0) * scale * IQ4[split_nibble(block, 8, i, 32)]


def tq1_0(block: bytes, i: int) -> float:
    # A run of bytes holds as many elements as it has digits, one digit of all bytes after another.
    at, width, first = (0, 32, 0) if i < 160 else (32, 16, 160) if i < 240 else (48, 4, 240)
    digit, byte = divmod(i - first, width)
    fraction = block[at + byte] * 3**digit % 256
    return half(block, 52) * (fraction * 3 // 256 - 1)


def tq2_0(block: bytes, i: int) -> float:
    return half(block, 64) * (split_pair(block, 0, i) - 1)


def q1_0(block: bytes, i: int) -> float:
    return half(block, 0) * (2 * bits(block, 2, i, 1) - 1)


def q2_0(block: bytes, i: int) -> float:
    return half(block, 0) * (bits(block, 2, 2 * i, 2) - 1)


ELEMENTS: dict[str, Callable[[bytes, int], float]] = {
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
    "Q8_0": q8_0,
    "Q8_1": q8_1,
    "IQ4_NL": iq4_nl,
    "MXFP4": mxfp4,
    "NVFP4": nvfp4,
    "Q2_K": q2_k,
    "Q3_K": q3_k,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
    "IQ4_XS": iq4_xs,
    "TQ1_0": tq1_0,
    "TQ2_0": tq2_0,
    "Q1_0": q1_0,
    "Q2_0": q2_0,
}
