"""Adapters from strangers are read as they are, or refused in one line; nothing else happens."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from octavo.adapters.pairs import Limits
from octavo.adapters.read import GGUF_FILE, PEFT_FILE, SETTINGS_FILE, AdapterReader
from octavo.layers import Model
from octavo.loader.errors import CheckpointError
from octavo.loader_process.read import UNREADABLE, FileRefusedError
from tests.adapters.made import SETTINGS, changes, make_arrays, modules_of, write_adapter
from tests.loader.make_files import F32, STRING, GGUFTensor, f32_tensor, write_gguf
from tests.loader_process.files import read_both_ends
from tests.models.made_up import make_model

NUM_DAMAGED = 120
NAMES = (PEFT_FILE, GGUF_FILE)
VALUES: tuple[Any, ...] = (None, -1, 0, 1e308, "", "(", [], ["q_proj"], {}, {"q_proj": 3}, True)
PAIRS: list[tuple[str, int, Any]] = [
    ("general.architecture", STRING, "llama"),
    ("general.type", STRING, "adapter"),
    ("adapter.type", STRING, "lora"),
    ("adapter.lora.alpha", F32, 8.0),
]


@pytest.fixture(scope="module")
def model() -> Model:
    return make_model("LlamaForCausalLM")


def read(model: Model, directory: Path) -> Any:
    """Read an adapter as a confined engine does."""
    file = read_both_ends(directory, directory, SETTINGS_FILE, names=NAMES)
    settings = file.beside.get(SETTINGS_FILE, b"")
    return AdapterReader(model, Limits(32)).read(file.checkpoint, settings)


def write_gguf_form(directory: Path, tensors: list[GGUFTensor]) -> Path:
    return write_gguf(directory / GGUF_FILE, PAIRS, tensors)


@pytest.mark.parametrize("seed", range(NUM_DAMAGED))
def test_a_damaged_adapter_is_read_or_refused_in_one_line(
    seed: int, model: Model, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    modules = [each for each in modules_of(model) if each.name.endswith("v_proj")]
    arrays = make_arrays(modules)
    if seed % 3:
        write_adapter(tmp_path, arrays)
    else:
        tensors = [
            f32_tensor(f"blk.{layer}.attn_v.weight.lora_{half.lower()}", array)
            for layer, half, array in (
                (name.split(".")[4], name.split("_")[-1][0], array)
                for name, array in arrays.items()
            )
        ]
        write_gguf_form(tmp_path, tensors)
    path = tmp_path / (PEFT_FILE if seed % 3 else GGUF_FILE)
    if seed % 3 == 1:
        settings = {**SETTINGS, chance.choice([*SETTINGS]): chance.choice(VALUES)}
        (tmp_path / SETTINGS_FILE).write_text(json.dumps(settings))
    else:
        content = bytearray(path.read_bytes())
        for _ in range(chance.randrange(1, 4)):
            place = min(int(len(content) * chance.random() ** 3), len(content) - 1)
            content[place] = chance.randrange(256)
        path.write_bytes(content[: chance.choice([len(content)] * 4 + [len(content) // 2])])
    why = ""
    try:
        read(model, tmp_path)
    except (CheckpointError, FileRefusedError) as error:
        why = str(error)
    assert "\n" not in why


def test_the_gguf_form_reaches_a_confined_engine(model: Model, tmp_path: Path) -> None:
    """The numbers may have eight bits, as llama.cpp's converter can write them."""
    generator = np.random.default_rng(0)
    down = generator.standard_normal((32, 32), np.float32)
    up = generator.standard_normal((16, 32), np.float32)
    kind = gguf.GGMLQuantizationType.Q8_0
    tensors = []
    for half, array in (("a", down), ("b", up)):
        stored = gguf.quants.quantize(array, kind)
        name = f"blk.1.attn_v.weight.lora_{half}"
        tensors.append(GGUFTensor(name, array.shape[::-1], int(kind), stored.tobytes()))
    write_gguf_form(tmp_path, tensors)
    (added,) = changes(model, read(model, tmp_path)).values()
    rows = slice(32 + 16, None)  # behind the queries and the keys
    np.testing.assert_allclose(added[rows], 0.25 * (up @ down), atol=0.15)
    assert not added[: rows.start].any()


def test_a_directory_without_an_adapter_is_refused_by_the_names_of_its_files(
    model: Model, tmp_path: Path
) -> None:
    (tmp_path / "adapter_model.bin").write_bytes(b"x")
    with pytest.raises(FileRefusedError, match=r"\.bin") as caught:
        read(model, tmp_path)
    assert caught.value.code == UNREADABLE
