"""The directory of a result: its files, what it is made of again after a kill, what it refuses."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.core.config import ConfigError
from octavo.loader import CheckpointError, resolve
from octavo.loader.errors import CorruptFileError, SourceError, UnsupportedFormatError
from octavo.quantize import directory as directories
from octavo.quantize.directory import RECORD, ResultDirectory, is_finished, shards_of
from octavo.quantize.methods import method_for
from octavo.quantize.plan import Plan, make_plan
from octavo.quantize.run import quantize
from octavo.quantize.shards import ShardFile
from octavo.quantize.types import check_group_size, target_of
from tests.loader.make_files import write_safetensors
from tests.quantize.made import (
    BF16,
    Killed,
    Killing,
    Quiet,
    files_in,
    made_of,
    plan_of,
    values_in,
    write_model,
)

SMALL = 12_000  # bytes of a shard, so that there are several


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float model in BF16."""
    return write_model(tmp_path_factory.mktemp("float") / "model")


def test_the_files_beside_the_weights_come_along(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    texts = {
        "generation_config.json": "{}",
        "chat_template.jinja": "{{ messages }}",
        "README.md": "a model",
        "LICENSE": "a license",
        "1_Pooling/config.json": "{}",
    }
    others = ["optimizer.pt", "pytorch_model.bin", "code.py", ".hidden.json", "onnx/a.json"]
    others += ["pytorch_model.bin.index.json"]
    for name in (*texts, *others):
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text(texts.get(name, "{}"))
    made_of(model, "w4a16", tmp_path / "made")
    found = files_in(tmp_path / "made")
    own = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(found) == sorted([*own, *texts])
    assert {name: found[name].decode() for name in texts} == texts


def test_the_configuration_says_how_to_read_the_weights(model: Path, tmp_path: Path) -> None:
    made_of(model, "w8a8", tmp_path / "made")
    own = json.loads((model / "config.json").read_text())
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    settings = config.pop("quantization_config")
    assert config == own
    assert settings["quant_method"] == "compressed-tensors"
    assert settings["format"] == "int-quantized"
    assert settings["ignore"] == ["lm_head"]
    group = settings["config_groups"]["group_0"]
    assert group["targets"] == ["Linear"]
    numbers = {"num_bits": 8, "type": "int", "symmetric": True}
    assert numbers.items() <= group["weights"].items()
    assert group["weights"]["strategy"] == "channel"
    assert (numbers | {"strategy": "token", "dynamic": True}).items() <= group[
        "input_activations"
    ].items()


@pytest.mark.parametrize("architecture", ["Qwen2MoeForCausalLM", "DeepseekV2ForCausalLM"])
def test_the_experts_are_quantised_and_the_routers_are_not(
    architecture: str, tmp_path: Path
) -> None:
    sizes: dict[str, Any] = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
    more: dict[str, Any] = {"kv_lora_rank": 32, "qk_nope_head_dim": 24, "v_head_dim": 24}
    model = write_model(tmp_path / "model", architecture, **sizes, **more)
    plan = made_of(model, "w4a16", tmp_path / "made")
    settings: Any = plan.config["quantization_config"]
    names = {matrix.module for matrix in plan.matrices}
    assert "model.layers.1.mlp.experts.1.down_proj" in names
    assert "model.layers.1.mlp.gate" not in names
    routers = {name for name in settings["ignore"] if ".mlp." in name}
    kinds = ("gate", "shared_expert_gate") if architecture.startswith("Qwen") else ("gate",)
    assert routers == {f"model.layers.{n}.mlp.{kind}" for n in range(2) for kind in kinds}
    assert not names & set(settings["ignore"])
    read, own = values_in(tmp_path / "made"), values_in(model)
    for name, values in own.items():
        assert np.sqrt(np.mean((read[name] - values) ** 2)) < 0.15 * np.sqrt(np.mean(values**2))


def test_several_files_have_an_index(model: Path, tmp_path: Path) -> None:
    made_of(model, "w4a16", tmp_path / "one")
    plan = made_of(model, "w4a16", tmp_path / "several", SMALL)
    assert len(plan.shards) > 2
    names = [shard.name for shard in shards_of(plan)]
    assert names[0] == f"model-00001-of-{len(names):05}.safetensors"
    for outputs in plan.shards:
        is_one = len({str(output.source) for output in outputs}) == 1
        assert is_one or sum(output.num_bytes for output in outputs) <= SMALL
    one, several = values_in(tmp_path / "one"), values_in(tmp_path / "several")
    assert one.keys() == several.keys()
    for name, values in one.items():
        np.testing.assert_array_equal(several[name], values)
    index = json.loads((tmp_path / "several" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == set(names)


def test_any_number_of_threads_makes_the_same_bytes(model: Path, tmp_path: Path) -> None:
    for threads in (1, 5):
        quantize(plan_of(model, "nvfp4"), tmp_path / str(threads), threads, Quiet())
    assert files_in(tmp_path / "1") == files_in(tmp_path / "5")


def begin(output: Path, plan: Plan) -> None:
    """Begin a result without a file of it."""
    with ResultDirectory(output, plan):
        pass


@pytest.mark.parametrize("stop", [1, 9, 17, 30])
def test_a_killed_run_continues_and_makes_the_same_bytes(
    stop: int, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_of(model, "w4a16", tmp_path / "whole", SMALL)
    output = tmp_path / "made"
    plan = plan_of(model, "w4a16", shard_bytes=SMALL)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *_, **__: None)  # a killed process cleans nothing up
        with pytest.raises(Killed):
            quantize(plan, output, 2, Killing(stop))
    assert (output / RECORD).exists()
    assert not (output / "config.json").exists()
    left = {path.name: path.stat().st_ino for path in output.glob("*.safetensors")}
    assert list(output.glob("*.partial"))
    progress = Quiet()
    kept = quantize(plan_of(model, "w4a16", shard_bytes=SMALL), output, 2, progress)
    assert files_in(output) == files_in(tmp_path / "whole")
    assert kept == sum((output / name).stat().st_size for name in left)
    assert all((output / name).stat().st_ino == inode for name, inode in left.items())
    assert progress.seen[-1][0] == progress.seen[-1][1]


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"\0" * len(data)])
def test_a_file_that_is_not_the_planned_one_is_made_again(
    damage: Callable[[bytes], bytes], model: Path, tmp_path: Path
) -> None:
    plan = plan_of(model, "w4a16", shard_bytes=SMALL)
    output = tmp_path / "made"
    begin(output, plan)
    for shard in shards_of(plan)[:2]:
        (output / shard.name).write_bytes(damage(bytes(shard.num_bytes)))
    assert quantize(plan, output, 1, Quiet()) == 0
    made_of(model, "w4a16", tmp_path / "whole", SMALL)
    assert files_in(output) == files_in(tmp_path / "whole")


def test_an_error_leaves_no_partial_file(model: Path, tmp_path: Path) -> None:
    shard = shards_of(plan_of(model, "w4a16"))[0]
    with pytest.raises(Killed), ShardFile(shard, tmp_path):
        raise Killed
    assert not list(tmp_path.iterdir())


def test_directories_of_others_are_not_touched(model: Path, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine")
    plan = plan_of(model, "w4a16")
    with pytest.raises(ConfigError, match="there already"):
        quantize(plan, tmp_path, 1, Quiet())
    assert files_in(tmp_path) == {"note.txt": b"mine"}
    made_of(model, "w4a16", tmp_path / "made")
    before = files_in(tmp_path / "made")
    with pytest.raises(ConfigError, match="there already"):
        quantize(plan, tmp_path / "made", 1, Quiet())
    assert files_in(tmp_path / "made") == before
    assert is_finished(tmp_path / "made", plan)
    assert not is_finished(tmp_path / "made", plan_of(model, "w8a8"))
    with pytest.raises(ConfigError, match="there already"):
        quantize(plan, model, 1, Quiet())


def test_what_another_plan_began_is_not_continued(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "made"
    begin(output, plan_of(model, "w4a16"))
    for other in (plan_of(model, "w8a8"), plan_of(model, "w4a16", shard_bytes=SMALL)):
        with pytest.raises(ConfigError, match="other settings"):
            quantize(other, output, 1, Quiet())
    copy = Path(shutil.copytree(model, tmp_path / "copy"))
    os.utime(copy / "model.safetensors", ns=(0, 0))
    with pytest.raises(ConfigError, match="changed since"):
        quantize(plan_of(copy, "w4a16"), output, 1, Quiet())


def test_two_processes_do_not_write_at_once(model: Path, tmp_path: Path) -> None:
    plan = plan_of(model, "w4a16")
    with (
        ResultDirectory(tmp_path / "made", plan),
        pytest.raises(ConfigError, match="another process"),
    ):
        quantize(plan, tmp_path / "made", 1, Quiet())


def test_a_full_disk_is_known_before(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=directories._SPARE_BYTES)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with pytest.raises(SourceError, match="are free"):
        quantize(plan_of(model, "w4a16"), tmp_path / "made", 1, Quiet())


def test_links_are_not_followed_out_of_either_directory(tmp_path: Path) -> None:
    """Neither does the result have a secret of the machine, nor is a file elsewhere written."""
    model = write_model(tmp_path / "model")
    secret = tmp_path / "secret.json"
    secret.write_text("secret")
    (model / "vocab.json").symlink_to(secret)
    with pytest.raises(SourceError, match="link"):
        made_of(model, "w4a16", tmp_path / "made")
    (model / "vocab.json").unlink()
    output = tmp_path / "other"
    begin(output, plan_of(model, "w4a16"))
    (output / "model.safetensors.partial").symlink_to(secret)
    made_of(model, "w4a16", output)
    assert secret.read_text() == "secret"
    assert not (output / "model.safetensors").is_symlink()


def test_names_of_tensors_are_no_paths(tmp_path: Path) -> None:
    """A tensor that no layer uses may have any name, and is only a key of the file's header."""
    odd = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(3, np.float32)}
    names = {"model.layers.../../../../x.self_attn.rotary_emb.inv_freq": np.ones(2, np.float32)}
    model = write_model(tmp_path / "model", change={**odd, **names})
    made_of(model, "w4a16", tmp_path / "made")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "model"]


def test_the_hub_s_links_are_followed(tmp_path: Path) -> None:
    repository = tmp_path / "models--a--b"
    snapshot = repository / "snapshots" / "1"
    model = write_model(tmp_path / "model")
    (repository / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(model.iterdir())):
        shutil.copy(path, repository / "blobs" / str(number))
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    made_of(snapshot, "w4a16", tmp_path / "made")
    assert (tmp_path / "made" / "tokenizer.json").read_bytes() == (
        model / "tokenizer.json"
    ).read_bytes()
    assert not any(path.is_symlink() for path in (tmp_path / "made").iterdir())


def test_what_is_quantised_already_is_refused(model: Path, tmp_path: Path) -> None:
    made_of(model, "w4a16", tmp_path / "made")
    with pytest.raises(UnsupportedFormatError, match="quantised already"):
        plan_of(tmp_path / "made", "w8a8")
    name = "model.layers.0.mlp.up_proj.weight"
    eight = write_model(
        tmp_path / "eight", change={name: np.zeros((96, 64), np.float32).astype("i1")}
    )
    with pytest.raises(UnsupportedFormatError, match="only floats"):
        plan_of(eight, "w8a8")


@pytest.mark.parametrize(
    ("to", "size", "message"),
    [
        ("w4a16", 128, "--group-size 32 fits"),
        ("w4a16", 64, "--group-size 32 fits"),
        ("w8a16", 64, "--group-size 32 fits"),
        ("fp8", 32, "--group-size is for w4a16"),
    ],
)
def test_sizes_of_groups_that_do_not_fit(to: str, size: int, message: str, model: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        make_plan(resolve(str(model)), target_of(to), size)


def test_inputs_that_no_group_divides(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", intermediate_size=40)
    with pytest.raises(ConfigError, match="fp8 and w8a8 have none"):
        plan_of(model, "mxfp4")
    made_of(model, "fp8", tmp_path / "made")


@pytest.mark.parametrize("name", ["q8_0", "Q4_K_M", "iq4_nl", "int4", "w4a17", ""])
def test_unknown_types_are_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--to {name}.*w4a16, w8a16"):
        target_of(name)
    assert target_of("FP8").name == "fp8"


def test_methods_that_are_not_there_are_refused_by_name() -> None:
    assert not method_for("rtn", target_of("nvfp4")).needs_text
    for name in ("autoround", "best"):
        with pytest.raises(ConfigError, match=f"--method {name}.*rtn"):
            method_for(name, target_of("w8a8"))
    check_group_size(None)
    with pytest.raises(ConfigError, match="32, 64, 128"):
        check_group_size(96)


def test_models_whose_projections_are_of_another_kind(tmp_path: Path) -> None:
    model = write_model(tmp_path / "gpt2", "GPT2LMHeadModel", n_embd=64)
    with pytest.raises(UnsupportedFormatError, match="no matrices"):
        plan_of(model, "w8a8")


def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    values = np.zeros((96, 64), np.float32)
    values[90, 3] = np.nan
    model = write_model(tmp_path / "model", change={name: values.astype(BF16)})
    with pytest.raises(CorruptFileError, match="not finite"):
        made_of(model, "fp8", tmp_path / "made")


def test_a_gguf_file_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(UnsupportedFormatError, match="GGUF"):
        plan_of(tmp_path / "a.gguf", "fp8")


def test_tensors_by_the_names_of_scales_are_refused(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    name = "model.layers.0.mlp.up_proj.weight_scale"
    write_safetensors(model / "model-2.safetensors", {name: np.ones((96, 1), np.float32)})
    (model / "model.safetensors").rename(model / "model-1.safetensors")
    with pytest.raises(CheckpointError):
        plan_of(model, "fp8")
