"""GPTQ in safetensors checkpoints: integers of 4 or 8 bits, a scale and a zero point for a group.

A module X with `in` inputs and `out` outputs has

- `X.qweight` [in·bits/32, out]: words of 32 bits with the codes of consecutive inputs of an output,
  the first in the lowest bits;
- `X.qzeros` [groups, out·bits/32]: words with the zero points of consecutive outputs, in version 1
  less one, and in some files that claim to be version 1 not;
- `X.scales` [groups, out];
- `X.g_idx` [in], mostly: the group of each input. With act-order (desc_act), the inputs of a group
  are anywhere. The rows then keep them group by group, and list them as their `columns`.

The value of an input is (code - zero point) · scale. If all zero points are in the middle of the
codes (sym) and the inputs are in order, GGUF's types Q4_0 and Q8_0 have exactly these values, and
the rows are of these types, which backends may know.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from octavo.backends.stored_rows import Bytes, Floats, Order, RowLayout, StoredRows
from octavo.loader import Checkpoint
from octavo.loader.errors import CorruptFileError, UnsupportedFormatError, quote
from octavo.loader.gguf.types import Q4_0, Q8_0
from octavo.loader.tensor_type import F16, I32, TensorType
from octavo.quant.plain import layout_of
from octavo.quant.weight_format import MAX_GROUP, Settings, Shape

BITS = (4, 8)
# A scale for whole rows is repeated for groups of this size, so that ranks can cut the rows.
SMALL_GROUP = 32

_WORD_BITS = 32
_PARTS = ("qweight", "qzeros", "scales", "g_idx")
_ELEMENTS_AT_ONCE = 1 << 17  # so that temporary arrays stay in a core's own cache
_GGUF_BLOCKS = {
    Q4_0.name: np.dtype([("scale", "<f2"), ("codes", "u1", SMALL_GROUP // 2)]),
    Q8_0.name: np.dtype([("scale", "<f2"), ("codes", "u1", SMALL_GROUP)]),
}


class Gptq(Struct, frozen=True):
    """The format, with the settings of one checkpoint."""

    bits: int
    group: int | None  # inputs that share a scale; None: all of a row
    zero_offset: int  # added to stored zero points
    symmetric: bool  # all zero points are in the middle of the codes
    act_order: bool  # the inputs of a group may be anywhere

    @property
    def middle(self) -> int:
        """The zero point of symmetric codes."""
        return 1 << (self.bits - 1)

    def find(self, checkpoint: Checkpoint) -> Iterator[GptqMatrix]:
        for name in checkpoint.tensors:
            module = name.removesuffix(".qweight")
            if module == name:
                continue
            infos = [checkpoint.tensors.get(f"{module}.{part}") for part in _PARTS[:3]]
            if any(info is None or len(info.shape) != 2 for info in infos):
                continue
            if all(info is not None and info.type == I32 for info in infos[:2]):
                yield GptqMatrix(checkpoint, module, self)

    def unused(self, checkpoint: Checkpoint, expected: Container[str]) -> Iterator[str]:
        """Yield biases of zeros, which some tools write for modules that have none."""
        for matrix in self.find(checkpoint):
            bias = f"{matrix.module}.bias"
            if bias in checkpoint and bias not in expected and not checkpoint.read(bias).any():
                yield bias


class GptqMatrix(Struct, frozen=True):
    """The matrix of one module."""

    checkpoint: Checkpoint
    module: str
    format: Gptq

    @property
    def name(self) -> str:
        return f"{self.module}.weight"

    @property
    def tensors(self) -> tuple[str, ...]:
        names = tuple(f"{self.module}.{part}" for part in _PARTS)
        return names if names[-1] in self.checkpoint else names[:-1]

    @property
    def shape(self) -> Shape:
        words, outputs = self.checkpoint.info(f"{self.module}.qweight").shape
        return outputs, words * _WORD_BITS // self.format.bits

    @property
    def type(self) -> str:
        kind = self._gguf_type
        return integer_name(self.format.bits) if kind is None else kind.name

    @property
    def _gguf_type(self) -> TensorType | None:
        """GGUF's type with the same values, if there is one."""
        form, inputs = self.format, self.shape[1]
        if not form.symmetric or form.act_order:
            return None
        if inputs % SMALL_GROUP or (form.group or inputs) % SMALL_GROUP:
            return None
        is_half = self.checkpoint.info(f"{self.module}.scales").type == F16
        return (Q4_0 if form.bits == 4 else Q8_0) if is_half else None

    def stored_shapes(self, shape: Shape) -> Mapping[str, Shape]:
        outputs, inputs = shape
        bits = self.format.bits
        groups = -(-inputs // (self.format.group or inputs))
        shapes: dict[str, Shape] = {
            f"{self.module}.qweight": (inputs * bits // _WORD_BITS, outputs),
            f"{self.module}.qzeros": (groups, -(-outputs * bits // _WORD_BITS)),
            f"{self.module}.scales": (groups, outputs),
        }
        if self.format.act_order or f"{self.module}.g_idx" in self.checkpoint:
            shapes[f"{self.module}.g_idx"] = (inputs,)
        return shapes

    def rows(self) -> StoredRows:
        kind, inputs = self._gguf_type, self.shape[1]
        if kind is None:
            group, columns = self.format.group or SMALL_GROUP, self._columns()
            layout = integer_layout(self.format.bits, group)
            made = self._blocks(_block(self.format.bits, group), group, columns)
            made["zero"] = self._zero_points()[self._stored_groups(group)].T
        else:
            self._check_symmetry()
            layout, columns = layout_of(kind), None
            made = self._blocks(_GGUF_BLOCKS[kind.name], SMALL_GROUP, None)
            if kind == Q8_0:
                made["codes"] ^= 0x80  # unsigned bytes less 128, as signed bytes
            else:
                _separate(made["codes"])
        return StoredRows(
            layout, inputs, made.view(np.uint8).reshape(len(made), -1), columns=columns
        )

    def _blocks(self, block: np.dtype[Any], group: int, columns: Order | None) -> NDArray[Any]:
        """Fill blocks [outputs, groups] with scales and codes, the inputs in order of `columns`."""
        outputs, inputs = self.shape
        bits, stored = self.format.bits, self._stored_groups(group)
        made = np.zeros((outputs, len(stored)), block)
        made["scale"] = self._read("scales")[stored].T
        words = self._read("qweight").view(np.uint8).reshape(-1, outputs, _WORD_BITS // 8)
        step = max(1, _ELEMENTS_AT_ONCE // inputs)
        for start in range(0, outputs, step):
            part = slice(start, start + step)
            codes = words[:, part].swapaxes(0, 1).reshape(-1, inputs * bits // 8)
            if columns is not None:
                codes = _packed(_codes(codes, bits)[:, columns], bits)
            missing = len(stored) * group * bits // 8 - codes.shape[1]
            codes = np.pad(codes, ((0, 0), (0, missing))) if missing else codes
            made["codes"][part] = codes.reshape(len(codes), len(stored), -1)
        return made

    def _stored_groups(self, group: int) -> Order:
        """Return the file's group for each group of the rows, which may be smaller."""
        inputs = self.shape[1]
        return np.arange(-(-inputs // group)) * group // (self.format.group or inputs)

    def _check_symmetry(self) -> None:
        """Refuse a matrix that is not as the settings say, on which its type depends."""
        for part, key, is_so in (
            ("qzeros", "sym is true", np.all(self._zero_points() == self.format.middle)),
            ("g_idx", "desc_act is false", self._columns() is None),
        ):
            if not is_so:
                name = f"{self.module}.{part}"
                raise CorruptFileError(
                    f"contradicts the quantization_config, in which {key}",
                    path=self.checkpoint.info(name).path,
                    tensor=name,
                    advice="correct the config.json",
                )

    def _read(self, part: str) -> NDArray[Any]:
        return self.checkpoint.read(f"{self.module}.{part}")

    def _zero_points(self) -> NDArray[np.uint8]:
        bits = self.format.bits
        stored = _codes(self._read("qzeros").view(np.uint8), bits)[:, : self.shape[0]]
        if self.format.symmetric and np.all(stored == self.format.middle):
            return stored  # of version 2, whatever the file claims
        zeros = stored + np.uint8(self.format.zero_offset)
        return zeros & np.uint8((1 << bits) - 1)

    def _columns(self) -> Order | None:
        """Return the inputs group by group; None if they are stored so."""
        name, group = f"{self.module}.g_idx", self.format.group
        if group is None or name not in self.checkpoint:
            return None
        owners = self.checkpoint.read(name)
        in_order = np.arange(len(owners)) // group
        if np.array_equal(owners, in_order):
            return None
        if not np.array_equal(np.sort(owners), in_order):
            raise CorruptFileError(
                f"does not put {group} inputs into each of the {in_order[-1] + 1} groups",
                path=self.checkpoint.info(name).path,
                tensor=name,
                advice="groups of other sizes are not supported; quantise the model again",
            )
        return np.argsort(owners, kind="stable").astype(np.int64)


def read_gptq(settings: Settings) -> Gptq:
    """Read and check the settings of a checkpoint."""
    bits, group = settings.integer("bits"), settings.values.get("group_size", 128)
    if bits not in BITS:
        raise UnsupportedFormatError(
            f"GPTQ weights of {bits} bits are not supported; supported are: 4, 8",
            advice="use a model of 4 or 8 bits, or a GGUF file",
        )
    is_size = type(group) is int and 0 < group <= MAX_GROUP and group * bits % _WORD_BITS == 0
    if not is_size and group != -1:
        raise UnsupportedFormatError(
            f"GPTQ's group_size must be -1 (a row) or a number of inputs that fill words of 32 "
            f"bits, at most {MAX_GROUP:,}, is {quote(str(group))}"
        )
    version = settings.string("checkpoint_format", "gptq")
    changed = [key for key in _mapping(settings, "dynamic") if not key.startswith("-:")]
    if version not in ("gptq", "gptq_v2") or settings.boolean("is_marlin_format", False) or changed:
        what = f"checkpoint_format {quote(version)}"
        if changed:
            what = f"settings for single modules ({quote(changed[0])})"
        raise UnsupportedFormatError(
            f"GPTQ weights with {what} are not supported; supported are the checkpoint formats "
            "'gptq' and 'gptq_v2' with one setting for all modules"
        )
    return Gptq(
        bits=bits,
        group=None if group == -1 else group,
        zero_offset=int(version == "gptq"),
        symmetric=settings.boolean("sym", False),
        act_order=settings.boolean("desc_act", False) and group != -1,
    )


def _mapping(settings: Settings, key: str) -> Mapping[str, Any]:
    value = settings.values.get(key) or {}
    return value if isinstance(value, Mapping) else {str(value): None}


@cache
def _block(bits: int, group: int) -> np.dtype[Any]:
    return np.dtype([("scale", "<f4"), ("zero", "u1"), ("codes", "u1", group * bits // 8)])


def integer_name(bits: int) -> str:
    """Return the name of the type of such integers."""
    return f"GPTQ{bits}"


@cache
def integer_layout(bits: int, group: int) -> RowLayout:
    """Return the layout of groups of integers, each group with its scale and zero point."""
    block = _block(bits, group)

    def decode(rows: Bytes) -> Floats:
        blocks = np.ascontiguousarray(rows).view(block)
        values = np.empty((*blocks.shape, group), np.float32)
        step = max(1, _ELEMENTS_AT_ONCE // max(1, values[:1].size))
        for start in range(0, len(blocks), step):
            part, out = blocks[start : start + step], values[start : start + step]
            zeros = part["zero"].astype(np.float32)[..., None]
            np.subtract(_codes(part["codes"], bits), zeros, out=out)
            with np.errstate(all="ignore"):  # damaged scales may be infinite or NaN
                out *= part["scale"][..., None]
        return values.reshape(len(rows), -1)

    return RowLayout(integer_name(bits), group, block.itemsize, decode, has_zero_points=True)


def _separate(pairs: NDArray[np.uint8]) -> None:
    """Move codes from pairs of neighbours to GGUF's order: low halves, then high halves."""
    half = pairs.shape[-1] // 2
    first, second = pairs[..., :half].copy(), pairs[..., half:].copy()
    pairs[..., 0::2] = first & 15 | second << 4
    pairs[..., 1::2] = first >> 4 | second & 0xF0


def _codes(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Split the bytes of the last axis into codes, the lowest bits first."""
    if bits == 8:
        return packed
    codes = np.empty((*packed.shape, 2), np.uint8)
    np.bitwise_and(packed, 15, out=codes[..., 0])
    np.right_shift(packed, 4, out=codes[..., 1])
    return codes.reshape(*packed.shape[:-1], -1)


def _packed(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Join codes into bytes, the first in the lowest bits."""
    if bits == 8:
        return codes
    packed: NDArray[np.uint8] = codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)
    return packed
