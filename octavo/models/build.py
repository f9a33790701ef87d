"""Binds a declared model to a backend and a checkpoint: every choice is made here, once.

For each tensor a layer declares: where it is in the checkpoint (the family's `weights`), which
slice of it this rank owns (octavo.quant.compose), and what the backend makes of it. Names and
shapes are checked before anything is read, so that a wrong checkpoint costs no time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.backends.base import Backend
from octavo.distributed.context import ALONE, ParallelContext
from octavo.layers import CausalLM, Embedding, Experts, From, Linear, Module
from octavo.layers.moe import ExpertMatrices
from octavo.layers.weights import WeightSource
from octavo.models.config import ConfigurationError
from octavo.models.weights import RenamedWeights, Weights
from octavo.quant.compose import Run, column_run, row_runs, stored_slices
from octavo.quant.scheme import BIAS, PLAIN

Floats = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Need:
    """One tensor of one layer, and what it is made of."""

    module: Module
    tensor: str
    shape: tuple[int, ...]
    sources: tuple[From, ...]  # one, or one a part, stacked along the output


def bind(
    model: CausalLM, backend: Backend, weights: Weights, context: ParallelContext = ALONE
) -> None:
    """Give every layer its operations and its tensors."""
    if model.renames:
        weights = RenamedWeights(weights, model.renames)
    needs = list(find_needs(model, weights.shapes()))
    check(model, needs, weights)
    for _, module in model.walk():
        module.ops = backend.ops
    for need in needs:
        array = assemble(need, weights.read, context)
        setattr(need.module, need.tensor, backend.parameter(array))
    if model.tied:
        model.head.weight = model.embed.weight


def find_needs(model: CausalLM, available: Mapping[str, object]) -> Iterable[Need]:
    """Every declared tensor with its sources; optional ones that are absent are set to None."""
    table = model.weights()
    for path, module in model.walk():
        for tensor, declared in module.tensors().items():
            if model.tied and module is model.head and tensor == "weight":
                continue
            sources = tuple(_sources(path, tensor, table))
            if declared.optional and sources[0].name not in available:
                setattr(module, tensor, None)
                continue
            yield Need(module, tensor, declared.shape, sources)


def _sources(path: str, tensor: str, table: Mapping[str, WeightSource]) -> Iterable[From]:
    """A layer's name and tensor, looked up: whole name first, then without its last word."""
    stem, _, word = tensor.rpartition("_")
    for key, suffix in (
        (f"{path}.{tensor}", ""),
        (path, f".{tensor}"),
        (f"{path}.{stem}", f".{word}"),
    ):
        pattern = ".".join("*" if part.isdigit() else part for part in key.split("."))
        source = table.get(pattern)
        if source is not None:
            number = next((part for part in key.split(".") if part.isdigit()), "")
            yield from _expand(source, suffix, number)
            return
    raise ConfigurationError(f"{path}.{tensor} has no place in the checkpoint: a defect of ours")


def _expand(source: WeightSource, suffix: str, number: str) -> Iterable[From]:
    match source:
        case str():
            yield From(source.replace("*", number) + suffix)
        case From():
            name = source.name.replace("*", number) + suffix
            yield From(name, source.rows, source.transposed)
        case Experts():
            for name in source.names:
                yield From(name.replace("*", number) + suffix)
        case _:
            for part in source:
                yield from _expand(part, suffix, number)


# checking


def check(model: CausalLM, needs: Sequence[Need], weights: Weights) -> None:
    """Compare what is needed with what is there, before anything is read."""
    expected: dict[str, tuple[int, ...]] = {}
    for need in needs:
        for source, shape in zip(need.sources, _source_shapes(need), strict=True):
            for name in _expert_names(source.name, need):
                expected[name] = shape
    ignored = model.ignored
    if model.tied:
        ignored = (*ignored, *(f"{name}.weight" for name in _names(model.weights()["head"])))
    extra = [
        name
        for name in weights.shapes()
        if name not in expected and any(fnmatchcase(name, pattern) for pattern in ignored)
    ]
    weights.check(expected, extra)


def _names(source: WeightSource) -> tuple[str, ...]:
    return tuple(part.name for part in _expand(source, "", ""))


