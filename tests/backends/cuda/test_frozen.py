"""Numbers of the host that are frozen into a graph show in the tokens of its replays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from octavo.backends.base import Ints
from octavo.backends.cuda.filters import Filters
from octavo.backends.cuda.sampler import DeviceSampler
from octavo.backends.step import Draws, HostBatch, StepOutput
from tests.backends.cuda.on_fake import (
    CapturingBackend,
    WholeSpans,
    make_capturing,
)
from tests.backends.cuda.test_graphs import BLOCKS, COUNTS, KINDS, outputs_of, reference
from tests.runner.tiny import FULL, VOCABULARY


class _Seen:
    """The positions that a step has written last, as a program might remember them."""

    last: Ints = np.zeros(1, np.int32)


def frozen_positions(patch: pytest.MonkeyPatch) -> None:
    """Plant positions that are numbers of the host when the graph is captured."""
    takes = CapturingBackend._replayed

    def seen(self: CapturingBackend, graphs: Any, batch: HostBatch, draws: Draws) -> StepOutput:
        _Seen.last = batch.positions
        return takes(self, graphs, batch, draws)

    def wrong(batch: WholeSpans, at: Tensor) -> None:
        right(batch, at)
        for place, position in enumerate(_Seen.last.tolist()):
            batch.item_positions[place, 0] = position

    right = WholeSpans.prepare
    patch.setattr(CapturingBackend, "_replayed", seen)
    patch.setattr(WholeSpans, "prepare", wrong)


def frozen_temperature(patch: pytest.MonkeyPatch) -> None:
    """Plant draws whose temperature is a number."""

    def wrong(
        self: Any, logits: Tensor, temperatures: Tensor, keys: Tensor, filters: Filters
    ) -> Tensor:
        return right(self, logits, torch.full_like(temperatures, 0.8), keys, filters)

    right = DeviceSampler.best_of_rows
    patch.setattr(DeviceSampler, "best_of_rows", wrong)


def frozen_filters(patch: pytest.MonkeyPatch) -> None:
    """Plant draws that keep one token."""

    def wrong(
        self: Any, logits: Tensor, temperatures: Tensor, keys: Tensor, filters: Filters
    ) -> Tensor:
        frozen = filters._replace(counts=torch.ones_like(filters.counts))
        return right(self, logits, temperatures, keys, frozen)

    right = DeviceSampler.best_of_rows
    patch.setattr(DeviceSampler, "best_of_rows", wrong)


@pytest.mark.parametrize(
    "plant",
    [frozen_positions, frozen_temperature, frozen_filters],
    ids=lambda plant: plant.__name__,
)
def test_a_frozen_number_shows_in_the_tokens(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison of replayed steps with the reference's finds what a capture cannot see."""
    expected = [each.tokens for each in outputs_of(reference(), KINDS, COUNTS)]
    plant(monkeypatch)
    found = [each.tokens for each in outputs_of(make_capturing(FULL, BLOCKS, 4), KINDS, COUNTS)]
    assert found[0] == expected[0]
    assert found != expected
    assert all(0 <= token < VOCABULARY for tokens in found for (token,) in tokens)
