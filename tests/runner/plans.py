"""Plans by hand, and runners over a stub of a backend to run them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo.backends.step import HostBatch
from octavo.core.plan import NewSlot, StepPlan, StepResult
from octavo.core.sampling_params import SamplingParams
from octavo.runner.model_runner import ModelRunner
from octavo.runner.speculate.proposer import Proposal, Turn
from tests.runner.tiny import VOCABULARY, StubBackend, make_config

GREEDY = SamplingParams(temperature=0)


def make_plan(**parts: Any) -> StepPlan:
    """Make a plan; chunks are (slot, start, count, samples)."""
    chunks = parts.pop("chunks", ())
    slots, starts, counts, samples = zip(*chunks, strict=True) if chunks else ((), (), (), ())
    usual: dict[str, Any] = dict.fromkeys(("freed", "opened", "copies", "new_blocks"), ())
    return StepPlan(
        step=parts.pop("step", 0),
        **{**usual, "drafts": (), **parts},
        slots=slots,
        starts=starts,
        counts=counts,
        samples=samples,
    )


def new_slot(slot: int, tokens: list[int], tables: Any, **fields: Any) -> NewSlot:
    sampling = fields.pop("sampling", GREEDY)
    num_prompt = fields.pop("num_prompt", len(tokens))
    fields.setdefault("lora", None)
    fields.setdefault("may_draft", True)
    return NewSlot(slot, f"r{slot}", array("i", tokens), num_prompt, tables, sampling, **fields)


def successor(batch: HostBatch) -> np.ndarray:
    """Compute the logits of a model that predicts the next higher token."""
    tokens = batch.token_ids[batch.logits_rows]
    return np.eye(VOCABULARY, dtype=np.float32)[(tokens + 1) % VOCABULARY]


def make_runner(logits: Any = successor, **settings: Any) -> tuple[ModelRunner, StubBackend]:
    stub = StubBackend(logits)
    backend: Any = stub  # it has only what the runner uses
    windows = (None, 5)  # two groups
    parts = {name: settings.pop(name, None) for name in ("proposer", "store", "adapters")}
    config = make_config(windows, **settings)
    return ModelRunner(backend, VOCABULARY, config, **parts), stub


def run(runner: ModelRunner, plan: StepPlan) -> StepResult:
    """Run a plan as a pipeline of depth 1 does."""
    return runner.submit(plan).collect()


class Fixed:
    """A proposer that returns fixed tokens, and records what it is shown."""

    most = 64

    def __init__(self, *drafts: int) -> None:
        self.drafts = drafts
        self.shown: list[tuple[int, list[int], int]] = []
        self.changes: list[tuple[str, int]] = []

    def open(self, new: NewSlot) -> None:
        self.changes.append(("open", new.slot))

    def free(self, slot: int) -> None:
        self.changes.append(("free", slot))

    def forget(self) -> None:
        pass

    def propose(self, turns: Sequence[Turn]) -> list[Proposal]:
        self.shown.extend((slot, tokens.tolist(), most) for slot, tokens, most in turns)
        return [Proposal(self.drafts) for _ in turns]
