"""Packing, compared byte by byte with a plain version in numpy."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.backends.native import _native_test

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint16]

PANEL, GROUP = 32, 32
# (outputs, inputs): a panel begun, one more than a panel, several whole ones, as wide as models.
SHAPES = [(1, 32), (33, 64), (45, 544), (96, 576), (64, 1536)]


class Codes:
    """Quantised rows: codes[row, group, 32], scales and minima[row, group]."""

    def __init__(self, codes: Bytes, scales: Words, minima: Words | None = None) -> None:
        self.codes, self.scales, self.minima = codes, scales, minima


def words(blocks: Bytes, at: int) -> Words:
    return np.ascontiguousarray(blocks[..., at : at + 2]).view(np.uint16)[..., 0]


def nibbles(blocks: Bytes, at: int) -> Bytes:
    sixteen = blocks[..., at : at + 16]
    return np.concatenate((sixteen & 15, sixteen >> 4), -1)


def fifth(blocks: Bytes, at: int) -> Bytes:
    bits = np.unpackbits(blocks[..., at : at + 4], axis=-1, bitorder="little")
    return (bits << 4).astype(np.uint8)


def read_q4_0(blocks: Bytes) -> Codes:
    return Codes(nibbles(blocks, 2), words(blocks, 0))


def read_q4_1(blocks: Bytes) -> Codes:
    return Codes(nibbles(blocks, 4), words(blocks, 0), words(blocks, 2))


def read_q5_0(blocks: Bytes) -> Codes:
    return Codes(nibbles(blocks, 6) | fifth(blocks, 2), words(blocks, 0))


def read_q5_1(blocks: Bytes) -> Codes:
    return Codes(nibbles(blocks, 8) | fifth(blocks, 4), words(blocks, 0), words(blocks, 2))


def read_q8_0(blocks: Bytes) -> Codes:
    return Codes(blocks[..., 2:] ^ np.uint8(0x80), words(blocks, 0))


# The type, its number in GGUF, the bytes of a block, how a block is read, the format it is kept in.
TYPES: dict[str, tuple[int, int, Callable[[Bytes], Codes], str]] = {
    "Q4_0": (2, 18, read_q4_0, "U4"),
    "Q4_1": (3, 20, read_q4_1, "U4Min"),
    "Q5_0": (6, 22, read_q5_0, "U5"),
    "Q5_1": (7, 24, read_q5_1, "U5Min"),
    "Q8_0": (8, 34, read_q8_0, "U8"),
    "IQ4_NL": (20, 18, read_q4_0, "Table4"),
}


def code_rows(codes: Bytes, format_name: str) -> list[bytes]:
    """Return a group's rows of 128 bytes: 32 codes of each of 32 outputs."""
    steps = codes.reshape(PANEL, 8, 4)
    if format_name == "U8":
        return [steps[:, step].tobytes() for step in range(8)]
    pairs = steps[:, 0::2] & 15 | steps[:, 1::2] << 4
    rows = [pairs[:, pair].tobytes() for pair in range(4)]
    if format_name.startswith("U5"):
        bits = (steps >> 4 & 1) << np.arange(8, dtype=np.uint8)[:, None]
        rows.append(np.bitwise_or.reduce(bits, 1).tobytes())
    elif format_name == "U6":
        two = (steps.reshape(PANEL, 2, 4, 4) >> 4 & 3) << np.arange(0, 8, 2, dtype=np.uint8)[
            :, None
        ]
        upper = np.bitwise_or.reduce(two, 2)
        rows += [upper[:, part].tobytes() for part in range(2)]
    return rows


