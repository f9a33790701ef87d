"""Binding of a declared model to a backend and a checkpoint.

For each tensor that a layer declares, binding finds its sources in the checkpoint
(octavo.models.needs), reads the share of this rank (octavo.models.assemble), and sets what the
backend makes of it. All names and shapes are checked before anything is read, so that a wrong
checkpoint fails at once.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from octavo.backends.base import WeightMaker
from octavo.distributed.context import ALONE, ParallelContext
from octavo.layers import Attention, Linear, MatrixStack, Model, Value
from octavo.loader.errors import TensorMismatchError
from octavo.models.assemble import read_matrices, read_values
from octavo.models.needs import Need, expand, find_needs
from octavo.models.share import narrow
from octavo.models.weights import Weights, named_as_declared
from octavo.quant.shard import ShardError

# Names are collected up to so many for each tensor there is, and so many more: a message about a
# checkpoint that lacks most of its tensors then still names the first of them.
_MOST_TIMES = 8
_SPARE = 10_000


def bind(
    model: Model, backend: WeightMaker, weights: Weights, context: ParallelContext = ALONE
) -> None:
    """Give every layer its tensors, and narrow it to the share of its rank."""
    check_ranks(model, context)
    weights = named_as_declared(weights, model)
    needs = checked_needs(model, weights)
    for need in needs:
        setattr(need.module, need.tensor, _value(need, backend, weights, context))
    if model.tied and model.head is not None:
        model.head.weight = model.embed.weight
    narrow(model, context)


def _value(need: Need, backend: WeightMaker, weights: Weights, context: ParallelContext) -> Value:
    """Make the backend's value of a tensor; a matrix keeps its stored rows."""
    if not need.is_matrix:
        return backend.parameter(read_values(need, weights, context))
    layer = need.module if need.matrix is None else need.matrix[0]
    read = read_matrices(need, weights, context)
    if isinstance(need.module, Linear):
        need.module.columns = read.columns
    if isinstance(need.module, MatrixStack):
        return backend.experts(read.matrices, layer)
    return backend.matrix(read.matrices[0], layer)


def check_ranks(model: Model, context: ParallelContext) -> None:
    """Refuse a model that cannot be split over ranks."""
    for path, module in model.walk():
        if context.ranks > 1 and isinstance(module, Attention) and module.norm_whole:
            raise ShardError(
                f"{path}: this model normalises all its heads together, but each of "
                f"{context.ranks} ranks would have only some of them; use one rank"
            )


def checked_needs(model: Model, weights: Weights) -> list[Need]:
    """Return what the model needs, once its names and shapes agree with those of the checkpoint.

    Nothing is read. A damaged count of layers or experts is refused before a name is made for each.
    """
    available = weights.shapes()
    most = _MOST_TIMES * len(available) + _SPARE
    expected: dict[str, tuple[int, ...]] = {}
    needs = []
    for need in find_needs(model, available):
        needs.append(need)
        for source, shape in zip(need.sources, need.shapes(), strict=True):
            expected.update(dict.fromkeys(need.names(source), shape))
        if len(expected) > most:
            raise TensorMismatchError(
                f"the configuration describes a model of more than {most:,} tensors, and the "
                f"weights hold {len(available):,}",
                advice="the checkpoint is incomplete, or the configuration is not its own",
            )
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
    return needs
