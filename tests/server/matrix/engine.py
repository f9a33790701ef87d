"""A stand-in model in a process of its own, which a file holds in the middle of an answer.

Its factory is `make`; the model's name has the paths: `matrix?gate=PATH&held=PATH`. While the gate
exists, no step ends that gives an answer its third token, or its only one, or a prompt its vector;
a byte in `held` says that one waits. That file is mapped, since an engine may open none once it
runs.
"""

from __future__ import annotations

import mmap
import time
from pathlib import Path
from urllib.parse import parse_qsl

from msgspec import structs

from octavo.core.config import CoreConfig
from octavo.core.plan import StepPlan, StepResult
from octavo.engine.process import CoreAndFacts, Wrap
from octavo.model_facts import PoolingFacts
from octavo.options.engine import EngineArguments
from tests.engine.over_runner import engine_over_runner
from tests.server.engine import CLASSES, VOCABULARY, WIDTH, ChainRunner

FACTORY = f"{__name__}:make"
POOLING = PoolingFacts(
    tasks=("generate", "embed", "classify"),
    width=WIDTH,
    labels=tuple(f"class {index}" for index in range(CLASSES)),
)


class HeldRunner(ChainRunner):
    """A runner that waits in the middle of answers while a file exists."""

    def __init__(self, gate: Path, held: Path) -> None:
        super().__init__()
        self._gate = gate
        with held.open("r+b") as file:
            self._held = mmap.mmap(file.fileno(), 1)

    def run(self, plan: StepPlan) -> StepResult:
        """Compute one step of the plan; deliver its results once the gate is open."""
        result = super().run(plan)
        if any(self._is_in_the_middle(number) for number in plan.slots):
            while self._gate.exists():
                self._held[0] = 1
                time.sleep(0.001)
        return result

    def _is_in_the_middle(self, number: int) -> bool:
        slot = self.slots[number]
        sampling = slot.new.sampling
        num_before = min(2, sampling.max_tokens - 1)
        return sampling.is_about_prompt or len(slot.tokens) - slot.new.num_prompt > num_before


def make(arguments: EngineArguments, wrap: Wrap, cache_key: bytes) -> CoreAndFacts:
    """Build the engine: a factory for `octavo.engine.process`."""
    paths = dict(parse_qsl(arguments.model.partition("?")[2]))
    runner = HeldRunner(Path(paths["gate"]), Path(paths["held"]))
    config = CoreConfig(
        num_blocks=512,
        max_model_len=256,
        block_size=4,
        max_num_seqs=64,
        max_num_batched_tokens=128,
        max_loras=2,
    )
    built = engine_over_runner("tiny", arguments, wrap, cache_key, runner.run, config, VOCABULARY)
    return built._replace(facts=structs.replace(built.facts, pooling=POOLING))
