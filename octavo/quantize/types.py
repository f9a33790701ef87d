"""The types that `octavo quantize --to` takes, and the quantization_config of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from octavo.core.config import ConfigError
from octavo.nearest import nearest
from octavo.quantize.floats import Fp8, Mxfp4, Nvfp4
from octavo.quantize.integers import Integers
from octavo.quantize.packer import Packer

GROUP_SIZES = (32, 64, 128)  # those that vLLM's kernels have
_INT4_GROUP = 128


class Target(Struct, frozen=True):
    """A type to quantise to: how weights are packed, and what config.json says of them."""

    name: str
    format: str  # as compressed-tensors names it
    make: Callable[[int | None], Packer]  # from the size of groups, where it is chosen
    has_groups: bool = False  # their size can be chosen
    activations: dict[str, Any] | None = None  # to which activations are quantised; None: they stay

    def packer(self, group_size: int | None) -> Packer:
        """Return what packs weights; refuse a size of groups where none can be chosen."""
        if group_size is not None and not self.has_groups:
            grouped = " and ".join(each.name for each in TARGETS.values() if each.has_groups)
            raise ConfigError(
                f"--group-size is for {grouped}: {self.name} has scales of its own; leave it out"
            )
        return self.make(group_size)

    def config(self, packer: Packer, ignored: Sequence[str]) -> dict[str, Any]:
        """Return the quantization_config; the modules in `ignored` are stored as they are."""
        group = {
            "targets": ["Linear"],
            "weights": {**_args(packer.settings()), "dynamic": False},
            "input_activations": self.activations,
            "output_activations": None,
            "format": self.format,
        }
        return {
            "quant_method": "compressed-tensors",
            "format": self.format,
            "quantization_status": "compressed",
            "config_groups": {"group_0": group},
            "ignore": list(ignored),
            "kv_cache_scheme": None,
            "global_compression_ratio": None,
        }


def _args(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings of numbers with the keys that readers expect to be there."""
    return {"group_size": None, "block_structure": None, "actorder": None, **settings}


def _per_token(numbers: str) -> dict[str, Any]:
    """Return the settings of activations that are quantised while they are computed."""
    settings = {"num_bits": 8, "type": numbers, "symmetric": True, "strategy": "token"}
    return {**_args(settings), "dynamic": True}


TARGETS = {
    target.name: target
    for target in (
        Target(
            "w4a16",
            "pack-quantized",
            lambda size: Integers(4, size or _INT4_GROUP, is_packed=True),
            has_groups=True,
        ),
        Target(
            "w8a16",
            "pack-quantized",
            lambda size: Integers(8, size, is_packed=True),
            has_groups=True,
        ),
        Target(
            "w8a8",
            "int-quantized",
            lambda _: Integers(8, None, is_packed=False),
            activations=_per_token("int"),
        ),
        Target("fp8", "float-quantized", lambda _: Fp8(), activations=_per_token("float")),
        Target("nvfp4", "nvfp4-pack-quantized", lambda _: Nvfp4()),
        Target("mxfp4", "mxfp4-pack-quantized", lambda _: Mxfp4()),
    )
}


def target_of(name: str) -> Target:
    """Return a type by its name; refuse an unknown one."""
    folded = name.lower()
    if folded in TARGETS:
        return TARGETS[folded]
    known = ", ".join(TARGETS)
    near = nearest(folded, TARGETS)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ConfigError(
        f"--to {name}: there is no such type; {hint}there are: {known}; and for GGUF files those "
        "of GGUF, such as q4_k"
    )


def check_group_size(size: int | None) -> None:
    """Refuse a size of groups that no program has kernels for."""
    if size is not None and size not in GROUP_SIZES:
        raise ConfigError(
            f"--group-size {size} must be one of {', '.join(map(str, GROUP_SIZES))}, which other "
            "programs can compute with"
        )
