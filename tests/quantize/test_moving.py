"""Factors move between inputs and weights: the float model stays the same, rounding loses less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from octavo.core.config import ConfigError
from octavo.loader import resolve
from octavo.loader.errors import UnsupportedFormatError
from octavo.quantize import plan as plans
from octavo.quantize.calibration import Calibration
from octavo.quantize.directory import FACTORS
from octavo.quantize.factors import AWARE, SMOOTH, Family, as_int8, choose_factors
from octavo.quantize.integers import Integers
from octavo.quantize.loaded import LoadedModel
from octavo.quantize.methods import method_for
from octavo.quantize.moving import MovedFactors
from octavo.quantize.packer import Floats
from octavo.quantize.plan import Plan, make_plan
from octavo.quantize.report import compare
from octavo.quantize.run import quantize
from octavo.quantize.types import target_of
from tests.api.tiny import TEXTS
from tests.loader.make_files import write_safetensors
from tests.quantize.made import Killed, Killing, Quiet, files_in, make_from, write_model

TEXT = "\n".join(TEXTS * 12)


def plan_of(model: Path, to: str, method: str, shard_bytes: int = 1 << 30) -> Plan:
    size = 32 if to == "w4a16" else None
    text = "" if method == "rtn" else TEXT
    return make_plan(resolve(str(model)), target_of(to), size, shard_bytes, method, text)


def run(plan: Plan, output: Path, progress: Quiet | None = None) -> int:
    quiet = progress or Quiet()
    made = None if plan.method == "rtn" else lambda: Calibration(plan, Quiet().show)
    return quantize(plan, output, 1, quiet, made)


def scores(model: Path) -> Floats:
    """Return the reference's log-probabilities for some tokens."""
    from octavo.backends.torch.backend import TorchBackend

    loaded = LoadedModel(resolve(str(model)), lambda: TorchBackend("float32"))
    return loaded.log_probabilities(list(range(3, 40)), 0, 37)


# Architecture → the sites of a layer.
SITES = {
    "LlamaForCausalLM": 3,  # norms before attention and MLP, and what the gate multiplies
    "Qwen2ForCausalLM": 3,  # biases
    "Phi3ForCausalLM": 3,  # q, k, v and gate, up in one tensor
    "GemmaForCausalLM": 3,  # norms to which one is added
    "Gemma2ForCausalLM": 3,  # norms behind both too
    "GPTNeoXForCausalLM": 2,  # norms with biases, no gate
    "StableLmForCausalLM": 2,  # one norm before both
    "CohereForCausalLM": 1,  # blocks of its own
}


WITH_BIASES = ("GPTNeoXForCausalLM", "StableLmForCausalLM")  # of norms
# Beside made-up sizes, what some configurations must have.
MORE: dict[str, dict[str, Any]] = {
    "Gemma2ForCausalLM": {"sliding_window": 16},
    "StableLmForCausalLM": {"use_parallel_residual": True},
}


@pytest.mark.parametrize("architecture", SITES)
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_a_model_whose_factors_have_moved_is_the_same(
    architecture: str, kind: str, tmp_path: Path
) -> None:
    import ml_dtypes

    stored = np.float32 if kind == "float32" else ml_dtypes.bfloat16
    model = write_model(tmp_path / "model", architecture, stored, **MORE.get(architecture, {}))
    plan = plan_of(model, "w8a8", "smoothquant")
    checkpoint = plan.checkpoint
    layers = {
        name.split("layers.")[1].split(".")[0] for name in checkpoint.tensors if ".layers." in name
    }
    assert len(plan.sites) == SITES[architecture] * len(layers)
    moved, generator = MovedFactors(checkpoint), np.random.default_rng(0)
    for site in plan.sites:
        inputs = checkpoint.info(site.readers[0]).shape[1]
        moved.move(site, np.exp(generator.standard_normal(inputs)).astype(np.float32))
    changed = {}
    for name, info in checkpoint.tensors.items():
        values = checkpoint.read_float32(name)
        vector = moved.vector(name)
        if vector is not None:
            assert not np.array_equal(values, vector.astype(np.float32))
            values = vector
        elif len(info.shape) == 2:
            values = moved.matrix(name, values, 0)
        changed[name] = np.ascontiguousarray(values).astype(np.float32)
    other = tmp_path / "other"
    write_model(other, architecture, np.float32, **MORE.get(architecture, {}))
    write_safetensors(other / "model.safetensors", changed)
    # Norms are rounded to their type, and weights take up what that changes; biases cannot.
    allowed = 0.05 if kind == "bfloat16" and architecture in WITH_BIASES else 1e-4
    np.testing.assert_allclose(scores(other), scores(model), rtol=0, atol=allowed)


