"""The choice of the CUDA backend, what it says where it cannot run, and a whole engine on it."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.backends.cuda import kind as module
from octavo.backends.cuda.kind import KIND, UNTRIED
from octavo.backends.select import NoBackendError, select
from octavo.cli.doctor import backends
from octavo.core.config import ConfigError
from tests.api.tiny import make_model

SPEC = find_spec("torch")
NO_CUDA = "cuda: Optional[str] = None\n"


@pytest.fixture
def cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory that stands for the driver's list of cards."""
    folder = tmp_path / "gpus"
    folder.mkdir()
    monkeypatch.setattr(module, "_CARDS", folder)
    monkeypatch.setattr(module, "_DRIVERS", ())
    return folder


def install_torch(monkeypatch: pytest.MonkeyPatch, folder: Path, version: str) -> None:
    """Let a build of torch be found whose version.py is this."""
    (folder / "version.py").write_text(version)
    (folder / "utils").mkdir(exist_ok=True)
    maker = folder / "utils" / "backend_registration.py"
    maker.write_text(module._FAKE_MAKER)

    class Spec:
        origin = str(folder / "__init__.py")

    monkeypatch.setattr(module, "find_spec", lambda name: Spec)


def test_it_is_chosen_only_if_it_is_named(
    cards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_torch(monkeypatch, tmp_path, 'cuda: Optional[str] = "13.0"\n')
    for number in range(2):
        (cards / str(number)).mkdir()
    assert select().entry.name != "cuda"
    if not torch.cuda.is_available():  # the driver may be there, and torch may see no card
        with pytest.raises(NoBackendError, match=r"device='cuda:1' cannot be used: PyTorch .* no"):
            KIND.at("cuda:1").memory()
    assert select(device="cuda:1").entry == select("cuda").entry
    assert select(device="fake").entry.device == "fake"
    (tmp_path / "utils" / "backend_registration.py").write_text("")
    with pytest.raises(NoBackendError, match="makes no fake devices"):
        select(device="fake")
    with pytest.raises(NoBackendError, match="there is no card 2 among 2"):
        select(device="cuda:2")
    found = {each.what: each.found for each in backends()}
    assert found["cuda backend"].endswith(f"{UNTRIED} (docs/gpu.md)")
    assert "Triton" in found["cuda kernels"]


def test_what_is_missing_is_named(
    cards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NoBackendError, match="cuda: no NVIDIA card is found: install its driver"):
        select(device="cuda")
    (cards / "0").mkdir()
    install_torch(monkeypatch, tmp_path, NO_CUDA)
    with pytest.raises(NoBackendError, match=r"built without CUDA: .* 'octavo\[cuda\]'"):
        select("cuda")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    for device in ("cuda", "fake"):
        assert KIND.at(device).caps().refusal == "PyTorch is not installed"


@pytest.mark.slow
def test_float16_is_computed_on_a_device_and_replaced_on_the_cpu(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = str(make_model(tmp_path))
    with LLM(model, device="fake", dtype="half") as llm:
        assert llm._model.engine.facts.dtype == "float16"
        assert llm.generate([[3, 4, 5]])[0].outputs[0].token_ids
    assert "is computed in" not in caplog.text
    with LLM(model, backend="torch", dtype="half") as llm:
        assert llm._model.engine.facts.dtype == "bfloat16"
    assert "dtype=float16 is computed in bfloat16" in caplog.text


def test_kernels_are_refused_where_nothing_can_run_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = str(make_model(tmp_path))
    with pytest.raises(ConfigError, match="cuda_kernels"):
        LLM(model, backend="torch", cuda_kernels="triton")
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "triton" else SPEC)
    with pytest.raises(ConfigError, match="Triton, which is not installed: pip install triton"):
        LLM(model, device="fake", cuda_kernels="triton")
    monkeypatch.setattr(module, "find_spec", lambda name: SPEC)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ConfigError, match="needs Triton's interpreter: set TRITON_INTERPRET=1"):
        LLM(model, device="fake", cuda_kernels="triton")


@pytest.mark.slow
def test_an_engine_on_the_fake_device_gives_the_references_tokens(tmp_path: Path) -> None:
    """Prompts in chunks, with prefixes that are cached, in a cache too small for all of them."""
    model = str(make_model(tmp_path))
    prompts = [[3, 4, 5, 6], list(range(10, 60)), [*range(10, 50), 7], [7, 8, 9] * 9]
    usual = SamplingParams(max_tokens=9, seed=1, ignore_eos=True)
    sampling = [
        replace(usual, temperature=0.0),
        replace(usual, temperature=0.9),
        replace(usual, temperature=1.1, top_p=0.9),
        replace(usual, temperature=0.7, repetition_penalty=1.2),
    ]
    texts = []
    sizes: dict[str, Any] = {"max_num_batched_tokens": 32, "num_gpu_blocks_override": 8}
    for arguments in ({"backend": "torch"}, {"device": "fake"}):
        with LLM(model, dtype="float32", **sizes, **arguments) as llm:
            outputs = [llm.generate(prompts, sampling) for _ in range(2)][-1]
            texts.append([each.outputs[0].token_ids for each in outputs])
            facts = llm._model.engine.facts
    assert texts[0] == texts[1]
    assert facts.device == "fake"
    assert facts.memory_bytes["step"] > 0


def test_a_share_of_memory_is_of_the_cards(tmp_path: Path) -> None:
    """A thousandth of its four GiB, and the part that an engine leaves to others."""
    model = str(make_model(tmp_path))
    with pytest.raises(ConfigError, match=r"are needed .* and 516\.1 MiB are free"):
        LLM(model, device="fake", gpu_memory_utilization=0.001)
