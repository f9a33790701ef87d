"""The sizes and collectives of a bound model's layers on one of several ranks."""

from __future__ import annotations

from msgspec.structs import replace

from octavo.distributed.context import ParallelContext
from octavo.layers import (
    Attention,
    Embedding,
    HeadLinear,
    LayerNorm,
    Linear,
    Model,
    Part,
    RelativeBias,
    ShortConvolution,
)
from octavo.layers.moe import ExpertMatrices
from octavo.quant.shard import column_run, part_run, row_runs


def narrow(model: Model, context: ParallelContext) -> None:
    """Set every layer's sizes to the rank's own, and the collective that completes its result."""
    if context.ranks == 1:
        return
    for _, module in model.walk():
        match module:
            case Linear():
                _narrow_linear(module, context)
            case Attention():
                module.heads = len(part_run(Part("heads", module.heads), context))
                kv_heads = Part("KV heads", module.kv_heads, replicable=True)
                module.kv_heads = len(part_run(kv_heads, context))
            case LayerNorm() if len(module.shape) == 2:
                heads = Part("heads", module.shape[0], replicable=True)
                module.shape = (len(part_run(heads, context)), module.shape[1])
            case Embedding():
                run = part_run(Part("vocabulary", module.vocabulary), context)
                module.first, module.vocabulary = run.start, len(run)
                module.collective = "sum"
            case ShortConvolution():
                module.channels = len(part_run(Part("channels", module.channels), context))
            case HeadLinear() | RelativeBias():
                module.heads = len(part_run(Part("heads", module.heads), context))
            case ExpertMatrices():
                module.ffn = len(part_run(Part("ffn", module.ffn), context))
                module.collective = "sum"
    if model.head is not None:
        model.head.collective = "gather"


def _narrow_linear(linear: Linear, context: ParallelContext) -> None:
    rows, columns = row_runs(linear, context), column_run(linear, context)
    if linear.shard == "in":
        linear.collective = "sum"
    linear.parts = tuple(
        replace(part, rows=len(run)) for part, run in zip(linear.parts, rows, strict=True)
    )
    linear.outputs = sum(map(len, rows))
    linear.inputs = len(columns)
