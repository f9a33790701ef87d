"""`quantization` names the files' format, under any of its names, or quantises floats at load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.core.config import ConfigError
from octavo.engine.build import build_engine
from octavo.loader import resolve as resolve_source
from octavo.models.load import OpenedModel, open_model
from octavo.options.engine import EngineArguments
from octavo.options.quantization import is_same
from octavo.quant.registry import METHODS
from octavo.resolve import follow_quantization
from tests.api.tiny import make_model
from tests.quant.made_up import FORMATS, write_pair


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def floats(directory: Path) -> OpenedModel:
    return open_model(resolve_source(str(directory)))


@pytest.fixture(scope="module")
def awq(tmp_path_factory: pytest.TempPathFactory) -> OpenedModel:
    directory = tmp_path_factory.mktemp("awq")
    return write_pair(directory, FORMATS["AWQ"], hidden_size=64, intermediate_size=64).stored


def followed(opened: OpenedModel, name: str | None, **given: Any) -> EngineArguments:
    return follow_quantization(EngineArguments("m", quantization=name, **given), opened)


@pytest.mark.parametrize(
    ("names", "method"),
    [
        (("awq", "AWQ", "awq_marlin", "awq_triton", "moe_wna16"), "awq"),
        (("gptq", "gptq_marlin", "gptq-bitblas", "moe_wna16"), "gptq"),
        (("auto-round", "auto_round", "inc", "intel/auto-round"), "intel/auto-round"),
        (("auto-round", "inc", "moe_wna16"), "auto-round"),
        (("compressed-tensors", "compressed_tensors", "w8a8_int8"), "compressed-tensors"),
        (("fp8", "deepseek_v4_fp8"), "fp8"),
        (("fbgemm_fp8",), "fbgemm_fp8"),
        (("mxfp4", "gpt_oss_mxfp4"), "mxfp4"),
        (("modelopt", "modelopt_fp4", "modelopt_fp8", "petit_nvfp4"), "modelopt"),
        (("bitsandbytes",), "bitsandbytes"),
        (("gguf",), "gguf"),
    ],
)
def test_a_format_has_many_names(names: tuple[str, ...], method: str) -> None:
    assert all(is_same(name, method) for name in names)
    others = [each for each in METHODS if each.split("/")[-1] != method.split("/")[-1]]
    assert not any(is_same(name, each) for name in names[:1] for each in others)


def test_the_files_own_format_is_followed(awq: OpenedModel) -> None:
    for name in (None, "awq", "awq_marlin"):
        assert followed(awq, name) == EngineArguments("m", quantization=name)


@pytest.mark.parametrize("name", ["gptq", "int8", "fp8", "made_up"])
def test_another_format_than_that_of_the_files_is_refused(name: str, awq: OpenedModel) -> None:
    with pytest.raises(ConfigError, match=f"^quantization='{name}': .* the format awq"):
        followed(awq, name)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("mxfp8", "fp8, leave"),
        ("awq", "octavo quantize --to w4a16"),
        ("nvfp4_per_token", "octavo quantize --to nvfp4"),
        ("torchao", "int8 or int4"),
        ("online", "the format itself"),
        ("made_up", "one of int8, int4, fp8 and bitsandbytes"),
    ],
)
def test_other_formats_are_refused_with_the_nearest_that_is_made(
    name: str, instead: str, floats: OpenedModel
) -> None:
    with pytest.raises(ConfigError, match=f"^quantization='{name}': .* choose .*{instead}"):
        followed(floats, name)


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("int8", "int8"),
        ("int8_per_channel_weight_only", "int8"),
        ("experts_int8", "int8"),
        ("int4", "int4"),
        ("fp8", "fp8"),
        ("fp8_per_block", "fp8"),
        ("fp8-per-tensor", "fp8"),
        ("ptpc_fp8", "fp8"),
        ("bitsandbytes", "nf4"),
    ],
)
def test_floats_are_quantised_at_load(name: str, made: Any, floats: OpenedModel) -> None:
    arguments = followed(floats, name)
    assert arguments == EngineArguments("m", quantization=name, cpu_weights=made)
    with pytest.raises(ConfigError, match=f"^quantization='{name}' contradicts cpu_weights='bf16'"):
        followed(floats, name, cpu_weights="bf16")


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_groups_of_integers_may_be_chosen(name: Any, floats: OpenedModel) -> None:
    assert followed(floats, name, cpu_weights=f"{name}-64").cpu_weights == f"{name}-64"


@pytest.mark.parametrize(("name", "made"), [("int8", "int8"), ("fp8_per_block", "fp8")])
def test_an_engine_has_the_codes(name: str, made: Any, directory: Path) -> None:
    """The backend's weights are those that `cpu_weights` makes, and smaller than the files'."""
    arguments = EngineArguments(str(directory), backend="native", quantization=name)
    engine = build_engine(arguments)
    asked = EngineArguments(str(directory), backend="native", cpu_weights=made)
    weights = engine.facts.memory_bytes["weights"]
    assert weights == build_engine(asked).facts.memory_bytes["weights"]
    assert weights == engine.config.bill.weights_bytes
    plain = build_engine(EngineArguments(str(directory), backend="native"))
    assert weights < plain.facts.memory_bytes["weights"]
    assert engine.config.arguments.cpu_weights == made


@pytest.mark.parametrize(
    ("weights", "activations"), [("int8", "bf16"), ("int4-64", "bf16"), ("fp8", "int8")]
)
def test_activations_that_contradict_the_weights_are_refused(
    weights: Any, activations: Any, directory: Path
) -> None:
    arguments = EngineArguments(
        str(directory), backend="native", cpu_weights=weights, cpu_activations=activations
    )
    with pytest.raises(ConfigError, match=f"cpu_activations='{activations}' contradicts"):
        build_engine(arguments)


def test_activations_of_floats_change_nothing(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arguments = EngineArguments(str(directory), backend="native", cpu_activations="int8")
    weights = build_engine(arguments).facts.memory_bytes["weights"]
    plain = build_engine(EngineArguments(str(directory), backend="native"))
    assert weights == plain.facts.memory_bytes["weights"]
    assert "cpu_activations=int8 changes nothing" in caplog.text


def test_a_backend_without_integers_refuses(directory: Path) -> None:
    with pytest.raises(ConfigError, match="is a setting of the native backend"):
        build_engine(EngineArguments(str(directory), backend="torch", quantization="int8"))
