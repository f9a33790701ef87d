"""The layers that models are declared with; a backend gives them their meaning.

A layer states its sizes, its options and its tensors, and computes with symbolic values. It does
not depend on ranks, dtypes, devices or quantisation: `octavo.models.build.bind` decides those. Its
`ops` are a recorder (`octavo/program`), which turns the model's forward pass into a listing.
"""

from octavo.layers.attention import (
    Attention,
    ContextAttention,
    MutualAttention,
    PagedAttention,
    QKVLinear,
    RelativeBias,
    SelfAttention,
)
from octavo.layers.block import Block, ParallelBlock, SandwichBlock, SequentialBlock
from octavo.layers.convolution import GatedConvolution, ShortConvolution
from octavo.layers.embedding import Embedding, PositionEmbedding, TypeEmbedding
from octavo.layers.encoder import Encoder, EncoderBlock, encoder_mlp, mutual_attention
from octavo.layers.features import (
    Context,
    FeatureRows,
    Features,
    HiddenStates,
    LastStates,
)
from octavo.layers.kv_spec import KVLayer, KVSpec
from octavo.layers.latent import HeadLinear, LatentAttention, LatentSelfAttention, LowRankLinear
from octavo.layers.linear import GateUpLinear, Linear, MatrixStack
from octavo.layers.mlp import MLP, GatedMLP
from octavo.layers.model import CausalLM, DraftBlock, Model
from octavo.layers.module import Batch, Module, Ops, Part, TensorDeclaration, Value
from octavo.layers.moe import DownLinear, ExpertMatrices, Routing, SparseMLP
from octavo.layers.norm import LayerNorm, RMSNorm
from octavo.layers.rope import Rope
from octavo.layers.spec import ExpertSpec, LatentSpec, ModelSpec
from octavo.layers.standard import (
    sandwich_block,
    standard_attention,
    standard_block,
    standard_mlp,
    standard_norm,
    standard_weights,
)
from octavo.layers.weight_names import (
    FirstOf,
    HeadRows,
    Slices,
    StoredTensor,
    WeightSource,
    grouped_rows,
)

__all__ = [
    "MLP",
    "Attention",
    "Batch",
    "Block",
    "CausalLM",
    "Context",
    "ContextAttention",
    "DownLinear",
    "DraftBlock",
    "Embedding",
    "Encoder",
    "EncoderBlock",
    "ExpertMatrices",
    "ExpertSpec",
    "FeatureRows",
    "Features",
    "FirstOf",
    "GateUpLinear",
    "GatedConvolution",
    "GatedMLP",
    "HeadLinear",
    "HeadRows",
    "HiddenStates",
    "KVLayer",
    "KVSpec",
    "LastStates",
    "LatentAttention",
    "LatentSelfAttention",
    "LatentSpec",
    "LayerNorm",
    "Linear",
    "LowRankLinear",
    "MatrixStack",
    "Model",
    "ModelSpec",
    "Module",
    "MutualAttention",
    "Ops",
    "PagedAttention",
    "ParallelBlock",
    "Part",
    "PositionEmbedding",
    "QKVLinear",
    "RMSNorm",
    "RelativeBias",
    "Rope",
    "Routing",
    "SandwichBlock",
    "SelfAttention",
    "SequentialBlock",
    "ShortConvolution",
    "Slices",
    "SparseMLP",
    "StoredTensor",
    "TensorDeclaration",
    "TypeEmbedding",
    "Value",
    "WeightSource",
    "encoder_mlp",
    "grouped_rows",
    "mutual_attention",
    "sandwich_block",
    "standard_attention",
    "standard_block",
    "standard_mlp",
    "standard_norm",
    "standard_weights",
]
