"""GGUF files of floats become those of GGUF's types, which other programs read."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import gguf
import numpy as np
import pytest

from octavo.cli import main
from octavo.core.config import ConfigError
from octavo.loader import resolve
from octavo.loader.checkpoint import numpy_dtype
from octavo.loader.dequantize import dequantize
from octavo.loader.errors import CorruptFileError, UnsupportedFormatError
from octavo.models.load import open_model
from octavo.quantize.gguf.blocks import BLOCK_TYPES
from octavo.quantize.gguf.plan import RECIPES, GgufPlan, check_block_type, plan_gguf
from octavo.quantize.gguf.run import RECORD, is_finished, write_gguf
from octavo.quantize.packer import Floats
from tests.models.convert_gguf import convert
from tests.quantize.made import Killed, Killing, Quiet, write_model

MORE = ("attn_v", "ffn_down", "ffn_down_exps", "ffn_down_shexp")
PARTS = (*MORE, "attn_k", "ffn_up_exps")
# The largest root of the mean squared error for numbers of the normal distribution.
ERRORS = {
    "q4_0": 0.084,
    "q4_1": 0.076,
    "q5_0": 0.042,
    "q5_1": 0.038,
    "q8_0": 0.0055,
    "q4_k": 0.077,
    "q5_k": 0.039,
    "q6_k": 0.018,
}


def numbers() -> Floats:
    """Return rows of ordinary numbers, after some that are hard."""
    values = np.random.default_rng(0).standard_normal((64, 512)).astype(np.float32)
    values[0] = 0
    values[1] = np.abs(values[1])
    values[2] *= np.float32(1e-6)
    values[3] *= np.float32(1e3)
    values[4, 32:64] = 5
    return values


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_rows_are_near_and_read_alike_by_the_gguf_package(name: str) -> None:
    kind, values = BLOCK_TYPES[name], numbers()
    rows = kind.rows(values)
    found = dequantize(rows.view(numpy_dtype(kind.type)), kind.type)
    number = getattr(gguf.GGMLQuantizationType, kind.type.name)
    np.testing.assert_array_equal(found, gguf.dequantize(rows, number))
    assert np.sqrt(np.square(found - values)[5:].mean()) < ERRORS[name]
    assert not found[0].any()
    for row in (1, 3, 4):
        assert np.abs(found - values)[row].max() < 0.4 * np.abs(values[row]).max()
    if name in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0"):  # which the package makes too
        other = gguf.dequantize(gguf.quantize(values, number), number)
        errors = [np.square(each - values)[5:].sum() for each in (found, other)]
        assert errors[0] <= errors[1]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file of floats, with some rows of 256 inputs and some of 96."""
    directory = tmp_path_factory.mktemp("float")
    made = write_model(directory / "model", hidden_size=256, intermediate_size=96, head_dim=64)
    return convert(made, directory / "model.gguf")


def plan_of(model: Path, name: str) -> GgufPlan:
    return plan_gguf(resolve(str(model)), name)


@pytest.mark.parametrize("name", ["q4_k", "q8_0"])
def test_a_file_is_that_of_its_type(name: str, model: Path, tmp_path: Path) -> None:
    made = tmp_path / "made.gguf"
    plan = plan_of(model, name)
    write_gguf(plan, made, 2, Quiet())
    assert is_finished(made, plan)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made.gguf"]
    reader, source = gguf.GGUFReader(made), gguf.GGUFReader(model)
    types = {tensor.name: tensor.tensor_type.name.lower() for tensor in reader.tensors}
    assert types["blk.0.attn_q.weight"] == name
    assert types["blk.1.ffn_down.weight"] == {"q4_k": "q5_0"}.get(name, name)
    assert types["blk.0.attn_norm.weight"] == "f32"
    head = "output.weight" if "output.weight" in types else "token_embd.weight"
    assert types[head] == ("q8_0" if name == "q8_0" else "q6_k")
    own = {
        key: field.contents()
        for key, field in reader.fields.items()
        if "." in key and "GGUF" not in key
    }
    before = {key: field.contents() for key, field in source.fields.items() if "GGUF" not in key}
    changed = {key for key, value in own.items() if before.get(key) != value}
    assert changed == {"general.file_type", "general.quantization_version"}
    floats = {tensor.name: tensor.data for tensor in source.tensors}
    for tensor in reader.tensors:
        found = gguf.dequantize(tensor.data, tensor.tensor_type)
        expected = floats[tensor.name]
        error = np.sqrt(np.square(found - expected).mean() / np.square(expected).mean())
        assert error < ERRORS.get(tensor.tensor_type.name.lower(), 0) + 1e-9
    opened = open_model(resolve(str(made)))
    assert opened.spec == open_model(resolve(str(model))).spec


def test_a_mixture_spends_more_bits_on_some_layers() -> None:
    """The layers are those that llama.cpp chooses: the first and the last eighth, and a third."""
    types = {
        layer: [RECIPES["q4_k_m"].type_of(f"blk.{layer}.{part}.weight", 16) for part in PARTS]
        for layer in range(16)
    }
    mixed = ["q6_k"] * len(MORE) + ["q4_k"] * (len(PARTS) - len(MORE))
    more = {layer for layer, found in types.items() if found == mixed}
    assert more == {0, 1, 4, 7, 10, 13, 14, 15}
    plain = ["q4_k"] * len(PARTS)
    assert all(found == plain for layer, found in types.items() if layer not in more)
    assert RECIPES["q4_k"].type_of("blk.0.ffn_down.weight", 16) == "q4_k"


