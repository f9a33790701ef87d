"""Checkpoints of ModelOpt: FP8 and NVFP4, each module in the format that its tensors show.

`quant_algo` names the format of all modules, or MIXED_PRECISION, in which `quantized_layers` has
one for each. `exclude_modules` (or `ignore`) lists modules that are stored as they are, with * for
any characters. A module X has

- FP8: `X.weight` in F8_E4M3, and `X.weight_scale`, one for the matrix or one for each row;
- NVFP4: `X.weight` of bytes, each two numbers, and the scales that nvfp4.py describes.

Scales of activations and of the KV cache are left unread, as in compressed_tensors.py.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping

from msgspec import Struct

from octavo.loader import Checkpoint
from octavo.quant.methods.fp8 import Fp8
from octavo.quant.methods.module_kinds import ModuleFp8, Nvfp4
from octavo.quant.methods.nvfp4 import GROUP
from octavo.quant.module_names import NamePatterns
from octavo.quant.weight_format import Settings, StoredMatrix, unsupported, unused_scales

_FP8 = ModuleFp8(Fp8(None))
_NVFP4 = Nvfp4(is_modelopt=True)
ALGORITHMS: Mapping[str, Nvfp4 | ModuleFp8] = {
    "FP8": _FP8,
    "FP8_PER_CHANNEL_PER_TOKEN": _FP8,
    "NVFP4": _NVFP4,
}
_MIXED = "MIXED_PRECISION"


class ModelOpt(Struct, frozen=True):
    """The format, with the settings of one checkpoint."""

    kinds: tuple[Nvfp4 | ModuleFp8, ...]
    exclude: NamePatterns

    def find(self, checkpoint: Checkpoint) -> Iterator[StoredMatrix]:
        for name in checkpoint.tensors:
            module, _, part = name.rpartition(".")
            if part != "weight" or self.exclude.match(module):
                continue
            for kind in self.kinds:
                matrix = kind.matrix(checkpoint, module)
                if matrix is not None:
                    yield matrix

    def unused(self, checkpoint: Checkpoint, expected: Container[str]) -> Iterator[str]:
        return unused_scales(checkpoint)


def read_modelopt(settings: Settings) -> ModelOpt:
    """Read the settings of quant_method "modelopt", or those of a hf_quant_config.json."""
    values = settings.values
    inner = values.get("quantization")  # as hf_quant_config.json has it
    if isinstance(inner, Mapping):
        values = inner
    algorithm = values.get("quant_algo")
    if algorithm == _MIXED:
        layers = values.get("quantized_layers")
        if not isinstance(layers, Mapping):
            raise unsupported("quantized_layers", layers, "an object with a format for each name")
        kinds = [_kind(f"quantized_layers.{name}", layer) for name, layer in layers.items()]
    else:
        kinds = [_kind("", values)]
    patterns = values.get("exclude_modules", values.get("ignore"))
    if isinstance(patterns, list):
        patterns = [_as_regex(each) if isinstance(each, str) else each for each in patterns]
    distinct = tuple(kind for kind in (_FP8, _NVFP4) if kind in kinds)
    return ModelOpt(distinct, NamePatterns(patterns, "exclude_modules"))


def _kind(key: str, values: object) -> Nvfp4 | ModuleFp8:
    found = values if isinstance(values, Mapping) else {}
    algorithm, group = found.get("quant_algo"), found.get("group_size", GROUP)
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        supported = list(ALGORITHMS) if key else [*ALGORITHMS, _MIXED]
        raise unsupported(_inside(key, "quant_algo"), algorithm, ", ".join(supported))
    if algorithm == "NVFP4" and group != GROUP:
        raise unsupported(_inside(key, "group_size"), group, f"{GROUP} with NVFP4")
    return ALGORITHMS[algorithm]


def _inside(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _as_regex(pattern: str) -> str:
    """Return a name, or with * for any characters a regex of it."""
    if "*" not in pattern:
        return pattern
    return "re:" + ".*".join(re.escape(part) for part in pattern.split("*")) + "$"
