"""The plan: which tensors become which, in which files, from the headers of a float model alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from msgspec import Struct

from octavo.core.config import ConfigError
from octavo.layers import (
    Embedding,
    Model,
    Module,
    PositionEmbedding,
    SparseMLP,
    StoredTensor,
    TypeEmbedding,
)
from octavo.loader import Checkpoint, ModelFiles
from octavo.loader.errors import UnsupportedFormatError, quote
from octavo.loader.safetensors import TYPES
from octavo.loader.strict_json import read_object
from octavo.models.build import checked_needs
from octavo.models.load import OpenedModel, open_model
from octavo.models.needs import Need
from octavo.models.weights import named_as_declared, renamed
from octavo.quantize.methods import method_for
from octavo.quantize.packer import Packer, Part
from octavo.quantize.sites import Site, find_sites
from octavo.quantize.types import GROUP_SIZES, Target

MAX_SHARD_BYTES = 2_000_000_000  # a killed run keeps complete files, so they are not larger
_FLOATS = {"F64": "F32", "F32": "F32", "F16": "F16", "BF16": "BF16"}  # → the type of scales
_HEAD = "lm_head"


class Matrix(Struct, frozen=True):
    """A matrix that is quantised."""

    name: str  # of its tensor in the float model
    shape: tuple[int, int]
    scale_type: str

    @property
    def module(self) -> str:
        return self.name.removesuffix(".weight")

    @property
    def parent(self) -> str:
        """The module that this one is in; its matrices may be computed as one."""
        return self.module.rpartition(".")[0]


class Output(Struct, frozen=True):
    """A tensor of the result: a part of a matrix, or a tensor as it was."""

    name: str
    type: str
    shape: tuple[int, ...]
    source: Matrix | str
    part: Part | None = None

    @property
    def num_bytes(self) -> int:
        return TYPES[self.type].num_bytes(self.shape)


class Plan(Struct, frozen=True):
    """The decisions that are made before the first weight is read."""

    source: ModelFiles
    checkpoint: Checkpoint
    target: Target
    packer: Packer
    config: Mapping[str, Any]  # of the result
    matrices: tuple[Matrix, ...]
    shards: tuple[tuple[Output, ...], ...]
    method: str = "rtn"
    text: str = ""  # whose activations the method needs
    sites: tuple[Site, ...] = ()  # where factors move

    @property
    def num_bytes(self) -> int:
        """The size of all tensors of the result."""
        return sum(each.num_bytes for shard in self.shards for each in shard)

    def peers(self) -> Mapping[str, list[Matrix]]:
        """Return the matrices by their parents."""
        found: dict[str, list[Matrix]] = {}
        for matrix in self.matrices:
            found.setdefault(matrix.parent, []).append(matrix)
        return found


def make_plan(
    source: ModelFiles,
    target: Target,
    group_size: int | None = None,
    shard_bytes: int = MAX_SHARD_BYTES,
    method: str = "rtn",
    text: str = "",
) -> Plan:
    """Plan the quantisation of a model; refuse one that cannot be quantised."""
    _refuse_gguf(source)
    packer = target.packer(group_size)
    moves = method_for(method, target).family is not None
    opened = open_model(source)
    config = read_object(source.directory / "config.json")
    if opened.quantization is not None:
        raise UnsupportedFormatError(
            f"the weights are quantised already ({quote(opened.quantization)})",
            path=source.directory,
            advice="name the float model that they were made from",
        )
    names = {renamed(each, opened.model.renames): each for each in opened.checkpoint.tensors}
    matrices, embeddings = _find_matrices(opened, names)
    _check_groups(matrices, packer, target)
    settings = target.config(packer, _ignored(opened, matrices, embeddings))
    outputs = list(_outputs(opened.checkpoint, matrices, packer))
    _check_names(outputs, source)
    sites = find_sites(opened.model, names, matrices) if moves else ()
    if moves and not sites:
        raise UnsupportedFormatError(
            f"{opened.architecture} has no norms or gated MLPs whose factors --method {method} "
            "could move into quantised matrices",
            path=source.directory,
            advice="use --method gptq or rtn",
        )
    return Plan(
        source,
        opened.checkpoint,
        target,
        packer,
        {**config, "quantization_config": settings},
        tuple(matrices.values()),
        tuple(_shards(outputs, shard_bytes)),
        method,
        text,
        sites,
    )


def _refuse_gguf(source: ModelFiles) -> None:
    if source.is_gguf:
        raise UnsupportedFormatError(
            "a GGUF file becomes types of GGUF only, such as q4_k or q8_0",
            path=source.weights[0],
            advice="choose one of those, or name the safetensors of the float model",
        )


def _find_matrices(
    opened: OpenedModel, names: Mapping[str, str]
) -> tuple[dict[str, Matrix], set[str]]:
    """Return the matrices to quantise, and the names of embeddings, as the checkpoint names them.

    They are the projections of the blocks. The head and the routers of experts stay as they are:
    both are small beside the rest, and errors in them change most.
    """
    model = opened.model
    kept = list(_kept_projections(model))
    found: dict[str, Matrix] = {}
    embeddings: set[str] = set()
    for need in checked_needs(model, named_as_declared(opened.weights, model)):
        stored = [names[name] for source in need.sources for name in need.names(source)]
        if isinstance(need.module, Embedding | PositionEmbedding | TypeEmbedding):
            embeddings.update(stored)
        if _is_projection(need) and not any(need.module is each for each in kept):
            for name in stored:
                found[name] = _matrix(opened.checkpoint, name)
    if not found:
        raise UnsupportedFormatError(
            f"{opened.architecture} has no matrices that compressed-tensors can store: its "
            "projections are kept with the inputs first, or all experts in one tensor",
            path=opened.checkpoint.path,
            advice="quantise it at load instead: octavo serve MODEL --quantization int8",
        )
    return found, embeddings


def _kept_projections(model: Model) -> Iterator[Module]:
    """Yield the head, and the routers of experts."""
    if model.head is not None:
        yield model.head
    for _, module in model.walk():
        if isinstance(module, SparseMLP):
            yield module.router
            if module.shared_gate is not None:
                yield module.shared_gate


def _is_projection(need: Need) -> bool:
    """Return whether a tensor is the weight of a projection that is stored [out, in]."""
    matrix = need.matrix
    if matrix is None or matrix[1] != "weight":
        return False
    return not any(isinstance(each, StoredTensor) and each.transposed for each in need.sources)


def _matrix(checkpoint: Checkpoint, name: str) -> Matrix:
    info = checkpoint.info(name)
    if info.type.name not in _FLOATS:
        raise UnsupportedFormatError(
            f"is of the type {info.type.name}, and only floats of 16 bits and more are quantised",
            path=info.path,
            tensor=name,
            advice="name the float model that it was made from",
        )
    if len(info.shape) != 2 or not name.endswith(".weight"):
        raise UnsupportedFormatError(
            f"has the shape {list(info.shape)}: compressed-tensors cannot store the matrices of "
            "several experts in one tensor",
            path=info.path,
            tensor=name,
            advice="quantise the model at load instead: octavo serve MODEL --quantization int8",
        )
    outputs, inputs = info.shape
    return Matrix(name, (outputs, inputs), _FLOATS[info.type.name])


def _check_groups(matrices: Mapping[str, Matrix], packer: Packer, target: Target) -> None:
    """Refuse matrices whose inputs do not divide into groups, with a size that would fit all."""
    inputs = {matrix.shape[1]: matrix.name for matrix in reversed(list(matrices.values()))}
    for count, name in sorted(inputs.items()):
        if count % packer.group == 0:
            continue
        fitting = [size for size in GROUP_SIZES if all(each % size == 0 for each in inputs)]
        others = "fp8 and w8a8 have none"
        advice = f"--group-size {fitting[-1]} fits, and {others}" if fitting else others
        if not target.has_groups:
            advice = others
        raise ConfigError(
            f"{target.name} has groups of {packer.group} inputs, and {count} of {quote(name)} are "
            f"no multiple of it; {advice}"
        )


def _ignored(
    opened: OpenedModel, matrices: Mapping[str, Matrix], embeddings: set[str]
) -> list[str]:
    """Return the modules that stay as they are, which readers would take for quantised ones."""
    modules = [
        name.removesuffix(".weight")
        for name, info in opened.checkpoint.tensors.items()
        if name.endswith(".weight") and len(info.shape) == 2
        if name not in matrices and name not in embeddings
    ]
    head = [_HEAD] if opened.spec.has_head else []
    return list(dict.fromkeys([*head, *modules]))


def _outputs(
    checkpoint: Checkpoint, matrices: Mapping[str, Matrix], packer: Packer
) -> Iterator[Output]:
    for name, info in checkpoint.tensors.items():
        matrix = matrices.get(name)
        if matrix is None:
            yield Output(name, info.type.name, info.shape, name)
            continue
        for part in packer.parts(matrix.shape, matrix.scale_type):
            named = f"{matrix.module}.{part.ending}"
            yield Output(named, part.type, part.shape, matrix, part)


def _check_names(outputs: Iterable[Output], source: ModelFiles) -> None:
    """Refuse a model that has tensors by the names of the result's scales."""
    seen: set[str] = set()
    for output in outputs:
        if output.name in seen:
            raise UnsupportedFormatError(
                "is there already, so that the model is quantised, whatever its config.json says",
                path=source.directory,
                tensor=output.name,
                advice="name the float model that it was made from",
            )
        seen.add(output.name)


def _shards(outputs: Iterable[Output], most_bytes: int) -> Iterator[tuple[Output, ...]]:
    """Divide the tensors among files, in their order; a matrix's parts stay together."""
    shard: list[Output] = []
    size = 0
    for together in _together(outputs):
        added = sum(each.num_bytes for each in together)
        if shard and size + added > most_bytes:
            yield tuple(shard)
            shard, size = [], 0
        shard += together
        size += added
    yield tuple(shard)


def _together(outputs: Iterable[Output]) -> Iterator[list[Output]]:
    for _, group in groupby(outputs, lambda output: output.source):
        yield list(group)


def num_values(matrices: Iterable[Matrix]) -> int:
    """Return how many values the matrices have together."""
    return sum(math.prod(matrix.shape) for matrix in matrices)