def test_a_tensor_that_two_layers_use_is_left_alone(tmp_path: Path) -> None:
    from octavo.quantize.sites import find_sites

    model = write_model(tmp_path / "model")
    opened = plan_of(model, "w8a8", "rtn")
    names = {name: name for name in opened.checkpoint.tensors}
    config = {"architectures": ["LlamaForCausalLM"]}
    from tests.models.made_up import CONFIGS
    from tests.quantize.made import DIVISIBLE

    declared = make_from({**CONFIGS["LlamaForCausalLM"], **DIVISIBLE, **config})
    matrices = {matrix.name for matrix in opened.matrices}
    whole = find_sites(declared, names, matrices)
    one = dict(names)
    one["model.layers.1.input_layernorm.weight"] = "model.layers.0.input_layernorm.weight"
    assert len(find_sites(declared, one, matrices)) == len(whole) - 2
    some = matrices - {"model.layers.0.mlp.down_proj.weight"}
    assert len(find_sites(declared, names, some)) == len(whole) - 1


def with_outliers(columns: int) -> Floats:
    """Make inputs of which a few are large, as those of trained models are."""
    generator = np.random.default_rng(1)
    inputs = generator.standard_normal((200, columns)).astype(np.float32)
    inputs[:, ::17] *= 40
    return inputs


@pytest.mark.parametrize(
    ("family", "packer", "gain"),
    [(AWARE, Integers(4, 32, is_packed=True), 1.3), (SMOOTH, Integers(8, None, False), 4.0)],
)
def test_products_are_nearer_with_the_factors(
    family: Family, packer: Integers, gain: float
) -> None:
    weights = [
        np.random.default_rng(seed).standard_normal((48, 192)).astype(np.float32) for seed in (0, 1)
    ]
    inputs = with_outliers(192)

    def error(factors: Floats) -> float:
        read = inputs / factors
        read = as_int8(read) if family.rounds_inputs else read
        made = [read @ packer.rounded(each * factors, "BF16").T for each in weights]
        return float(
            sum(np.square(a - inputs @ b.T).sum() for a, b in zip(made, weights, strict=True))
        )

    found = choose_factors(family, inputs, weights, lambda rows: packer.rounded(rows, "BF16"))
    assert error(found) * gain < error(np.ones(192, np.float32))


def test_nothing_moves_where_rounding_loses_nothing() -> None:
    inputs, weights = with_outliers(64), np.ones((8, 64), np.float32)
    found = choose_factors(AWARE, inputs, [weights], lambda rows: rows)
    assert np.isfinite(found).all()
    ones = choose_factors(AWARE, np.zeros_like(inputs), [weights], lambda rows: rows)
    np.testing.assert_array_equal(ones, np.ones(64))


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float model in which some inputs of every projection are large."""
    model = write_model(tmp_path_factory.mktemp("float") / "model", kind=np.float32)
    plan = plan_of(model, "w8a8", "smoothquant")
    tensors = {name: plan.checkpoint.read_float32(name) for name in plan.checkpoint.tensors}
    for site in plan.sites:
        first = tensors[site.givers[0].name]
        factors = np.where(np.arange(len(first)) % 13 == 0, 30.0, 1.0).astype(np.float32)
        tensors[site.givers[0].name] = (first.T * factors).T
        for name in site.readers:
            tensors[name] = tensors[name] / factors
    write_safetensors(model / "model.safetensors", tensors)
    return model


@pytest.mark.parametrize(
    ("to", "methods"),
    [("w4a16", ("rtn", "awq")), ("w4a16", ("gptq", "awq-gptq")), ("w8a16", ("rtn", "awq"))],
)
def test_the_result_predicts_more_as_the_float_model_does(
    to: str, methods: tuple[str, ...], uneven: Path, tmp_path: Path
) -> None:
    found = []
    for method in methods:
        run(plan_of(uneven, to, method), tmp_path / method)
        found.append(divergence(uneven, tmp_path / method))
    assert found[1] < 0.8 * found[0]


def divergence(model: Path, other: Path) -> float:
    """Return the divergence of the stored values' predictions, with activations as they are."""
    one, two = scores(model), scores(other)
    return float((np.exp(one) * (one - two)).sum(1).mean())


