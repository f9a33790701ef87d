"""Checkpoints of compressed-tensors, whose groups of settings each target some modules.

`config_groups` has groups of settings with `targets`: names of modules, regexes of names (`re:`),
and the classes "Linear", which means each matrix that is stored in the group's format, and
"Embedding". A module has the settings of the group that targets it most exactly. `ignore` lists
modules that are stored as they are. The kinds of weights are

- type int, 2 to 8 bits: module_integers.py, packed or as bytes, W8A8's too;
- type float, 8 bits: fp8.py; 4 bits: nvfp4.py (groups of 16) and mxfp4.py (groups of 32).

Of activations one thing is used: bytes with a scale a row whose activations are bytes too (W8A8)
become rows of a type that says so. Scales of activations are computed anew for each of them, so
that static ones are left unread; so is what the settings say of the KV cache.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from functools import partial
from typing import Any

from msgspec import Struct

from octavo.loader import Checkpoint
from octavo.loader.errors import UnsupportedFormatError, quote
from octavo.quant.methods.fp8 import Fp8, block_size
from octavo.quant.methods.module_integers import IntegerSettings
from octavo.quant.methods.module_kinds import ModuleFp8, ModuleIntegers, Nvfp4, PackedMxfp4
from octavo.quant.methods.mxfp4 import GROUP as MX_GROUP
from octavo.quant.methods.nvfp4 import GROUP as NV_GROUP
from octavo.quant.module_names import NamePatterns
from octavo.quant.weight_format import MAX_GROUP, Settings, StoredMatrix, unsupported, unused_scales

WeightKind = Nvfp4 | PackedMxfp4 | ModuleFp8 | ModuleIntegers

# The kinds of weights that a format may hold; without one, the weights' own settings decide.
_FORMATS: Mapping[str, tuple[str, ...]] = {
    "pack-quantized": ("int",),
    "int-quantized": ("int",),
    "float-quantized": ("fp8",),
    "naive-quantized": ("int", "fp8"),
    "nvfp4-pack-quantized": ("nvfp4",),
    "mxfp4-pack-quantized": ("mxfp4",),
    "mixed-precision": ("int", "fp8", "nvfp4", "mxfp4"),
}
_DENSE = "dense"  # stored as they are
_LINEAR, _EMBEDDING = "Linear", "Embedding"
_CLASS = re.compile(r"[A-Z]\w*")


class Group(Struct, frozen=True):
    """The modules that a group of settings is for, and the kind of their weights."""

    targets: NamePatterns
    has_linear: bool  # targets the class Linear
    has_embedding: bool
    kind: WeightKind | None  # None: stored as they are


class CompressedTensors(Struct, frozen=True):
    """The format, with the settings of one checkpoint."""

    groups: tuple[Group, ...]
    ignore: NamePatterns

    def find(self, checkpoint: Checkpoint) -> Iterator[StoredMatrix]:
        for name in checkpoint.tensors:
            module, _, part = name.rpartition(".")
            if part not in ("weight", "weight_packed"):
                continue
            kind = self.kind_of(module)
            matrix = None if kind is None else kind.matrix(checkpoint, module)
            if matrix is not None:
                yield matrix

    def kind_of(self, module: str) -> WeightKind | None:
        """Return the kind of a module's weights; None if they are stored as they are.

        A name precedes a regex, and a regex the name of a class.
        """
        if self.ignore.match(module):
            return None
        found = next((each for each in self.groups if each.targets.has(module)), None)
        if found is None:
            found = next((each for each in self.groups if each.targets.match(module)), None)
        if found is None:
            is_embedding = "embed" in module.rpartition(".")[2]
            for each in self.groups:
                if each.has_embedding if is_embedding else each.has_linear:
                    return each.kind
        return None if found is None else found.kind

    def unused(self, checkpoint: Checkpoint, expected: Container[str]) -> Iterator[str]:
        return unused_scales(checkpoint)


def read_compressed_tensors(settings: Settings) -> CompressedTensors:
    """Read the settings of quant_method "compressed-tensors"."""
    values = settings.values
    _refuse_transformed(values)
    groups = values.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise unsupported("config_groups", groups, "groups of settings")
    default = settings.string("format", "mixed-precision")
    return CompressedTensors(
        tuple(_read_group(f"config_groups.{name}", each, default) for name, each in groups.items()),
        NamePatterns(values.get("ignore"), "ignore"),
    )


def _refuse_transformed(values: Mapping[str, Any]) -> None:
    """Refuse weights that are sparse, or that need a transform of their inputs."""
    sparse = values.get("sparsity_config")
    if isinstance(sparse, Mapping) and sparse.get("format", _DENSE) != _DENSE:
        structure = str(sparse.get("sparsity_structure"))
        raise UnsupportedFormatError(
            f"sparsity_config: weights of the format {quote(str(sparse['format']))} (sparsity "
            f"{quote(structure)}) are not supported",
            advice="use a model without sparsity: the unquantised one, one quantised to int4 "
            "(W4A16) or FP8, or a GGUF file",
        )
    transform = values.get("transform_config")
    if isinstance(transform, Mapping) and transform.get("config_groups"):
        raise UnsupportedFormatError(
            "transform_config: weights that need transforms of their inputs are not supported",
            advice="use a model that was quantised without transforms, or a GGUF file",
        )


def _read_group(key: str, group: object, default: str) -> Group:
    if not isinstance(group, Mapping):
        raise unsupported(key, group, "an object with targets and weights")
    targets = group.get("targets")
    patterns = NamePatterns(targets, f"{key}.targets")
    form, weights = group.get("format") or default, group.get("weights")
    classes = {each for each in targets or () if _CLASS.fullmatch(each)}
    others = classes - {_LINEAR, _EMBEDDING}
    if others and weights is not None:
        supported = f"{_LINEAR}, {_EMBEDDING}, names of modules, and regexes that begin with re:"
        raise unsupported(f"{key}.targets", min(others), supported)
    read = partial(Group, patterns, _LINEAR in classes, _EMBEDDING in classes)
    if form == _DENSE or weights is None:
        return read(None)
    if not isinstance(form, str) or form not in _FORMATS:
        raise unsupported(f"{key}.format", form, ", ".join((*_FORMATS, _DENSE)))
    if not isinstance(weights, Mapping):
        raise unsupported(f"{key}.weights", weights, "an object")
    name, kind = _read_weights(f"{key}.weights", weights, group.get("input_activations"))
    if name not in _FORMATS[form]:
        numbers = f"{weights.get('type')}, {weights.get('num_bits')} bits"
        fitting = ", ".join(each for each, kinds in _FORMATS.items() if name in kinds)
        raise unsupported(f"{key}.format", form, f"{fitting} with these weights ({numbers})")
    return read(kind)


def _read_weights(
    key: str, weights: Mapping[str, Any], activations: object
) -> tuple[str, WeightKind]:
    """Return a kind of weights by its name, from the settings of a group's weights."""
    bits, numbers = weights.get("num_bits", 8), weights.get("type", "int")
    strategy, group = weights.get("strategy"), weights.get("group_size")
    if strategy is None:
        strategy = "tensor" if group is None else "channel" if group == -1 else "group"
    symmetric = weights.get("symmetric", True)
    if type(symmetric) is not bool:
        raise unsupported(f"{key}.symmetric", symmetric, "true, false")
    if numbers == "int":
        takes_int8 = isinstance(activations, Mapping) and _is_int8(activations)
        return "int", _read_integers(key, weights, strategy, symmetric, takes_int8)
    if numbers != "float":
        raise unsupported(f"{key}.type", numbers, "int, float")
    if not symmetric:
        raise unsupported(f"{key}.symmetric", symmetric, "true with type float")
    if bits == 8:
        if strategy not in ("tensor", "channel", "block"):
            raise unsupported(
                f"{key}.strategy", strategy, "tensor, channel, block with floats of 8 bits"
            )
        return "fp8", ModuleFp8(Fp8(_read_block(key, weights) if strategy == "block" else None))
    if bits != 4:
        raise unsupported(f"{key}.num_bits", bits, "4, 8 with type float")
    if strategy == "tensor_group" and group == NV_GROUP:
        return "nvfp4", Nvfp4()
    if strategy == "group" and group == MX_GROUP:
        return "mxfp4", PackedMxfp4()
    if strategy not in ("group", "tensor_group"):
        raise unsupported(f"{key}.strategy", strategy, "group, tensor_group with floats of 4 bits")
    size = NV_GROUP if strategy == "tensor_group" else MX_GROUP
    raise unsupported(f"{key}.group_size", group, f"{size} with the strategy {strategy}")


