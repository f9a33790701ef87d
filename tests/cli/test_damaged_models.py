"""A model whose files are damaged ends a command with exit code 3 and one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.cli import main
from octavo.cli.commands import MODEL, USAGE
from tests.damage.models import write_directory, write_gguf_model
from tests.damage.weights import without_tensor

Pipe = Callable[[bytes], None]


def changed(file: str, **values: Any) -> Callable[[Path], None]:
    """Return a change of values in one of the model's JSON files."""

    def change(model: Path) -> None:
        path = model / file
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


def written(file: str, content: bytes) -> Callable[[Path], None]:
    return lambda model: void((model / file).write_bytes(content))


def void(_: object) -> None:
    return None


def without_a_layer(model: Path) -> None:
    path = model / "model.safetensors"
    path.write_bytes(without_tensor("model.layers.1.mlp.up_proj.weight")(path.read_bytes()))


DAMAGED: dict[str, tuple[Callable[[Path], None], str]] = {
    "a tensor is missing": (
        without_a_layer,
        "model.safetensors: 1 of the 21 tensors the model needs are missing: 'model.layers.1.mlp",
    ),
    "templates without text": (
        changed("tokenizer_config.json", chat_template=[{"name": "default"}]),
        "tokenizer_config.json: chat_template[0] must be an object with a name and a template",
    ),
    "Arabic digits": (
        changed("tokenizer_config.json", added_tokens_decoder={"٣": {"content": "<s>"}}),
        "tokenizer_config.json: added_tokens_decoder has the key '٣', which is not a token id",
    ),
    "not UTF-8": (
        written("chat_template.jinja", b"{{ \xff }}"),
        "chat_template.jinja: is not valid UTF-8: invalid start byte at byte 3",
    ),
    "half a character": (
        changed("special_tokens_map.json", bos_token="\ud800"),
        "special_tokens_map.json holds half of a character (a surrogate) at 'bos_token'",
    ),
    "a negative epsilon": (
        changed("config.json", rms_norm_eps=-1),
        "config.json: config: rms_norm_eps must be from 0 to 1, is -1",
    ),
    "a huge base": (
        changed("config.json", rope_theta=1e308),
        "config.json: config: rope_theta must be from 0 to 1e+15, is 1e+308",
    ),
    "a huge number of layers": (
        changed("config.json", num_hidden_layers=1 << 40),
        "config.json: config: num_hidden_layers must be at most 10,000, is 1,099,511,627,776",
    ),
    "an impossible sampling parameter": (
        changed("generation_config.json", top_p=7),
        "generation_config.json: config: top_p must be from 1e-09 to 1, is 7",
    ),
    "negative end tokens": (
        changed("generation_config.json", eos_token_id=-1),
        "generation_config.json: config: eos_token_id must be a token id from 0 to 16,777,215",
    ),
    "a tokenizer of another kind": (
        changed("tokenizer.json", model={"type": "BPE", "vocab": 5, "merges": []}),
        "tokenizer.json: cannot be used: ",
    ),
    "a vocabulary on which the library panics": (
        changed(
            "tokenizer.json",
            model={
                "type": "BPE",
                "vocab": {"a": 0, "b": 1, "ab": 2},
                "merges": [["a", "b"]],
                "continuing_subword_prefix": "xxxxxx",
            },
        ),
        "out of range for slice of length 2 (model)",
    ),
    "no configuration": (
        lambda model: (model / "config.json").unlink(),
        "the weights are here but config.json is not; copy the whole model directory",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_the_file_and_the_place_are_named(
    name: str, tmp_path: Path, pipe: Pipe, capsys: pytest.CaptureFixture[str]
) -> None:
    change, message = DAMAGED[name]
    model = write_directory(tmp_path / "m")
    change(model)
    assert main(["run", str(model), "hello"]) == MODEL
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("octavo run: ")
    assert str(model) in line
    assert message in line


def test_a_missing_tensor_of_a_gguf_file_is_named_by_every_command(
    tmp_path: Path, pipe: Pipe, capsys: pytest.CaptureFixture[str]
) -> None:
    path, mutants = write_gguf_model(tmp_path / "m", "gpt2")
    removed = next(each for each in mutants if each.name == "blk.1.attn_q.weight removed")
    removed.apply(path.parent)
    for words in (["fit", str(path)], ["run", str(path), "x"]):
        assert main(words) == MODEL
        error = capsys.readouterr().err
        assert f"{path}: 1 of the 20 tensors the model needs are missing: 'blk.1.attn_q" in error


@pytest.mark.slow
def test_the_engines_process_reports_whose_fault_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_directory(tmp_path / "m")
    without_a_layer(model)
    assert main(["serve", str(model), "--port", "0"]) == MODEL
    assert "'model.layers.1.mlp.up_proj.weight'; the checkpoint is" in capsys.readouterr().err
    changed("config.json", max_position_embeddings=64)(write_directory(tmp_path / "sound"))
    words = ["serve", str(tmp_path / "sound"), "--port", "0", "--max-model-len", "100"]
    assert main(words) == USAGE  # the command line asks for too much
    assert "--max-model-len=100 is more than the 64 positions" in capsys.readouterr().err


def test_keys_of_files_are_not_replaced_by_flags(
    tmp_path: Path, pipe: Pipe, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key of a file may have the name of a setting."""
    model = write_directory(tmp_path / "m")
    changed("tokenizer_config.json", chat_template=5)(model)
    assert main(["run", str(model), "x"]) == MODEL
    assert "tokenizer_config.json: chat_template must be a text" in capsys.readouterr().err
