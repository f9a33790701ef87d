"""What the weights of a drafter become: a narrow format, on which no text depends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.core.config import ConfigError
from octavo.engine.drafting.drafter import (
    layout_of,
    open_with_drafter,
    record_programs,
    weight_files,
)
from octavo.models.build import bind
from octavo.options.engine import read_arguments
from octavo.resolve import make_bill
from octavo.usable import choose_backend
from tests.api.tiny import make_model
from tests.runner.speculate.dflash.files import make_dflash
from tests.runner.speculate.head_files import make_eagle3
from tests.runner.speculate.medusa.files import make_medusa

ENGINE: dict[str, Any] = {"backend": "native", "num_gpu_blocks_override": 60}


def drafter_bytes(directory: Path, drafter: Path, **options: Any) -> int:
    """Return the memory of a drafter's weights, as the engine counts it before it loads them."""
    keys = options.pop("keys", {})
    config = {"model": str(drafter), **keys}
    asked = read_arguments(str(directory), {**ENGINE, "speculative_config": config, **options})
    _, opened = open_with_drafter(asked)
    return make_bill(asked, opened, layout_of(opened)).drafter_bytes


def test_floats_become_eight_bits_unless_another_format_is_asked_for(tmp_path: Path) -> None:
    directory, head = make_model(tmp_path), make_eagle3(tmp_path / "head")
    usual = drafter_bytes(directory, head)
    named = {
        each: drafter_bytes(directory, head, keys={"quantization": each})
        for each in ("int8", "int4", "bf16", "fp8")
    }
    assert named["int4"] < named["int8"] == usual < named["bf16"]
    assert drafter_bytes(directory, head, cpu_weights="int4") == named["int4"]
    assert drafter_bytes(directory, head, cpu_weights="bf16") == usual
    exact = drafter_bytes(directory, head, dtype="float32")
    assert named["bf16"] < exact


@pytest.mark.parametrize("make", [make_eagle3, make_medusa, make_dflash, make_model])
@pytest.mark.parametrize("name", [None, "int4", "bf16"])
def test_as_much_memory_is_counted_as_is_taken(
    tmp_path: Path, make: Callable[[Path], Path], name: str | None
) -> None:
    drafter = tmp_path / "drafter"
    drafter.mkdir()
    directory, config = make_model(tmp_path), {"model": str(make(drafter)), "quantization": name}
    asked = read_arguments(str(directory), {**ENGINE, "speculative_config": config})
    _, opened = open_with_drafter(asked)
    layout = layout_of(opened)
    bill = make_bill(asked, opened, layout)
    backend = choose_backend(asked).kind.make(asked, weight_files(opened))
    bind(opened.model, backend, opened.weights)
    own = backend.weight_bytes
    assert own == pytest.approx(bill.weights_bytes, rel=0.01)  # vectors are aligned
    record_programs(opened, layout, backend, 16)
    backend.settle()
    assert backend.weight_bytes - own == pytest.approx(bill.drafter_bytes, rel=0.01)


@pytest.mark.slow
def test_no_text_depends_on_what_a_drafter_becomes(tmp_path: Path) -> None:
    directory, head = make_model(tmp_path), make_eagle3(tmp_path / "head")
    prompts = [{"prompt_token_ids": text} for text in ([5, 6, 7], [*range(20, 60)])]
    sampling = SamplingParams(temperature=0.8, seed=3, max_tokens=30, ignore_eos=True)
    found = []
    for keys in ({}, {"quantization": "bf16"}, {"quantization": "int4"}, {"quantization": "nf4"}):
        config = {"model": str(head), "num_speculative_tokens": 3, **keys}
        with LLM(str(directory), speculative_config=config, **ENGINE) as llm:
            outputs = llm.generate(prompts, sampling, use_tqdm=False)
            found.append([each.outputs[0].token_ids for each in outputs])
    with LLM(str(directory), **ENGINE) as llm:
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
    plain = [each.outputs[0].token_ids for each in outputs]
    assert found == [plain] * 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "torch"}, "is for the native backend, and the torch backend computes"),
        ({"dtype": "float32"}, "is not possible beside dtype='float32'"),
    ],
)
def test_a_format_is_refused_where_it_is_not_made(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    if "backend" in options:
        pytest.importorskip("torch")
    directory, head = make_model(tmp_path), make_eagle3(tmp_path / "head")
    with pytest.raises(ConfigError, match=message):
        drafter_bytes(directory, head, keys={"quantization": "int8"}, **options)


def test_a_format_is_refused_for_a_drafter_whose_files_are_quantised() -> None:
    with pytest.raises(ConfigError, match="the drafter's files are quantised already"):
        drafter_bytes(Path("smollm2"), Path("smollm2"), keys={"quantization": "int8"})
    assert drafter_bytes(Path("smollm2"), Path("smollm2")) > 0


def test_the_format_of_the_files_may_be_named() -> None:
    """vLLM's settings have it there."""
    usual = drafter_bytes(Path("smollm2"), Path("smollm2"))
    named = drafter_bytes(Path("smollm2"), Path("smollm2"), keys={"quantization": "gguf"})
    assert named == usual


@pytest.mark.parametrize("name", ["awq", "auto", "Q4_K_M"])
def test_a_format_is_refused_that_floats_do_not_become(tmp_path: Path, name: str) -> None:
    directory, head = make_model(tmp_path), make_eagle3(tmp_path / "head")
    with pytest.raises(ConfigError, match=f"'{name}': the drafter's files are not in that format"):
        drafter_bytes(directory, head, keys={"quantization": name})
