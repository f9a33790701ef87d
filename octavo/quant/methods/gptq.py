"""GPTQ in safetensors checkpoints: integers of 2, 3, 4 or 8 bits in groups with a zero point.

A module X with `in` inputs and `out` outputs has

- `X.qweight` [in·bits/32, out]: words of 32 bits with the codes of consecutive inputs of an output,
  the first in the lowest bits;
- `X.qzeros` [groups, out·bits/32]: words with the zero points of consecutive outputs, in version 1
  less one, and in some files that claim to be version 1 not;
- `X.scales` [groups, out];
- `X.g_idx` [in], mostly: the group of each input. With act-order (desc_act), the inputs of a group
  are anywhere. The rows then keep them group by group, and list them as their `columns`.

Codes of 3 bits fill three words with 32, so that some lie in two words.

The setting `dynamic` gives modules settings of their own: a key is a regex behind `+:` or nothing,
and its value replaces some of the settings; modules whose names match a regex behind `-:` are not
quantised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from octavo.backends.code_bits import unpacked
from octavo.backends.stored_rows import Order, StoredRows
from octavo.loader import Checkpoint
from octavo.loader.errors import UnsupportedFormatError, quote
from octavo.quant.integers import (
    Codes,
    IntegerKind,
    IntegerModule,
    Integers,
    grouped_columns,
    kind_of,
)
from octavo.quant.methods.word_modules import (
    PARTS,
    WORD_BITS,
    WordModules,
    check_count,
    contradiction,
    make_rule,
    read_group,
)
from octavo.quant.weight_format import Settings, Shape

BITS = (2, 3, 4, 8)
_VERSIONS = {"gptq": 1, "gptq_v2": 0}  # and what is added to stored zero points


class Gptq(Struct, frozen=True):
    """The format of a module, with its settings."""

    bits: int
    group: int | None  # inputs that share a scale; None: all of a row
    zero_offset: int  # added to stored zero points
    symmetric: bool  # all zero points are in the middle of the codes
    act_order: bool  # the inputs of a group may be anywhere

    @property
    def middle(self) -> int:
        """The zero point of symmetric codes."""
        return 1 << (self.bits - 1)

    def matrix(self, checkpoint: Checkpoint, module: str) -> GptqMatrix:
        return GptqMatrix(checkpoint, module, self)


class GptqMatrix(IntegerModule, frozen=True):
    """The matrix of one module."""

    format: Gptq

    @property
    def tensors(self) -> tuple[str, ...]:
        names = tuple(f"{self.module}.{part}" for part in (*PARTS, "g_idx"))
        return names if names[-1] in self.checkpoint else names[:-1]

    @property
    def shape(self) -> Shape:
        words, outputs = self.checkpoint.info(f"{self.module}.qweight").shape
        return outputs, words * WORD_BITS // self.format.bits

    @property
    def kind(self) -> IntegerKind:
        form = self.format
        return kind_of(form.bits, self.shape[1], form.group, is_symmetric=form.symmetric)

    @property
    def is_in_act_order(self) -> bool:
        return self.format.act_order and self._columns() is not None

    def stored_shapes(self, shape: Shape) -> Mapping[str, Shape]:
        outputs, inputs = shape
        bits = self.format.bits
        groups = -(-inputs // (self.format.group or inputs))
        shapes: dict[str, Shape] = {
            f"{self.module}.qweight": (inputs * bits // WORD_BITS, outputs),
            f"{self.module}.qzeros": (groups, -(-outputs * bits // WORD_BITS)),
            f"{self.module}.scales": (groups, outputs),
        }
        if self.format.act_order or f"{self.module}.g_idx" in self.checkpoint:
            shapes[f"{self.module}.g_idx"] = (inputs,)
        return shapes

    def rows(self) -> StoredRows:
        columns, zeros = self._columns(), self._zero_points().T
        self._check_settings(columns, zeros)
        return Integers(
            kind=self.kind,
            inputs=self.shape[1],
            group=self.format.group,
            scales=self._read("scales").T,
            zeros=zeros,
            codes=Codes(self._read("qweight").T),
            columns=columns,
        ).rows()

    def _check_settings(self, columns: Order | None, zeros: NDArray[np.uint8]) -> None:
        """Refuse a matrix that is not as the settings say, on which its type depends."""
        form = self.format
        for part, key, is_so in (
            ("qzeros", "sym is true", not form.symmetric or np.all(zeros == form.middle)),
            ("g_idx", "desc_act is false", form.act_order or columns is None),
        ):
            if not is_so:
                raise contradiction(self.checkpoint, f"{self.module}.{part}", key)

    def _read(self, part: str) -> NDArray[Any]:
        return self.checkpoint.read(f"{self.module}.{part}")

    def _zero_points(self) -> NDArray[np.uint8]:
        bits = self.format.bits
        stored = unpacked(self._read("qzeros").view(np.uint8), bits)[:, : self.shape[0]]
        if self.format.symmetric and np.all(stored == self.format.middle):
            return stored  # of version 2, whatever the file claims
        zeros = stored + np.uint8(self.format.zero_offset)
        return zeros & np.uint8((1 << bits) - 1)

    def _columns(self) -> Order | None:
        """Return the inputs group by group; None if they are stored so."""
        name, group = f"{self.module}.g_idx", self.format.group
        if group is None or name not in self.checkpoint:
            return None
        return grouped_columns(self.checkpoint, name, group)


def read_gptq(settings: Settings) -> WordModules:
    """Read and check the settings of a checkpoint, and those of single modules."""
    usual = module_format(settings)
    if not settings.has("dynamic"):
        return WordModules(usual)
    dynamic = settings.part("dynamic")
    check_count(len(dynamic.values), "dynamic")
    rules = []
    for pattern in dynamic.values:
        own = None  # such a module is not quantised
        if not pattern.startswith("-:"):
            own = module_format(dynamic.part(pattern).over(settings.values))
        rules.append(make_rule(pattern.removeprefix("-:").removeprefix("+:"), own))
    return WordModules(usual, rules=tuple(rules))


def module_format(settings: Settings) -> Gptq:
    """Read and check the settings of a module."""
    bits = settings.integer("bits")
    if bits not in BITS:
        raise UnsupportedFormatError(
            f"GPTQ weights of {bits} bits are not supported; supported are: 2, 3, 4, 8",
            advice="use a model of another size, or a GGUF file",
        )
    group = read_group(settings, bits, "GPTQ")
    version = settings.string("checkpoint_format", settings.string("format", "gptq")).lower()
    if version not in _VERSIONS or settings.boolean("is_marlin_format", False):
        raise UnsupportedFormatError(
            f"GPTQ weights with checkpoint_format {quote(version)} are not supported; supported "
            f"are: {', '.join(_VERSIONS)}",
            advice="use a model in one of these, or a GGUF file",
        )
    words = settings.string("pack_dtype", "int32")
    if words != "int32":
        raise UnsupportedFormatError(
            f"GPTQ weights with pack_dtype {quote(words)} are not supported; supported is: int32",
            advice="quantise the model again with words of 32 bits, or use a GGUF file",
        )
    return Gptq(
        bits=bits,
        group=group,
        zero_offset=_VERSIONS[version],
        symmetric=settings.boolean("sym", False),
        act_order=settings.boolean("desc_act", False) and group is not None,
    )
