"""The fake device refuses what a card would refuse, or would wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from octavo.backends.cuda.fake.accelerator import FakeAccelerator
from octavo.backends.cuda.fake.tensor import DEVICE, DeviceError, FakeTensor
from octavo.backends.torch import experts, ops
from octavo.backends.torch.attention import TorchBatch
from octavo.backends.torch.interpreter import MEANINGS
from octavo.backends.torch.run import Run
from octavo.program.listing import Instruction
from tests.backends.cuda.on_fake import make_backend
from tests.backends.cuda.steps import one_row
from tests.runner.tiny import FULL, latent

WAITS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "int": lambda x: int(x[0, 0]),
    "bool": lambda x: bool((x > 0).all()),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "unique": lambda x: torch.unique(x),
    "equal": lambda x: torch.equal(x, x),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu", non_blocking=True),
}
MIXED: dict[str, Callable[[Tensor], Any]] = {
    "sum": lambda x: x + torch.ones(3),
    "product": lambda x: x @ torch.ones(3, 1),
    "rows": lambda x: x[torch.tensor([0, 1])],
    "cat": lambda x: torch.cat((x, torch.ones(2, 3))),
    "write": lambda x: x.index_put_((torch.tensor([0]),), torch.ones(3)),
}


@pytest.fixture
def accelerator() -> FakeAccelerator:
    return FakeAccelerator()


def small(accelerator: FakeAccelerator) -> Tensor:
    (x,) = accelerator.upload([np.arange(6, dtype=np.float32).reshape(2, 3) - 2])
    assert isinstance(x, FakeTensor)
    assert x.device == DEVICE
    return x


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_is_refused_in_a_step_and_noted_elsewhere(
    accelerator: FakeAccelerator, name: str
) -> None:
    with accelerator.working():
        x = small(accelerator)
        accelerator.log.clear()
        WAITS[name](x)
        assert "wait" in {note.what for note in accelerator.log}
    with accelerator.step(), pytest.raises(DeviceError, match="waits for the device"):
        WAITS[name](x)


@pytest.mark.parametrize("name", MIXED)
def test_tensors_of_two_devices_are_refused(accelerator: FakeAccelerator, name: str) -> None:
    with accelerator.working():
        x = small(accelerator)
        with pytest.raises(DeviceError, match="is on the host"):
            MIXED[name](x)


def test_an_upload_from_pageable_memory_is_refused_in_a_step(accelerator: FakeAccelerator) -> None:
    with accelerator.working():
        torch.ones(3).to(accelerator.device)
        assert [note.what for note in accelerator.log] == ["pageable upload"]
    with accelerator.step():
        with pytest.raises(DeviceError, match="pageable memory"):
            torch.ones(3).to(accelerator.device)
        small(accelerator)  # from pinned memory


def test_values_flow_and_views_share_memory(accelerator: FakeAccelerator) -> None:
    with accelerator.working():
        x = small(accelerator)
        x[0].fill_(7)
        part = x[:, 1:]
        part += 1
        same, doubled = accelerator.fetch([x, x * 2])
    np.testing.assert_array_equal(same, [[7, 8, 8], [1, 3, 4]])
    np.testing.assert_array_equal(doubled, 2 * same)


def test_the_memory_of_tensors_is_counted_until_they_go(accelerator: FakeAccelerator) -> None:
    free = accelerator.memory().available
    with accelerator.working():
        before = accelerator.forget_peak()
        x = torch.zeros(1000, dtype=torch.float64, device=accelerator.device)
        view = x[10:]
        assert accelerator.memory().available == free - 8000
        del x
        assert accelerator.memory().available == free - 8000
        del view
    assert accelerator.memory().available == free
    assert accelerator.peak_bytes() - before == 8000


def item_in_a_step(patch: pytest.MonkeyPatch) -> str:
    """Plant an operation that reads a number of the device."""

    def wrong(run: Run, i: Instruction) -> None:
        float(run[i.x].sum())
        right(run, i)

    right = MEANINGS["Norm"]
    patch.setattr("octavo.backends.cuda.backend.CudaBackend._meanings", {**MEANINGS, "Norm": wrong})
    return "waits for the device"


def host_tensor_in_a_step(patch: pytest.MonkeyPatch) -> str:
    """Plant a constant that is made on the host."""
    right = ops.rotate

    def wrong(x: Tensor, tables: tuple[Tensor, Tensor], *others: Any) -> Tensor:
        cos, sin = tables
        return right(x, (cos * torch.ones(1, 1, 1), sin), *others)

    patch.setattr(ops, "rotate", wrong)
    return "is on the host"


def the_references_batch(patch: pytest.MonkeyPatch) -> str:
    """Plant the reference's batch, whose tiles ask whether masks are needed."""
    patch.setattr("octavo.backends.cuda.backend.CudaBackend._batches", TorchBatch)
    return "waits for the device"


def the_references_experts(patch: pytest.MonkeyPatch) -> str:
    """Plant the reference's experts, which ask who was chosen."""
    patch.setattr("octavo.backends.cuda.meanings.mix", experts.mix)
    return "FakeTensor"  # torch refuses by itself to make a list of such numbers


@pytest.mark.parametrize(
    "plant",
    [item_in_a_step, host_tensor_in_a_step, the_references_batch, the_references_experts],
    ids=lambda plant: plant.__name__,
)
def test_planted_faults_are_caught(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = make_backend(FULL, 8, 4, latent)
    backend.forward(one_row(backend))
    message = plant(monkeypatch)
    backend = make_backend(FULL, 8, 4, latent)
    with pytest.raises((DeviceError, NotImplementedError, RuntimeError), match=message):
        backend.forward(one_row(backend))
