"""Binding of a declared model to a backend and a checkpoint.

For each tensor that a layer declares, binding finds its sources in the checkpoint
(octavo.models.needs), reads the share of this rank (octavo.models.assemble), and sets what the
backend makes of it. All names and shapes are checked before anything is read, so that a wrong
checkpoint fails at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from octavo.backends.base import Backend
from octavo.distributed.context import ALONE, ParallelContext
from octavo.layers import CausalLM, Linear, PagedAttention, Value
from octavo.layers.moe import ExpertMatrices
from octavo.models.assemble import read_matrices, read_values
from octavo.models.checkpoint_weights import RenamedWeights, Weights
from octavo.models.needs import Need, expand, find_needs
from octavo.models.share import narrow
from octavo.quant.shard import ShardError


def bind(
    model: CausalLM, backend: Backend, weights: Weights, context: ParallelContext = ALONE
) -> None:
    """Give every layer its tensors, and narrow it to the share of its rank."""
    check_ranks(model, context)
    if model.renames:
        weights = RenamedWeights(weights, model.renames)
    needs = list(find_needs(model, weights.shapes()))
    check(model, needs, weights)
    for need in needs:
        setattr(need.module, need.tensor, _value(need, backend, weights, context))
    if model.tied:
        model.head.weight = model.embed.weight
    narrow(model, context)


def _value(need: Need, backend: Backend, weights: Weights, context: ParallelContext) -> Value:
    """Make the backend's value of a tensor; a matrix keeps its stored rows."""
    if not need.is_matrix:
        return backend.parameter(read_values(need, weights, context))
    layer = need.module if need.matrix is None else need.matrix[0]
    read = read_matrices(need, weights, context)
    if isinstance(need.module, Linear):
        need.module.columns = read.columns
    if isinstance(need.module, ExpertMatrices):
        return backend.experts(read.matrices, layer)
    return backend.matrix(read.matrices[0], layer)


def check_ranks(model: CausalLM, context: ParallelContext) -> None:
    """Refuse a model that cannot be split over ranks."""
    for path, module in model.walk():
        if context.ranks > 1 and isinstance(module, PagedAttention) and module.norm_whole:
            raise ShardError(
                f"{path}: this model normalises all its heads together, but each of "
                f"{context.ranks} ranks would have only some of them; use one rank"
            )


def check(model: CausalLM, needs: Sequence[Need], weights: Weights) -> None:
    """Compare the needed tensors with those in the checkpoint, before anything is read."""
    expected: dict[str, tuple[int, ...]] = {}
    for need in needs:
        for source, shape in zip(need.sources, need.shapes(), strict=True):
            expected.update(dict.fromkeys(need.names(source), shape))
    available = weights.shapes()
    ignored = model.ignored
    if model.tied:
        head = expand(model.weights()["head"], ".weight", "", available)
        ignored = (*ignored, *(source.name for source in head))
    extra = [
        name
        for name in available
        if name not in expected and any(fnmatchcase(name, pattern) for pattern in ignored)
    ]
    weights.check(expected, extra)