def test_smoothed_activations_lose_less_in_int8(uneven: Path, tmp_path: Path) -> None:
    """The engine rounds activations too; both methods round the same weights' type."""
    found = []
    for method in ("rtn", "smoothquant", "smoothquant-gptq"):
        run(plan_of(uneven, "w8a8", method), tmp_path / method)
        made = resolve(str(tmp_path / method))
        found.append(compare(resolve(str(uneven)), made, TEXT, Quiet().show).divergence)
    assert max(found[1:]) < 0.5 * found[0]


def test_a_killed_run_continues_and_makes_the_same_bytes(uneven: Path, tmp_path: Path) -> None:
    plan = plan_of(uneven, "w8a8", "smoothquant-gptq", shard_bytes=20_000)
    run(plan, tmp_path / "whole")
    with pytest.raises(Killed):
        run(plan, tmp_path / "made", Killing(30))
    assert run(plan, tmp_path / "made") > 0
    assert files_in(tmp_path / "made") == files_in(tmp_path / "whole")


def choose(plan: Plan, output: Path, stop: int = 0) -> None:
    """Quantise, to the end or until so many factors are chosen."""
    moving = Killing(stop) if stop else Quiet()
    quantize(plan, output, 1, Quiet(), lambda: Calibration(plan, Quiet().show), moving)


@pytest.mark.parametrize("damage", ["none", "cut", "changed", "a link"])
def test_a_run_that_continues_does_not_choose_factors_again(
    damage: str, uneven: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(uneven, "w4a16", "awq", shard_bytes=20_000)
    whole, made = tmp_path / "whole", tmp_path / "made"
    choose(plan, whole)
    choices: list[int] = []

    def counted(*given: Any) -> Floats:
        choices.append(1)
        return choose_factors(*given)

    monkeypatch.setattr("octavo.quantize.run.choose_factors", counted)
    with pytest.raises(Killed):
        choose(plan, made, 3)
    assert len(choices) == 3
    kept = made / FACTORS
    content = kept.read_bytes()
    if damage == "cut":
        kept.write_bytes(content[:-1])
    elif damage == "changed":
        kept.write_bytes(bytes([content[0] ^ 1, *content[1:]]))
    elif damage == "a link":
        kept.rename(tmp_path / "elsewhere")
        kept.symlink_to(tmp_path / "elsewhere")
    choose(plan, made)
    again = {"none": 0, "cut": 1, "changed": 3, "a link": 3}[damage]
    assert len(choices) == len(plan.sites) + again
    assert files_in(made) == files_in(whole)
    assert damage != "a link" or (tmp_path / "elsewhere").read_bytes() == content


def test_a_run_with_all_factors_reads_no_text(uneven: Path, tmp_path: Path) -> None:
    plan = plan_of(uneven, "w4a16", "awq", shard_bytes=20_000)
    with pytest.raises(Killed):
        choose(plan, tmp_path, len(plan.sites))
    quantize(plan, tmp_path, 1, Quiet(), lambda: pytest.fail("the text is read again"))
    assert not (tmp_path / FACTORS).exists()


@pytest.mark.parametrize(
    ("method", "to"),
    [("awq", "w8a8"), ("awq", "fp8"), ("smoothquant", "w4a16"), ("gptq", "nvfp4"), ("none", "fp8")],
)
def test_methods_of_other_types_are_refused_with_those_that_fit(method: str, to: str) -> None:
    with pytest.raises(ConfigError, match=r"there are:? .*rtn"):
        method_for(method, target_of(to))


def test_a_model_without_places_is_refused(uneven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "find_sites", lambda *_: ())
    with pytest.raises(UnsupportedFormatError, match="no norms or gated MLPs"):
        plan_of(uneven, "w8a8", "smoothquant")
