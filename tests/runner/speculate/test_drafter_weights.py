"""What the weights of a drafter become: a narrow format, on which no text depends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.core.config import ConfigError
from octavo.engine.drafting.drafter import layout_of, open_with_drafter
from octavo.options.engine import read_arguments
from octavo.resolve import make_bill
from tests.api.tiny import make_model
from tests.runner.speculate.head_files import make_eagle3

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