def _is_int8(activations: Mapping[str, Any]) -> bool:
    return (activations.get("num_bits", 8), activations.get("type", "int")) == (8, "int")


def _read_integers(
    key: str, weights: Mapping[str, Any], strategy: object, symmetric: bool, takes_int8: bool
) -> ModuleIntegers:
    bits, group = weights.get("num_bits", 8), weights.get("group_size")
    if type(bits) is not int or not 2 <= bits <= 8:
        raise unsupported(f"{key}.num_bits", bits, "2 to 8 with type int")
    if strategy not in ("tensor", "channel", "group"):
        raise unsupported(f"{key}.strategy", strategy, "tensor, channel, group with type int")
    if strategy != "group":
        group = None
    elif type(group) is not int or not 0 < group <= MAX_GROUP or group % 2:
        raise unsupported(f"{key}.group_size", group, f"even numbers up to {MAX_GROUP:,}")
    order = weights.get("actorder")
    if order not in (None, False, True, "weight", "static", "group", "dynamic"):
        raise unsupported(f"{key}.actorder", order, "null, weight, group")
    # With "weight", the order of the inputs was used in quantising alone.
    act_order = group is not None and order in (True, "group", "dynamic")
    return ModuleIntegers(
        IntegerSettings(bits, str(strategy), group, symmetric, act_order, takes_int8)
    )


def _read_block(key: str, weights: Mapping[str, Any]) -> tuple[int, int] | None:
    """Read the sizes of a block, which may be a text like "128x128"."""
    key, value = f"{key}.block_structure", weights.get("block_structure")
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}x[0-9]{1,9}", value):
        value = [int(size) for size in value.split("x")]
    if value is None:
        raise unsupported(key, value, "two sizes with the strategy block")
    return block_size(key, value)