@pytest.mark.parametrize(("name", "type_"), [("q4_k", "q4_k"), ("q4_k_m", "q6_k")])
def test_a_file_of_experts_ends_at_a_multiple_of_its_alignment(
    name: str, type_: str, tmp_path: Path
) -> None:
    """Readers that take all tensors at once ask for the last one with its padding."""
    values = np.random.default_rng(0).standard_normal((3, 5, 256)).astype(np.float32)
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tensor("blk.0.ffn_down_exps.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    plan, made, seen = plan_of(tmp_path / "model.gguf", name), tmp_path / "made.gguf", Quiet()
    write_gguf(plan, made, 1, seen)
    assert is_finished(made, plan)
    (tensor,) = gguf.GGUFReader(made).tensors
    assert tensor.tensor_type.name.lower() == type_
    whole = tensor.data_offset + tensor.n_bytes
    assert whole % gguf.GGUF_DEFAULT_ALIGNMENT
    padding = bytes(-whole % gguf.GGUF_DEFAULT_ALIGNMENT)
    assert made.read_bytes()[whole:] == padding
    assert seen.seen[-1] == (made.stat().st_size,) * 2


def test_a_killed_run_continues_and_makes_the_same_bytes(model: Path, tmp_path: Path) -> None:
    plan = plan_of(model, "q4_k")
    write_gguf(plan, tmp_path / "whole.gguf", 1, Quiet())
    for stop in (1, 9, 2):
        with pytest.raises(Killed):
            write_gguf(plan, tmp_path / "made.gguf", 1, Killing(stop))
    partial = tmp_path / "made.gguf.partial"
    with partial.open("ab") as file:
        file.write(b"a part of the next tensor")
    with pytest.raises(ConfigError, match="other settings"):
        write_gguf(plan_of(model, "q8_0"), tmp_path / "made.gguf", 1, Quiet())
    with (tmp_path / f"made.gguf{RECORD}").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another process"):
            write_gguf(plan, tmp_path / "made.gguf", 1, Quiet())
    assert write_gguf(plan, tmp_path / "made.gguf", 1, Quiet()) > len(plan.header)
    assert (tmp_path / "made.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    with pytest.raises(ConfigError, match="there already"):
        write_gguf(plan_of(model, "q8_0"), tmp_path / "made.gguf", 1, Quiet())
    assert not is_finished(tmp_path / "made.gguf", plan_of(model, "q8_0"))


def test_what_is_no_gguf_file_of_floats_is_refused(model: Path, tmp_path: Path) -> None:
    write_gguf(plan_of(model, "q8_0"), tmp_path / "made.gguf", 1, Quiet())
    with pytest.raises(UnsupportedFormatError, match="quantised already, to Q8_0"):
        plan_of(tmp_path / "made.gguf", "q4_k")
    with pytest.raises(UnsupportedFormatError, match="convert_hf_to_gguf"):
        plan_gguf(resolve(str(write_model(tmp_path / "model"))), "q4_k")


def test_a_value_that_is_not_finite_is_refused_and_leaves_nothing_finished(
    tmp_path: Path,
) -> None:
    values = np.ones((64, 256), np.float32)
    values[5, 7] = np.nan
    tensors = {"model.layers.0.mlp.gate_proj.weight": values[:96]}
    made = write_model(
        tmp_path / "model", change=tensors, hidden_size=256, intermediate_size=64, head_dim=64
    )
    plan = plan_of(convert(made, tmp_path / "model.gguf"), "q4_k")
    with pytest.raises(CorruptFileError, match="not finite"):
        write_gguf(plan, tmp_path / "made.gguf", 2, Quiet())
    assert not (tmp_path / "made.gguf").exists()


@pytest.mark.parametrize("name", ["Q4_K_S", "iq4_nl", "q3_k", "tq1_0", "f16"])
def test_types_of_gguf_that_are_not_written_are_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--to {name}: .*q4_0, q4_1"):
        check_block_type(name)
    assert check_block_type("Q4_K") == "q4_k"
    assert check_block_type("Q4_K_M") == "q4_k_m"
    assert check_block_type("w4a16") is None


def test_the_command_writes_a_file_and_refuses_what_is_for_others(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made.gguf"
    asked = ["quantize", str(model), "--to", "q6_k", "-o", str(made), "--threads", "1"]
    for more in (
        ["--group-size", "32"],
        ["-o", str(tmp_path / "made")],
        ["-o", str(made / "x.gguf")],
    ):
        assert main([*asked, *more]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert main(asked) == 0
    assert "tensors are quantised to q6_k" in capsys.readouterr().out
    assert open_model(resolve(str(made))).spec.hidden == 256
    assert main(["quantize", str(model), "--to", "w8a8", "-o", str(tmp_path / "dir")]) != 0
    assert "types of GGUF only" in capsys.readouterr().err
    assert not json.dumps([each.name for each in tmp_path.iterdir()]).count("octavo-quantize")
