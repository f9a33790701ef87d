"""Draws with the noise of the CPU to the bit: the device bounds scores, the host settles them.

Vulkan has no logarithm in double precision. In float32 the device finds the tokens whose score may
be the largest, nearly always a single one, and the host compares these by doubles.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.vulkan.device import Device, Launch, Memory
from benchmarks.vulkan.emit import TOKENS_A_PART
from benchmarks.vulkan.sources import Constant, shader, shader_of_noise
from octavo.backends.base import Ints
from octavo.backends.torch.sampling import noise

MOST = 16  # tokens of a row that come back; the host draws from the whole row if there are more
# Bounds of the errors of float32: of the noise, and of logit / temperature and the sum. WGSL's
# logarithm may be wrong by 2^-21 between 1/2 and 2 and by 3 ulp elsewhere.
ERROR, RELATIVE_ERROR = 4e-5, 4e-7
_LEAST = -3e38


class Drawer:
    """A drawer of tokens for rows of logits on the device."""

    def __init__(self, device: Device, logits: Memory, rows: int, vocabulary: int) -> None:
        self._device, self._logits, self._vocabulary = device, logits, vocabulary
        parts = -(-vocabulary // TOKENS_A_PART)
        self._keys, self._inverses = device.memory(4 * rows), device.memory(rows)
        self.scores, floors = device.memory(2 * rows * vocabulary), device.memory(rows * parts)
        self._chosen = device.memory(rows * (1 + 2 * MOST))
        sizes: dict[str, Constant] = {"VOCABULARY": vocabulary, "PARTS": parts, "LEAST": _LEAST}
        bound = shader_of_noise(
            "screen_scores", **sizes, ERROR=ERROR, RELATIVE_ERROR=RELATIVE_ERROR
        )
        memories = [logits, self._keys, self._inverses, self.scores, floors]
        self._launches: list[Launch] = [
            device.launch("screen_scores", bound, memories, lambda rows: (parts, rows, 1)),
            device.launch(
                "screen_chosen",
                shader("screen_chosen", **sizes, MOST=MOST),
                [logits, self.scores, floors, self._chosen],
                lambda rows: (rows, 1, 1),
            ),
        ]
        self.settled = 0  # rows in which the host had to compare
        self.fetched = 0  # rows in which it needed all logits

    def draw(self, keys: Sequence[tuple[int, int]], temperatures: Sequence[float]) -> Ints:
        """Draw a token for each of the first rows; -1 where no score is a number."""
        rows = len(keys)
        self._device.write(self._keys, np.array(keys, np.uint64).reshape(-1).view(np.uint32))
        inverses = (1.0 / np.array(temperatures)).astype(np.float32)
        self._device.write(self._inverses, inverses.view(np.uint32))
        self._device.submit(self._launches, rows)
        width = 1 + 2 * MOST
        chosen = self._device.read(self._chosen, rows * width).reshape(rows, width)
        tokens = np.zeros(rows, np.int32)
        for row, (count, *_) in enumerate(chosen.tolist()):
            if not count:
                tokens[row] = -1
                continue
            if count > MOST:
                self.fetched += 1
                whole = self._device.read(self._logits, (row + 1) * self._vocabulary)
                ids, bits = np.arange(self._vocabulary), whole[row * self._vocabulary :]
            else:
                self.settled += count > 1
                pairs = chosen[row, 1:][: 2 * count].reshape(count, 2)
                pairs = pairs[pairs[:, 0].argsort()]
                ids, bits = pairs[:, 0].astype(np.int64), np.ascontiguousarray(pairs[:, 1])
            scores = bits.view(np.float32).astype(np.float64) / temperatures[row]
            scores += noise.gumbel([keys[row]], noise.spread(ids))[0]
            tokens[row] = ids[scores.argmax()]
        return tokens
