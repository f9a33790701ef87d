"""Stored rows become packed matrices: every type, every order, every requested format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from octavo.backends.native import _native
from octavo.backends.native.packing import Packer
from octavo.backends.stored_rows import StoredRows
from octavo.layers import Embedding, GateUpLinear, Linear, QKVLinear
from octavo.loader.gguf.types import TENSOR_TYPES
from octavo.quant.integers import Codes, Integers, kind_of
from octavo.quant.plain import layout_of

INPUTS = 512
TYPES = {kind.name: kind for kind in TENSOR_TYPES.values()}
KEPT = (
    "F32",
    "F16",
    "BF16",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "IQ4_NL",
    "MXFP4",
)
OF_ITS_VALUES = {"Q2_K": "U2K", "Q3_K": "U3K", "IQ4_XS": "Table4K"}


def stored(name: str, count: int, seed: int = 0) -> StoredRows:
    """Return random rows of a type, with scales of ordinary size."""
    kind = TYPES[name]
    generator = np.random.default_rng(seed)
    if not kind.is_quantized:
        floats = generator.standard_normal((count, INPUTS), np.float32)
        from octavo.loader.checkpoint import numpy_dtype

        typed = floats.astype(numpy_dtype(kind))
        return StoredRows(layout_of(kind), INPUTS, typed.view(np.uint8))
    num_bytes = INPUTS // kind.block_elements * kind.block_bytes
    rows = generator.integers(0, 256, (count, num_bytes), np.uint8)
    blocks = rows.reshape(-1, kind.block_bytes)
    scale = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = 120
    for at in {"Q6_K": (208,), "Q2_K": (80, 82), "Q3_K": (108,)}.get(name, (0, 2)):
        if name != "MXFP4":
            blocks[:, at : at + 2] = scale
    return StoredRows(layout_of(kind), INPUTS, rows)


def packer(weights: str = "auto") -> Packer:
    return Packer(_native.Team(2, False), weights)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [*KEPT, *OF_ITS_VALUES])
def test_every_type_keeps_its_values(name: str) -> None:
    """Rows may be in another order; at most the last bits of a scale are lost."""
    order = np.random.default_rng(1).permutation(50)
    rows = stored(name, 50).reordered(order)
    matrix = packer().matrix([rows], Linear(INPUTS, 50))
    expected = rows.floats()
    got = np.stack([matrix.pieces[0].native.row(index) for index in range(50)])
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-3 * np.abs(expected).max())
    if name in OF_ITS_VALUES:
        assert matrix.formats == OF_ITS_VALUES[name]


def test_parts_of_several_types_are_several_pieces() -> None:
    parts = [stored("Q4_K", 40), stored("Q4_K", 8, 1), stored("Q6_K", 8, 2)]
    matrix = packer().matrix(parts, Linear(INPUTS, 56))
    assert [(piece.first, piece.native.outputs) for piece in matrix.pieces] == [(0, 48), (48, 8)]
    assert matrix.outputs == 56
    assert len(matrix.by_kind()) == 1
    assert len(packer().matrix([*parts, stored("F16", 8)], Linear(INPUTS, 64)).by_kind()) == 2


def test_gates_and_ups_of_one_type_are_interleaved() -> None:
    gate, up = stored("Q4_1", 24), stored("Q4_1", 24, 1)
    matrix = packer().matrix([gate, up], GateUpLinear(INPUTS, 24))
    assert matrix.gated
    values = gate.floats(), up.floats()
    native = matrix.pieces[0].native
    for row, (which, index) in {0: (0, 0), 16: (1, 0), 39: (0, 23), 55: (1, 23)}.items():
        np.testing.assert_allclose(native.row(row), values[which][index], atol=1e-3, rtol=0)
    assert not packer().matrix([gate, stored("Q8_0", 24)], GateUpLinear(INPUTS, 24)).gated


@pytest.mark.parametrize(
    ("wish", "name", "format_"),
    [
        ("auto", "BF16", "BF16"),
        ("bf16", "F32", "BF16"),
        ("bf16", "Q4_0", "U4"),
        ("int8", "BF16", "U8"),
        ("int8-64", "BF16", "U8By64"),
        ("int8-128", "F32", "U8By128"),
        ("int8-wide", "F32", "U8Wide"),
        ("int8-wide", "Q8_0", "U8"),
        ("int4-64", "F16", "U4By64"),
        ("int4-128", "BF16", "U4By128"),
        ("int4-128", "Q4_0", "U4"),
        ("int8", "Q6_K", "U6"),
        ("int4", "F16", "U4"),
        ("float32", "Q4_K", "F32"),
        ("float32", "BF16", "F32"),
    ],
)
def test_wishes_concern_what_is_stored_as_floats(wish: str, name: str, format_: str) -> None:
    """Weights that are quantised already stay as they are, unless fp32 is requested."""
    assert packer(wish).matrix([stored(name, 40)], Linear(INPUTS, 40)).formats == format_


def test_queries_keys_and_values_of_w8a8_have_groups_of_32_activations() -> None:
    """The values are the same in both formats: the file's, with a scale for each row."""
    signed = np.random.default_rng(0).integers(-128, 128, (60, INPUTS)).astype(np.int8)
    scales = np.random.default_rng(1).uniform(0.01, 0.02, (60, 1)).astype(np.float16)
    rows = Integers(
        kind=kind_of(8, INPUTS, None, is_symmetric=True, takes_int8=True),
        inputs=INPUTS,
        group=None,
        scales=scales,
        zeros=None,
        codes=Codes(signed.view(np.uint8), flipped=0x80),
    ).rows()
    expected = signed * scales.astype(np.float32)
    for module, format_ in ((QKVLinear(INPUTS, 2, 1, 15), "U8"), (Linear(INPUTS, 60), "U8Wide")):
        matrix = packer().matrix([rows], module)
        assert matrix.formats == format_
        got = np.stack([matrix.pieces[0].native.row(index) for index in range(60)])
        np.testing.assert_array_equal(got, expected)


