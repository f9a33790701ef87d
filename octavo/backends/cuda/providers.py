"""The provider of each operation on a card, with the one reason for it: nothing else decides that.

Torch's operations run on every card, and are the meaning of all others; its products are cuBLAS's.
Kernels are written in Triton, and compute the operations of `KERNELS` where nothing speaks against
it. Products of FP8 are cuBLASLt's, by `_scaled_mm`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from octavo.program.listing import Attend, Instruction, Mixture

if TYPE_CHECKING:
    from octavo.backends.cuda.accelerator import Accelerator
    from octavo.backends.torch.adapters import TorchAdapter
    from octavo.backends.torch.weights import TorchExperts

log = logging.getLogger(__name__)

Provider = Literal["torch", "triton", "scaled_mm"]
# What kernels compute, by the operation of a listing or by a name of its own, as people call it.
KERNELS: Mapping[str, str] = {
    "Norm": "norms",
    "AddNorm": "norms of sums",
    "Gate": "gates",
    "Attention": "attention",
    "Experts": "experts",
    "Shrink": "adapters",
    "Gemm": "what adapters add to products",
    "Prepare": "rounding to FP8",
    "Draw": "draws",
    "Copy": "copies of blocks",
}
_ASKED = "kernels are asked for, and compute it"
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Of a head, filled up to a power of two. Tiles of wider ones do not fit the shared memory of cards
# of sm_89 and sm_120.
_MOST_HEAD_BYTES = 1024
LINE_BYTES = 16  # of a block of the cache, which a thread copies at once
_FP8_UNIT = 16  # outputs and inputs are multiples of it, as the instructions need


class Choice(NamedTuple):
    """The provider of an operation, and why it is that one."""

    operation: str
    provider: Provider
    reason: str

    @property
    def is_kernel(self) -> bool:
        return self.provider == "triton"


class Facts(NamedTuple):
    """The facts on which choices depend, beside the operation."""

    asks_for_kernels: bool  # cuda_kernels is "triton"
    compiles_kernels: bool  # Triton compiles for the card
    multiplies_eight_bits: bool  # the card has products of FP8
    dtype: str

    @property
    def has_kernels(self) -> bool:
        return self.asks_for_kernels and self.compiles_kernels

    @classmethod
    def of(cls, home: Accelerator, dtype: str, *, asks_for_kernels: bool) -> Facts:
        """Return the facts of a card."""
        return cls(asks_for_kernels, home.compiles_kernels, home.multiplies_eight_bits, dtype)


def select(operation: str, facts: Facts, i: Instruction | None = None) -> Choice:
    """Choose who computes an operation, or one instruction of it."""
    if operation not in KERNELS or (operation == "Gemm" and i is not None and i.low is None):
        return Choice(operation, "torch", "no kernel computes it")
    if not facts.asks_for_kernels:
        return Choice(operation, "torch", "kernels are not asked for (cuda_kernels)")
    if not facts.compiles_kernels:
        return Choice(operation, "torch", "Triton compiles for cards since sm_80")
    why = None
    if i is not None and i.attend is not None and operation == "Attention":
        why = _unlike_attention(i.attend, facts.dtype)
    elif i is not None and i.mixture is not None:
        why = _unlike_experts(i.mixture)
    return Choice(operation, "triton", _ASKED) if why is None else Choice(operation, "torch", why)


def select_adapter(adapter: TorchAdapter) -> Choice:
    """Choose who adds what an adapter makes of its rows, where kernels compute adapters."""
    only_adds = all(
        change.growth is change.bias is change.whole is change.whole_bias is None
        for change in adapter.products
    )
    if not only_adds:
        return Choice("Shrink", "torch", "magnitudes, biases or matrices of an adapter's own")
    return Choice("Shrink", "triton", _ASKED)


def select_copies(block_bytes: Sequence[int], facts: Facts) -> Choice:
    """Choose who copies blocks of a cache, of which each group has its size."""
    choice = select("Copy", facts)
    if choice.is_kernel and any(size % LINE_BYTES for size in block_bytes):
        return Choice("Copy", "torch", f"blocks are no multiples of {LINE_BYTES} bytes")
    return choice


def select_product(outputs: int, inputs: int, facts: Facts) -> Choice:
    """Choose who multiplies rows and weights of FP8, unless a trial of the card refuses it."""
    why = None
    if not facts.multiplies_eight_bits:
        why = "the card has no products of FP8, as those before sm_89"
    elif facts.dtype != "bfloat16":
        why = "products of FP8 are made in bfloat16"
    elif outputs % _FP8_UNIT or inputs % _FP8_UNIT:
        why = f"products of FP8 have multiples of {_FP8_UNIT} outputs and inputs"
    if why is not None:
        return Choice("products of FP8", "torch", why)
    return Choice("products of FP8", "scaled_mm", "the card multiplies FP8")


def report(instructions: Iterable[Instruction], facts: Facts) -> None:
    """Log what torch's operations compute in the place of kernels, once for each reason."""
    choices = (select(each.op, facts, each) for each in instructions if facts.has_kernels)
    for operation, provider, why in dict.fromkeys(choices):
        if operation in KERNELS and operation != "Gemm" and provider == "torch":
            log.info("%s: computed by torch's operations: %s", KERNELS[operation], why)


def _unlike_attention(layer: Attend, dtype: str) -> str | None:
    """Return what of an attention no kernel computes; None if one computes it."""
    unlike = {
        "latent rows": bool(layer.latent),
        "scores by distance": layer.distances is not None,
        "later positions": layer.both_ways,
        "skipped positions": bool(layer.skipped),
        f"heads of more than {_MOST_HEAD_BYTES} bytes": (
            _power_of_two(layer.head_dim) * _BYTES[dtype] > _MOST_HEAD_BYTES
        ),
    }
    return next((what for what, is_so in unlike.items() if is_so), None)


def _unlike_experts(mixture: Mixture) -> str | None:
    """Return what of a mixture no kernel computes; None if some compute it."""
    for experts in (mixture.gate_up, mixture.down):
        made = cast("TorchExperts", experts)
        if made.scales is not None:
            return "weights of eight bits"
        if made.kind != "float":
            return "rows that are rounded for products"
    return None


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
