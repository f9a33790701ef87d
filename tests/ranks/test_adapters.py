"""Adapters of ranks: tokens and log-probabilities are bit by bit those of one process."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo import LLM, SamplingParams
from octavo.backends.native.ranks.messages import LeadingBackend
from tests.ranks.adapters import SETTINGS, answers, requests_of, write_all
from tests.ranks.followers import wait_until
from tests.ranks.small import PROMPTS, TIGHT, write

pytestmark = pytest.mark.slow
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


# tests/ranks/every_adapter.py has more.
def test_ranks_answer_with_adapters_as_one_process(tmp_path: Path) -> None:
    """Pairs, magnitudes, tables and whole matrices, of more adapters than fit at once."""
    model = write(tmp_path, "LlamaForCausalLM")
    adapters = write_all(model, tmp_path / "adapters")
    expected = answers(model, adapters)
    assert answers(model, adapters, tensor_parallel_size=3) == expected
    assert len(set(map(str, expected))) == len(expected)
    plain = answers(model, [])
    assert [expected[0], expected[len(adapters) + 1]] == plain


def test_a_rank_that_dies_while_an_adapter_loads_ends_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rank waits for the rows of the other one, which are never written."""
    model = write(tmp_path, "LlamaForCausalLM")
    magnitudes = requests_of(write_all(model, tmp_path / "adapters"))[3]
    read = LeadingBackend.read_rows
    pids: list[int] = []

    def kill_and_read(self: LeadingBackend, *place: Any) -> NDArray[np.float32]:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        if pids:
            assert self.ranks is not None
            wait_until(lambda: bool(self.ranks and self.ranks.reason))
        return read(self, *place)

    monkeypatch.setattr(LeadingBackend, "read_rows", kill_and_read)
    with LLM(str(model), **{**TIGHT, **SETTINGS}, tensor_parallel_size=2) as llm:
        pids += [each.process.pid for each in llm._model.engine.ranks._followers]
        with pytest.raises(RuntimeError, match=r"rank 1 has ended: .* SIGKILL"):
            llm.generate(PROMPTS[1], GREEDY, use_tqdm=False, lora_request=magnitudes)