def test_rows_that_are_no_whole_blocks_are_refused() -> None:
    """The caller gets the error: a thread that packs could not report it."""
    addresses = np.zeros(40, np.uint64)
    stored_type = getattr(_native.Stored, TYPES["Q4_K"].name)
    format_ = _native.own_format(stored_type)
    store = _native.Store(_native.Team(1, False))
    for inputs, message in ((32, "not a multiple"), (0, "at least one input")):
        with pytest.raises(ValueError, match=message):
            store.pack(stored_type, format_, inputs, addresses, (), [])


def test_tables_keep_eight_bits() -> None:
    for wish, kept in (("int4", "U8"), ("int4-128", "U8By128"), ("bf16", "BF16")):
        table = packer(wish).matrix([stored("BF16", 40)], Embedding(40, INPUTS))
        assert table.formats == kept


def in_a_file(path: Path, rows: StoredRows) -> StoredRows:
    path.write_bytes(rows.array.tobytes())
    mapped = np.memmap(path, np.uint8, "r").reshape(rows.array.shape)
    return replace(rows, rows=mapped.view(np.ndarray), is_file=True)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_rows_of_a_file_are_packed_meanwhile(tmp_path: Path, threads: int) -> None:
    """Rows equal those packed at once, even if they are added while others are packed."""
    parts = [stored("Q4_1", 3000, 1), stored("BF16", 700, 2), stored("Q6_K", 40, 3)]
    layers = [Linear(INPUTS, len(part)) for part in parts]
    at_once = [packer().matrix([part], layer) for part, layer in zip(parts, layers, strict=True)]
    meanwhile = Packer(_native.Team(threads, False), "auto")
    files = [in_a_file(tmp_path / str(index), part) for index, part in enumerate(parts)]
    matrices = []
    for file, layer in zip(files, layers, strict=True):
        matrices.append(meanwhile.matrix([file], layer))
        meanwhile.begin()
    meanwhile.finish()
    for matrix, expected in zip(matrices, at_once, strict=True):
        ours, theirs = (each.pieces[0].native for each in (matrix, expected))
        for index in (0, 1, ours.outputs // 2, ours.outputs - 1):
            np.testing.assert_array_equal(ours.row(index), theirs.row(index))


def test_packing_that_was_begun_need_not_be_awaited(tmp_path: Path) -> None:
    """The rows stay in memory for as long as they are read."""
    one = packer()
    rows = in_a_file(tmp_path / "rows", stored("Q4_1", 9000))
    matrix = one.matrix([rows], Linear(INPUTS, 9000))
    one.begin()
    del one, rows
    del matrix
