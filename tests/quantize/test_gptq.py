"""GPTQ: inputs are recorded as they are, errors are corrected by them, results are repeatable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from octavo.api.text_model import load_tokenizer
from octavo.core.config import ConfigError
from octavo.loader import resolve
from octavo.quantize import calibration, methods
from octavo.quantize.calibration import Calibration
from octavo.quantize.gptq import corrected_codes
from octavo.quantize.integers import Integers
from octavo.quantize.methods import method_for
from octavo.quantize.packer import Floats
from octavo.quantize.plan import Plan, make_plan
from octavo.quantize.report import compare
from octavo.quantize.run import quantize
from octavo.quantize.types import target_of
from tests.api.tiny import TEXTS
from tests.quantize.made import Killed, Killing, Quiet, files_in, values_in, write_model

TEXT = "\n".join(TEXTS * 12)
SMALL = 12_000


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float model in BF16."""
    return write_model(tmp_path_factory.mktemp("float") / "model")


def plan_of(model: Path, to: str = "w4a16", text: str = TEXT, shard_bytes: int = 1 << 30) -> Plan:
    size = 32 if to == "w4a16" else None
    return make_plan(resolve(str(model)), target_of(to), size, shard_bytes, "gptq", text)


def run(plan: Plan, output: Path, progress: Quiet | None = None) -> int:
    quiet = progress or Quiet()
    return quantize(plan, output, 1, quiet, lambda: Calibration(plan, Quiet().show))


def inputs(rows: int, columns: int) -> Floats:
    """Make inputs that depend on each other, some much larger than others."""
    generator = np.random.default_rng(1)
    mixed = generator.standard_normal((rows, columns)) @ generator.standard_normal(
        (columns, columns)
    )
    return (mixed * np.exp(generator.standard_normal(columns))).astype(np.float32)


@pytest.mark.parametrize("packer", [Integers(4, 32, is_packed=True), Integers(8, None, False)])
def test_products_are_nearer_than_those_of_plain_rounding(packer: Integers) -> None:
    values = np.random.default_rng(0).standard_normal((40, 192)).astype(np.float32)
    x = inputs(1000, 192)
    codes, scales = corrected_codes(values, x.T @ x, packer, "BF16")
    half = 1 << (packer.bits - 1)
    assert codes.min() >= -half
    assert codes.max() < half
    size = values.shape[1] // scales.shape[1]
    made = codes * np.repeat(scales, size, axis=1)
    own = packer.scales(values, "BF16")
    wide = np.repeat(own, size, axis=1)
    rounded = np.clip(np.rint(values / wide), -half, half - 1) * wide
    errors = [np.square(x @ (each - values).T).sum() for each in (made, rounded)]
    assert errors[0] < errors[1] / 3
    assert np.abs(made - values).max() < 20 * scales.max()


def test_inputs_that_the_text_never_has_are_rounded_as_without_it() -> None:
    packer = Integers(4, 32, is_packed=True)
    values = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    codes, scales = corrected_codes(values, np.zeros((64, 64), np.float32), packer, "F32")
    wide = np.repeat(packer.scales(values, "F32"), 32, axis=1)
    np.testing.assert_allclose(scales, packer.scales(values, "F32"), rtol=1e-6)
    np.testing.assert_array_equal(codes, np.clip(np.rint(values / wide), -8, 7))


def test_the_recorded_sums_are_those_of_the_inputs(model: Path) -> None:
    """The inputs of the first projections are the normalised embeddings, computed here again."""
    recorded = Calibration(plan_of(model), Quiet().show)
    own = values_in(model)
    tokens = load_tokenizer(resolve(str(model))).encode(TEXT, add_special_tokens=False)
    x = own["model.embed_tokens.weight"][tokens].astype(np.float64)
    x /= np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6)
    x *= own["model.layers.0.input_layernorm.weight"]
    for name in "qkv":
        sums = recorded.sums(f"model.layers.0.self_attn.{name}_proj.weight")
        np.testing.assert_allclose(sums, x.T @ x, rtol=1e-3, atol=1e-3 * np.abs(x.T @ x).max())
    assert recorded.sums("model.layers.1.mlp.down_proj.weight").shape == (96, 96)


@pytest.mark.parametrize("to", ["w4a16", "w8a16", "w8a8"])
def test_the_result_is_nearer_to_the_float_model(to: str, model: Path, tmp_path: Path) -> None:
    plan = plan_of(model, to)
    run(plan, tmp_path / "gptq")
    plain = make_plan(resolve(str(model)), plan.target, 32 if to == "w4a16" else None)
    quantize(plain, tmp_path / "rtn", 1, Quiet())
    values, own = values_in(tmp_path / "gptq"), values_in(model)
    recorded = Calibration(plan, Quiet().show)
    others = values_in(tmp_path / "rtn")
    for matrix in plan.matrices:
        sums, name = recorded.sums(matrix.name).astype(np.float64), matrix.name
        errors = [
            np.einsum("oi,ij,oj->", each[name] - own[name], sums, each[name] - own[name])
            for each in (values, others)
        ]
        assert errors[0] < errors[1]
    if to == "w4a16":  # for others the engine's own rounding is larger
        found = [
            compare(resolve(str(model)), resolve(str(tmp_path / each)), TEXT, Quiet().show)
            for each in ("gptq", "rtn")
        ]
        assert found[0].divergence < found[1].divergence


def test_a_killed_run_continues_and_makes_the_same_bytes(model: Path, tmp_path: Path) -> None:
    plan = plan_of(model, shard_bytes=SMALL)
    run(plan, tmp_path / "whole")
    with pytest.raises(Killed):
        run(plan, tmp_path / "made", Killing(30))
    assert run(plan, tmp_path / "made") > 0
    assert files_in(tmp_path / "made") == files_in(tmp_path / "whole")


def test_little_memory_reads_the_text_more_often_and_changes_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(plan_of(model), tmp_path / "once")
    monkeypatch.setattr(calibration, "_MOST_BYTES", 40_000)
    seen = Quiet()
    plan = plan_of(model)
    quantize(plan, tmp_path / "often", 1, Quiet(), lambda: Calibration(plan, seen.show))
    assert files_in(tmp_path / "once") == files_in(tmp_path / "often")
    assert sum(done == total for done, total in seen.seen) > 2


def test_another_text_is_another_plan(model: Path, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        run(plan_of(model, shard_bytes=SMALL), tmp_path / "made", Killing(30))
    with pytest.raises(ConfigError, match="other settings"):
        run(plan_of(model, text=TEXT * 2, shard_bytes=SMALL), tmp_path / "made")


def test_what_it_cannot_do_is_refused_and_leaves_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more: dict[str, Any] = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
    experts = write_model(tmp_path / "experts", "Qwen2MoeForCausalLM", **more)
    with pytest.raises(ConfigError, match="experts"):
        run(plan_of(experts), tmp_path / "made")
    with pytest.raises(ConfigError, match="fewer than two tokens"):
        run(plan_of(model, text="a"), tmp_path / "made")
    assert not (tmp_path / "made").exists()
    with pytest.raises(ConfigError, match="is for w4a16, w8a16, w8a8"):
        method_for("gptq", target_of("nvfp4"))
    monkeypatch.setattr(methods, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="PyTorch"):
        method_for("gptq", target_of("w8a8"))
