"""What models are made of: declarations that a backend gives a meaning to.

A layer says what it is (sizes, options, which tensors it wants) and what it does with values. It
never hears of ranks, dtypes, devices or quantisation; `octavo.models.build.bind` settles those
and hands every layer its `ops`, the backend's operations.
"""

from octavo.layers.attention import PagedAttention, QKVLinear, SelfAttention
from octavo.layers.block import Block, ParallelBlock, SandwichBlock, SequentialBlock
from octavo.layers.embedding import Embedding, PositionEmbedding
from octavo.layers.linear import GateUpLinear, Linear
from octavo.layers.mlp import MLP, GatedMLP
from octavo.layers.model import CausalLM
from octavo.layers.module import Batch, Module, Ops, Part, TensorDeclaration, Value
from octavo.layers.moe import Routing, SparseMLP
from octavo.layers.norm import LayerNorm, RMSNorm
from octavo.layers.rope import Rope
from octavo.layers.weight_names import AnyOf, From, Pieces, grouped_rows

__all__ = [
    "MLP",
    "AnyOf",
    "Batch",
    "Block",
    "CausalLM",
    "Embedding",
    "From",
    "GateUpLinear",
    "GatedMLP",
    "LayerNorm",
    "Linear",
    "Module",
    "Ops",
    "PagedAttention",
    "ParallelBlock",
    "Part",
    "Pieces",
    "PositionEmbedding",
    "QKVLinear",
    "RMSNorm",
    "Rope",
    "Routing",
    "SandwichBlock",
    "SelfAttention",
    "SequentialBlock",
    "SparseMLP",
    "TensorDeclaration",
    "Value",
    "grouped_rows",
]