def panels_of(read: Codes, format_name: str) -> Bytes:
    """Build panels as csrc/kernels/group_layout.h describes them."""
    rows, groups, _ = read.codes.shape
    fill = -rows % PANEL
    codes = np.pad(read.codes, ((0, fill), (0, 0), (0, 0)))
    lines = [np.pad(read.scales, ((0, fill), (0, 0)))]
    if read.minima is not None:
        lines.append(np.pad(read.minima, ((0, fill), (0, 0))))
    panels = []
    for first in range(0, rows + fill, PANEL):
        for group in range(groups):
            panels += [line[first : first + PANEL, group].tobytes() for line in lines]
            panels += code_rows(codes[first : first + PANEL, group], format_name)
    return np.frombuffer(b"".join(panels), np.uint8)


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("name", TYPES)
def test_blocks_become_panels_bit_by_bit(name: str, outputs: int, inputs: int) -> None:
    number, block_bytes, read, format_name = TYPES[name]
    generator = np.random.default_rng(outputs)
    stored = generator.integers(0, 256, (outputs, inputs // GROUP, block_bytes), np.uint8)
    rows: list[Bytes | None] = list(stored.reshape(outputs, -1))
    whole = read(stored)
    if outputs > 1:  # one of them is not stored
        rows[outputs // 2] = None
        for part in (whole.codes, whole.scales, whole.minima):
            if part is not None:
                part[outputs // 2] = 0
    packed = _native_test.pack(format_name, number, rows, inputs)
    np.testing.assert_array_equal(packed.panel_bytes, panels_of(whole, format_name))


class Block:
    """Groups of 32 rows that share a header: codes[row, group, 32], and the header as bytes."""

    def __init__(self, codes: Bytes, header: list[bytes]) -> None:
        self.codes, self.header = codes, header


def read_q4_k(blocks: Bytes) -> Block:
    return read_k(blocks, nibbles_of_64(blocks[:, 16:]))


def read_q5_k(blocks: Bytes) -> Block:
    fifth_bits = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return read_k(blocks, nibbles_of_64(blocks[:, 48:]) | (fifth_bits << 4).astype(np.uint8))


def nibbles_of_64(low: Bytes) -> Bytes:
    """Put groups 2i into the low halves of 32 bytes, and 2i + 1 into the high ones."""
    by_pair = low.reshape(len(low), 4, 1, 32)
    return np.concatenate((by_pair & 15, by_pair >> 4), 2).reshape(len(low), 8, 32)


def read_k(blocks: Bytes, codes: Bytes) -> Block:
    q = blocks[:, 4:16]
    scales = np.concatenate((q[:, :4] & 63, q[:, 8:] & 15 | q[:, :4] >> 6 << 4), 1)
    minima = np.concatenate((q[:, 4:8] & 63, q[:, 8:] >> 4 | q[:, 4:8] >> 6 << 4), 1)
    minimum = words(blocks, 2) ^ np.uint16(0x8000)  # it is taken off
    minimum[~blocks.any(1)] = 0  # a row that is not stored
    header = [words(blocks, 0).tobytes(), minimum.tobytes()]
    for group in range(8):
        scale, low = scales[:, group], minima[:, group]
        high = low >> 2
        header += [(scale | low << 6).tobytes(), (high[:16] | high[16:] << 4).tobytes()]
    return Block(codes, header)


def read_q6_k(blocks: Bytes) -> Block:
    low = blocks[:, :128].reshape(-1, 2, 1, 2, 32)
    fours = np.concatenate((low & 15, low >> 4), 2).reshape(-1, 2, 4, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    twos = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3
    header = [words(blocks, 208).tobytes(), *(blocks[:, 192 + i].tobytes() for i in range(16))]
    return Block((fours | twos << 4).reshape(-1, 8, 32), header)


def read_mxfp4(blocks: Bytes) -> Block:
    """Read blocks of two groups, or the last group alone."""
    groups = blocks.reshape(len(blocks), -1, 17)
    exponents = b"".join(groups[:, i, 0].tobytes() for i in range(groups.shape[1]))
    return Block(nibbles(groups, 1), [exponents.ljust(2 * PANEL, b"\0")])


# The type, its number in GGUF, inputs and bytes of a block, how it is read, the format it is kept
# in.
BLOCKS: dict[str, tuple[int, int, int, Callable[[Bytes], Block], str]] = {
    "Q4_K": (12, 256, 144, read_q4_k, "U4K"),
    "Q5_K": (13, 256, 176, read_q5_k, "U5K"),
    "Q6_K": (14, 256, 210, read_q6_k, "U6"),
    "MXFP4": (39, 64, 34, read_mxfp4, "Mx4"),
}


@pytest.mark.parametrize(("outputs", "inputs"), [(1, 256), (33, 512), (45, 1792), (64, 256)])
@pytest.mark.parametrize("name", BLOCKS)
def test_larger_blocks_become_panels_bit_by_bit(name: str, outputs: int, inputs: int) -> None:
    number, block_inputs, block_bytes, read, format_name = BLOCKS[name]
    if name == "MXFP4":
        inputs += GROUP  # the last block has one group
    stored_bytes = inputs * block_bytes // block_inputs
    stored = np.random.default_rng(inputs).integers(0, 256, (outputs, stored_bytes), np.uint8)
    rows: list[Bytes | None] = list(stored)
    if outputs > 1:
        rows[outputs // 2] = None
        stored = stored.copy()
        stored[outputs // 2] = 0
    padded = np.pad(stored, ((0, -outputs % PANEL), (0, 0)))
    panels = []
    for first in range(0, len(padded), PANEL):
        panel = padded[first : first + PANEL]
        for at in range(0, stored_bytes, block_bytes):
            block = read(panel[:, at : at + block_bytes])
            panels += block.header
            for group in range(block.codes.shape[1]):
                panels += code_rows(block.codes[:, group], format_name)
    packed = _native_test.pack(format_name, number, rows, inputs)
    expected = np.frombuffer(b"".join(panels), np.uint8)
    np.testing.assert_array_equal(packed.panel_bytes, expected)


@pytest.mark.parametrize(("outputs", "inputs"), [*SHAPES, (3, 1), (40, 7), (65, 333)])
@pytest.mark.parametrize(("name", "number"), [("F32", 0), ("F16", 1), ("BF16", 30)])
def test_floats_that_are_kept_become_panels_bit_by_bit(
    name: str, number: int, outputs: int, inputs: int
) -> None:
    kind = np.uint32 if name == "F32" else np.uint16
    generator = np.random.default_rng(inputs)
    stored = generator.integers(0, 1 << 16, (outputs, inputs), np.uint16).astype(kind)
    rows: list[Bytes | None] = list(stored.view(np.uint8).reshape(outputs, -1))
    if outputs > 2:
        stored = stored.copy()
        stored[1], rows[1] = 0, None
    even = inputs % 2 if name == "BF16" else 0
    padded = np.pad(stored, ((0, -outputs % PANEL), (0, even)))
    in_panels = padded.reshape(-1, PANEL, padded.shape[1])
    if name == "BF16":  # pairs of inputs stay together
        in_panels = in_panels.view(np.uint32)
    expected = np.ascontiguousarray(in_panels.swapaxes(1, 2)).view(np.uint8).reshape(-1)
    packed = _native_test.pack(name, number, rows, inputs)
    np.testing.assert_array_equal(packed.panel_bytes, expected)
