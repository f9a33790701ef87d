"""Modules of integers in words of 32 bits: `qweight`, `qzeros` and `scales`, as GPTQ and AWQ have.

Most checkpoints store all modules alike. In others, single modules have settings of their own, by
their exact names or by regexes, of which the first that matches counts.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Protocol

from msgspec import Struct

from octavo.loader import Checkpoint
from octavo.loader.errors import CorruptFileError, UnsupportedFormatError, quote
from octavo.loader.tensor_type import I32
from octavo.quant.module_names import MAX_PATTERNS, NameRegex
from octavo.quant.weight_format import MAX_GROUP, Settings, StoredMatrix

WORD_BITS = 32
PARTS = ("qweight", "qzeros", "scales")


class ModuleFormat(Protocol):
    """The format of one module's matrix."""

    def matrix(self, checkpoint: Checkpoint, module: str) -> StoredMatrix:
        """Return the matrix of a module whose three tensors exist."""


Rule = tuple[NameRegex, ModuleFormat | None]


class WordModules(Struct, frozen=True):
    """The format of a checkpoint: that of each module, by its name.

    Modules for which it has none are stored plainly.
    """

    usual: ModuleFormat
    named: Mapping[str, ModuleFormat | None] = {}
    rules: tuple[Rule, ...] = ()

    def format_of(self, module: str) -> ModuleFormat | None:
        if module in self.named:
            return self.named[module]
        for regex, format_ in self.rules:
            if regex.matches(module):
                return format_
        return self.usual

    def find(self, checkpoint: Checkpoint) -> Iterator[StoredMatrix]:
        for module in _modules(checkpoint):
            format_ = self.format_of(module)
            if format_ is not None:
                yield format_.matrix(checkpoint, module)

    def unused(self, checkpoint: Checkpoint, expected: Container[str]) -> Iterator[str]:
        """Yield biases of zeros, which some tools write for modules that have none."""
        for module in _modules(checkpoint):
            bias = f"{module}.bias"
            if bias in checkpoint and bias not in expected and not checkpoint.read(bias).any():
                yield bias


def _modules(checkpoint: Checkpoint) -> Iterator[str]:
    for name in checkpoint.tensors:
        module = name.removesuffix(".qweight")
        if module == name:
            continue
        infos = [checkpoint.tensors.get(f"{module}.{part}") for part in PARTS]
        if any(info is None or len(info.shape) != 2 for info in infos):
            continue
        if all(info is not None and info.type == I32 for info in infos[:2]):
            yield module


def make_rule(pattern: str, format_: ModuleFormat | None, *, anywhere: bool = False) -> Rule:
    """Return the rule of a regex, which a part of a name may match or its beginning must."""
    regex = pattern.removeprefix("^")
    return NameRegex(f".*(?:{regex})" if anywhere and regex == pattern else regex), format_


def check_count(num_regexes: int, key: str) -> None:
    """Refuse more regexes than a checkpoint needs, since each is compared with each name."""
    if num_regexes > MAX_PATTERNS:
        raise UnsupportedFormatError(
            f"quantization_config: {key} has {num_regexes:,} regexes; at most {MAX_PATTERNS:,} "
            "are read"
        )


def read_group(settings: Settings, bits: int, method: str, key: str = "group_size") -> int | None:
    """Read the number of inputs that share a scale; None: all of a row."""
    group = settings.values.get(key, 128)
    is_size = type(group) is int and 0 < group <= MAX_GROUP and group * bits % WORD_BITS == 0
    if not is_size and group != -1:
        raise UnsupportedFormatError(
            f"{method}'s {key} must be -1 (a row) or a number of inputs that fill words of 32 "
            f"bits, at most {MAX_GROUP:,}, is {quote(str(group))}"
        )
    return group if is_size else None


def contradiction(checkpoint: Checkpoint, tensor: str, setting: str) -> CorruptFileError:
    """Return the error for a tensor that is not as a setting says, on which its type depends."""
    return CorruptFileError(
        f"contradicts the quantization_config, in which {setting}",
        path=checkpoint.info(tensor).path,
        tensor=tensor,
        advice="correct the config.json",
    )
