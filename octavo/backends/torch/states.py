"""Short convolutions over a sequence's rows, whose last inputs are kept as states.

The entry of a block holds the state after the block's last position so far. A chunk begins with
the state of the position before it, and writes one for each of its blocks that has an entry. States
have the inputs as they are, so that a sum has the same bits wherever a chunk begins.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from octavo.backends.torch.attention import TorchBatch
from octavo.program.listing import Convolve


def convolve(x: Tensor, layer: Convolve, batch: TorchBatch) -> Tensor:
    """Sum each channel's last inputs, oldest first, and keep them for the next chunk."""
    group, index = layer.place
    states, size = batch.buffers.layers[group][index].keys, batch.buffers.block_size
    weights = layer.weight.float().reshape(x.shape[1], -1).T  # [kernel, channels]
    kept, out = len(weights) - 1, torch.empty_like(x)
    host = batch.host
    for owner, (start, stop) in enumerate(pairwise(host.row_starts.tolist())):
        first, table = int(host.positions[start]), host.tables[group][owner]
        before = states.new_zeros(kept, x.shape[1])
        if first:
            before = states[int(table[(first - 1) // size])]
        inputs = torch.cat((before, x[start:stop].float()))
        count = stop - start
        total = inputs[:count] * weights[0]
        for tap in range(1, len(weights)):
            total = total + inputs[tap : tap + count] * weights[tap]
        out[start:stop] = total if layer.bias is None else total + layer.bias.float()
        for entry in range(first // size, (first + count - 1) // size + 1):
            if block := int(table[entry]):
                end = min(count, (entry + 1) * size - first)
                states[block] = inputs[end : end + kept]
    return out
