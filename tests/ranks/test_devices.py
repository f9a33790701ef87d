"""Ranks with devices of their own, as real processes: their text, their ends, what they refuse."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM
from octavo.core.config import ConfigError
from octavo.engine.ranks.devices import PROGRAM
from octavo.options.engine import EngineArguments
from octavo.options.speculation import SpeculativeConfig
from octavo.usable import choose_backend
from tests.ranks import small
from tests.ranks.followers import KIND, PROMPTS, SAMPLING, runs, wait_until
from tests.ranks.small import answers, write

DRAFTER = SpeculativeConfig("draft_model", model="drafter", num_speculative_tokens=2)
TIGHT = {name: value for name, value in small.TIGHT.items() if name != "num_threads"}
DEVICES: dict[str, Any] = {"device": "fake", "dtype": "float32"}


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", [KIND, "DeepseekV3ForCausalLM", "Lfm2ForCausalLM"])
def test_two_devices_answer_as_one(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts are cut, sequences preempted, prefixes found, and two steps are in flight."""
    monkeypatch.setattr(small, "TIGHT", TIGHT)
    model, found = write(tmp_path, kind), []
    for more in ({}, {"tensor_parallel_size": 2, "async_scheduling": True}):
        outputs, snapshot = answers(model, **DEVICES, **more)
        found.append([tokens for tokens, _, _ in outputs])
    assert found[0] == found[1]
    assert snapshot.num_preemptions > 0
    assert snapshot.num_cached_tokens > 0


@pytest.mark.slow
def test_the_end_of_a_rank_is_the_engines_and_is_named(tmp_path: Path) -> None:
    model = str(write(tmp_path, KIND))
    with LLM(model, **TIGHT, **DEVICES, tensor_parallel_size=2) as llm:
        ranks: Any = llm._model.engine.ranks
        assert llm._model.engine.config.arguments.tensor_parallel_form == "sums"
        (rank,) = (each.process.pid for each in ranks._followers)
        assert runs(rank, PROGRAM)
        os.kill(rank, signal.SIGKILL)
        wait_until(lambda: bool(ranks.reason))
        with pytest.raises(
            RuntimeError, match="rank 1 has ended: its process was ended by SIGKILL"
        ):
            llm.generate(PROMPTS, SAMPLING, use_tqdm=False)


@pytest.mark.slow
def test_a_norm_over_all_heads_is_refused(tmp_path: Path) -> None:
    model = str(write(tmp_path, "Olmo2ForCausalLM"))
    with pytest.raises(ConfigError, match=r"tensor_parallel_size=2: .*all its heads together"):
        LLM(model, **TIGHT, **DEVICES, tensor_parallel_size=2)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tensor_parallel_form": "outputs"}, "memory that all ranks share"),
        ({"enable_lora": True}, "enable_lora and .* adapters are not divided"),
        ({"speculative_config": DRAFTER}, "speculative_config and .* ngram and suffix work"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype='fp8' and .* not divided"),
        ({"fp8_activations": "dynamic"}, "fp8_activations='dynamic' and .* a scale of its own"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size=2 is a setting of the native"),
        ({"enable_expert_parallel": True}, "enable_expert_parallel=True is a setting of the"),
    ],
)
def test_what_devices_do_not_divide_is_refused_by_name(
    options: dict[str, Any], reason: str
) -> None:
    arguments = EngineArguments("model", **{"tensor_parallel_size": 2, **DEVICES, **options})
    with pytest.raises(ConfigError, match=reason):
        choose_backend(arguments, is_first=True)
