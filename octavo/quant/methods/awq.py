"""AWQ in safetensors checkpoints: integers of 4 bits in groups with a zero point.

A module X with `in` inputs and `out` outputs has, in the layout `gemm`,

- `X.qweight` [in, out/8]: words of 32 bits with the codes of eight consecutive outputs, which lie,
  from the lowest bits on, in the order 0, 2, 4, 6, 1, 3, 5, 7;
- `X.qzeros` [groups, out/8]: zero points, in words of the same order;
- `X.scales` [groups, out];

and in the layout `gemv`

- `X.qweight` [out, in/8]: words with the codes of consecutive inputs, the first in the lowest bits;
- `X.qzeros` [out, words]: zero points of consecutive groups, with empty places at the end;
- `X.scales` [out, 8 · words].

Modules that are not quantised (`modules_to_not_convert`) have plain weights, and are found by that.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from octavo.backends.code_bits import unpacked
from octavo.backends.made_rows import codes_of_eight
from octavo.backends.stored_rows import StoredRows
from octavo.loader import Checkpoint
from octavo.loader.errors import UnsupportedFormatError, quote
from octavo.quant.integers import Codes, IntegerKind, IntegerModule, Integers, kind_of
from octavo.quant.methods.word_modules import PARTS, WordModules, contradiction, read_group
from octavo.quant.weight_format import Settings, Shape

BITS = 4
_CODES = 8  # in a word
_MIDDLE = 8  # the zero point of symmetric codes
# The layouts by the names that files have; some are of programs that read the layout of another.
_HAS_ROWS = {"gemm": False, "gemv": True, "exllama": False, "exllamav2": False, "ipex": False}
# In gemv, the words of a row's zero points are a multiple of this, by the inputs of a group.
_MULTIPLES = {32: 4, 64: 2}


class Awq(Struct, frozen=True):
    """The format of a module, with its settings."""

    group: int | None  # inputs that share a scale; None: all of a row
    symmetric: bool  # all zero points are in the middle of the codes
    has_rows: bool  # the layout is gemv's

    def matrix(self, checkpoint: Checkpoint, module: str) -> AwqMatrix:
        return AwqMatrix(checkpoint, module, self)

    def num_groups(self, inputs: int) -> int:
        return -(-inputs // (self.group or inputs))

    def zero_words(self, inputs: int) -> int:
        """Return the words of a row's zero points, in the layout gemv."""
        multiple = _MULTIPLES.get(self.group or inputs, 1)
        return -(-self.num_groups(inputs) // (_CODES * multiple)) * multiple


class AwqMatrix(IntegerModule, frozen=True):
    """The matrix of one module."""

    format: Awq

    @property
    def tensors(self) -> tuple[str, ...]:
        return tuple(f"{self.module}.{part}" for part in PARTS)

    @property
    def shape(self) -> Shape:
        first, second = self.checkpoint.info(f"{self.module}.qweight").shape
        return (first, second * _CODES) if self.format.has_rows else (second * _CODES, first)

    @property
    def kind(self) -> IntegerKind:
        form = self.format
        return kind_of(BITS, self.shape[1], form.group, is_symmetric=form.symmetric)

    def stored_shapes(self, shape: Shape) -> Mapping[str, Shape]:
        outputs, inputs = shape
        if self.format.has_rows:
            words = self.format.zero_words(inputs)
            shapes = (outputs, inputs // _CODES), (outputs, words), (outputs, words * _CODES)
        else:
            groups, words = self.format.num_groups(inputs), outputs // _CODES
            shapes = (inputs, words), (groups, words), (groups, outputs)
        return dict(zip(self.tensors, shapes, strict=True))

    def rows(self) -> StoredRows:
        words, zero_words, scales = map(self.checkpoint.read, self.tensors)
        inputs, is_symmetric = self.shape[1], self.format.symmetric
        if self.format.has_rows:
            groups = self.format.num_groups(inputs)
            zeros = unpacked(zero_words.view(np.uint8), BITS)[:, :groups]
            scales = scales[:, :groups]
        else:
            zeros, scales = codes_of_eight(zero_words.T), scales.T
        if is_symmetric and not np.all(zeros == _MIDDLE):
            raise contradiction(self.checkpoint, f"{self.module}.qzeros", "zero_point is false")

        codes = Codes(words) if self.format.has_rows else Codes(words.T, is_of_eight=True)
        return Integers(self.kind, inputs, self.format.group, scales, zeros, codes).rows()


def read_awq(settings: Settings) -> WordModules:
    """Read and check the settings of a checkpoint."""
    return WordModules(module_format(settings))


def module_format(settings: Settings) -> Awq:
    """Read and check the settings of a module, by the names of AWQ's first program or of others."""
    bits = settings.integer("bits" if settings.has("bits") else "w_bit")
    if bits != BITS:
        raise UnsupportedFormatError(
            f"AWQ weights of {bits} bits are not supported; supported are: 4",
            advice="use a model of 4 bits, or a GGUF file",
        )
    key = "group_size" if settings.has("group_size") else "q_group_size"
    group = read_group(settings, bits, "AWQ", key)
    layout = _layout(settings)
    if _HAS_ROWS[layout] and group is not None and group < 128 and group not in _MULTIPLES:
        raise UnsupportedFormatError(
            f"AWQ's {key} must be 32, 64, or at least 128 in the layout gemv, is {group}"
        )
    return Awq(group, not settings.boolean("zero_point", True), _HAS_ROWS[layout])


def _layout(settings: Settings) -> str:
    named = next((key for key in ("version", "format") if settings.has(key)), "version")
    layout = settings.string(named, "gemm").lower()
    if layout not in _HAS_ROWS:
        raise UnsupportedFormatError(
            f"AWQ weights in the layout {quote(layout)} are not supported; supported are: "
            f"{', '.join(_HAS_ROWS)}",
            advice="use the model's files in the layout gemm, or a GGUF file",
        )
    return layout
