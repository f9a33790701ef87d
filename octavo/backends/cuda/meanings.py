"""The operations whose form in the reference would make the host wait for the device.

What ranks exchange stays on their devices.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from octavo.backends.torch.experts import Layer, gated_product
from octavo.backends.torch.interpreter import MEANINGS, Meaning
from octavo.backends.torch.run import Run
from octavo.backends.torch.weights import TorchExperts
from octavo.program.listing import Instruction, Mixture, Op


def _experts(run: Run, i: Instruction) -> None:
    assert i.mixture is not None
    run[i.out] = mix(run[i.x], run[i.y], run[i.chosen], i.mixture)


def mix(x: Tensor, weights: Tensor, chosen: Tensor, mixture: Mixture) -> Tensor:
    """Add up the outputs of each row's chosen experts, in the order of their numbers.

    Every expert computes every row, since the host does not know who was chosen: right, and slow.
    """
    assert isinstance(mixture.gate_up, TorchExperts)
    assert isinstance(mixture.down, TorchExperts)
    gate_up = Layer(mixture.gate_up, mixture.gate_up_bias)
    down = Layer(mixture.down, mixture.down_bias)
    y = torch.zeros_like(x)
    for expert in range(len(mixture.gate_up.values)):
        is_chosen = chosen == expert
        inner = gated_product(gate_up, x, expert, mixture.activation)
        factors = weights.masked_fill(~is_chosen, 0).sum(-1, keepdim=True)
        added = y + down.product(inner, expert) * factors
        y = torch.where(is_chosen.any(-1, keepdim=True), added, y)
    return y


def _all_reduce(run: Run, i: Instruction) -> None:
    total = run.others.all_reduce(run[i.x])
    run[i.out] = total if i.y is None else run[i.y] + total


def _all_gather(run: Run, i: Instruction) -> None:
    run[i.out] = run.others.all_gather(run[i.x])


DEVICE_MEANINGS: Mapping[Op, Meaning] = {
    **MEANINGS,
    "Experts": _experts,
    "AllReduce": _all_reduce,
    "AllGather": _all_gather,
}
