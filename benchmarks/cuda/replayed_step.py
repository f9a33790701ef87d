"""The host's part of a decode step that a card would replay as a graph, as JSON.

    python -m benchmarks.cuda.replayed_step [--steps 2000]

The device is the CPU, and its graphs do nothing: what is left is what Python does between the step
that it is given and the tokens that it returns, with the copies of the inputs and of the tokens.
The calls of a driver would be added to it: two copies, a launch and a wait.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from msgspec import structs
from torch import Tensor

from octavo.backends.cuda.accelerator import Graph
from octavo.backends.cuda.steady import Drawing
from octavo.backends.step import Draws, HostBatch, SlotSampling
from octavo.backends.torch.device import Array
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.models.llama import Llama
from tests.backends.cuda.on_fake import SIZE, CapturingBackend
from tests.gpu_blind.homes import Home, interpret
from tests.runner.tiny import RandomWeights, make_spec

SEQUENCES = (1, 32, 128)
CONTEXT = 1024
BLOCK_SIZE = 16
_Made = TypeVar("_Made")


class Nothing:
    """A graph that submits nothing."""

    def replay(self) -> None:
        pass


class Copied(NamedTuple):
    """Tensors that the host has had from the start."""

    arrays: list[Array]

    def done(self) -> bool:
        return True

    def wait(self) -> list[Array]:
        return self.arrays


class NoCard(Home):
    """A card whose memory is the host's and whose graphs do nothing."""

    def pinned(self, num_bytes: int) -> Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8)

    def begin_fetch(self, tensors: Sequence[Tensor]) -> Copied:
        return Copied([each.numpy().copy() for each in tensors])

    def capture(
        self, run: Callable[[], _Made], beside: Graph | None = None
    ) -> tuple[Nothing, _Made]:
        return Nothing(), run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=2000)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    print(json.dumps({str(count): microseconds(count, steps) for count in SEQUENCES}, indent=1))


def microseconds(sequences: int, steps: int) -> dict[str, float]:
    """Measure steps of so many sequences; return the median and the ninth decile of their times."""
    backend, batch, draws = made(sequences)
    times = []
    for step in range(steps):
        moved = batch._replace(positions=batch.positions + np.int32(step % BLOCK_SIZE))
        begun = time.perf_counter()
        result = backend._begin(moved, draws)
        if isinstance(result, Drawing):
            backend._drawings.finish(result)
        times.append((time.perf_counter() - begun) * 1e6)
    deciles = statistics.quantiles(times[steps // 10 :], n=10)
    return {"median": round(deciles[4], 1), "ninth decile": round(deciles[8], 1)}


def made(sequences: int) -> tuple[CapturingBackend, HostBatch, Draws]:
    """Make a backend with so many open slots, and the first step of their texts."""
    model = Llama(make_spec((None, None)))
    backend = CapturingBackend(NoCard(interpret))
    bind(model, backend, RandomWeights())
    backend.prepare(model, place_layers(model), BLOCK_SIZE)
    backend._size = structs.replace(SIZE, sequences=sequences, positions=2 * CONTEXT)
    backend.make_cache(4)
    slots, prompt = np.arange(sequences, dtype=np.int32), np.full(CONTEXT, 3, np.int32)
    sampling = partial(SlotSampling, prompt, CONTEXT, temperature=0.8)
    opened = tuple((slot, sampling(seed=slot)) for slot in range(sequences))
    backend._sampler.change(Draws((), opened, slots, slots))
    table = np.zeros((sequences, CONTEXT // BLOCK_SIZE + 1), np.int32)
    batch = HostBatch(
        np.full(sequences, -1, np.int32),
        np.full(sequences, CONTEXT, np.int32),
        np.arange(sequences + 1, dtype=np.int32),
        (table,),
        slots,
        slots=slots,
    )
    return backend, batch, Draws((), (), slots, slots)


if __name__ == "__main__":
    main()