def _expert_names(name: str, need: Need) -> Iterable[str]:
    if "@" not in name:
        return (name,)
    assert isinstance(need.module, ExpertMatrices), f"{name}: only experts are numbered with @"
    return [name.replace("@", str(expert)) for expert in range(need.module.num_experts)]


def _source_shapes(need: Need) -> Iterable[tuple[int, ...]]:
    """The shape each source must have in the checkpoint."""
    by_expert = isinstance(need.module, ExpertMatrices) and "@" in need.sources[0].name
    shape = need.shape[1:] if by_expert else need.shape
    axis = 0 if by_expert or not isinstance(need.module, ExpertMatrices) else 1
    for source, rows in zip(need.sources, _stacked_rows(need, shape[axis]), strict=True):
        part = (*shape[:axis], rows, *shape[axis + 1 :])
        yield (*part[:-2], part[-1], part[-2]) if source.transposed else part


def _stacked_rows(need: Need, total: int) -> list[int]:
    """How many rows each source gives."""
    if len(need.sources) == 1:
        return [total]
    if isinstance(need.module, Linear):
        return [part.rows for part in need.module.parts]
    return [total // len(need.sources)] * len(need.sources)


# reading


def assemble(need: Need, read: Callable[[str], Floats], context: ParallelContext) -> Floats:
    """This rank's part of a tensor, stacked from its sources."""
    if isinstance(need.module, ExpertMatrices):
        return _assemble_experts(need, need.module, read, context)
    parts = [_in_order(read(source.name), source) for source in need.sources]
    if isinstance(need.module, Linear):
        return _shard_linear(np.concatenate(parts), need, need.module, context)
    whole = np.concatenate(parts)
    if isinstance(need.module, Embedding) and context.ranks > 1:
        rows = row_runs(Linear(1, len(whole), shard="out"), context)[0]
        whole = whole[rows.start : rows.stop]
    return np.ascontiguousarray(whole)


def _in_order(array: Floats, source: From) -> Floats:
    if source.transposed:
        array = np.swapaxes(array, -1, -2)
    if source.rows is not None:
        array = array[np.asarray(source.rows)]
    return array


def _shard_linear(whole: Floats, need: Need, linear: Linear, context: ParallelContext) -> Floats:
    tensor = BIAS if need.tensor == "bias" else PLAIN.tensors[0]
    columns = column_run(linear, context)
    pieces, at = [], 0
    for part, run in zip(linear.parts, row_runs(linear, context), strict=True):
        rows = Run(at + run.start, at + run.stop)
        pieces.append(whole[stored_slices(tensor, rows, columns)])
        at += part.rows
    joined = np.concatenate(pieces)
    if need.tensor == "bias" and linear.shard == "in" and context.rank:
        return np.zeros_like(joined)  # the ranks' results are added up: one of them brings it
    return np.ascontiguousarray(joined)


def _assemble_experts(
    need: Need, layer: ExpertMatrices, read: Callable[[str], Floats], context: ParallelContext
) -> Floats:
    """[expert, …], every expert's matrices split over the ranks like a dense MLP's."""
    if "@" in need.sources[0].name:
        whole = np.stack(
            [
                np.concatenate(
                    [
                        _in_order(read(source.name.replace("@", str(expert))), source)
                        for source in need.sources
                    ]
                )
                for expert in range(layer.num_experts)
            ]
        )
    else:
        parts = [read(source.name) for source in need.sources]
        parts = [
            np.stack([_in_order(part[expert], source) for expert in range(layer.num_experts)])
            for part, source in zip(parts, need.sources, strict=True)
        ]
        whole = np.concatenate(parts, axis=1)
    if context.ranks == 1:
        return np.ascontiguousarray(whole)
    share = Linear(layer.ffn, layer.ffn, shard="out")
    run = row_runs(share, context)[0]
    if need.tensor.startswith("gate_up"):
        gate, up = np.split(whole, 2, axis=1)
        return np.concatenate((gate[:, run.start : run.stop], up[:, run.start : run.stop]), axis=1)
    if need.tensor == "down_weight":
        return np.ascontiguousarray(whole[:, :, run.start : run.stop])
    return np.zeros_like(whole) if context.rank else whole
