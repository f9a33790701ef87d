"""Short convolutions: each channel sums its own last few inputs, and keeps these as its state."""

from __future__ import annotations

from octavo.layers.kv_spec import KVLayer, KVSpec
from octavo.layers.linear import Linear
from octavo.layers.module import Batch, Module, Part, TensorDeclaration, Value

# A state is kept for later sequences at every so-manieth block end.
_CHECKPOINT_BLOCKS = 4


class ShortConvolution(KVLayer):
    """A causal convolution of each channel with a kernel of its own."""

    weight: Value
    bias: Value | None

    def __init__(self, channels: int, kernel: int, *, bias: bool = False) -> None:
        self.channels = channels
        self.kernel = kernel
        self.has_bias = bias

    def tensors(self) -> dict[str, TensorDeclaration]:
        split = Part("channels", self.channels)
        declared = {"weight": TensorDeclaration((self.channels, 1, self.kernel), split=split)}
        if self.has_bias:
            declared["bias"] = TensorDeclaration((self.channels,), split=split)
        return declared

    @property
    def kv_spec(self) -> KVSpec:
        return KVSpec("state", self.kernel - 1, self.channels, checkpoint_blocks=_CHECKPOINT_BLOCKS)

    def __call__(self, x: Value, batch: Batch) -> Value:
        return self.ops.convolve(x, self, batch)


class GatedConvolution(Module):
    """A short convolution between two gates, in place of attention."""

    def __init__(self, hidden: int, kernel: int, *, bias: bool = False) -> None:
        parts = tuple(Part(name, hidden) for name in ("before", "behind", "inner"))
        self.into = Linear(hidden, parts, bias=bias, shard="out")
        self.conv = ShortConvolution(hidden, kernel, bias=bias)
        self.out = Linear(hidden, hidden, bias=bias, shard="in")

    def __call__(self, x: Value, batch: Batch) -> Value:
        size = self.conv.channels
        before, behind, inner = self.ops.split(self.into(x), (size, size, size))
        return self.out(self.conv(before * inner, batch) * behind)
