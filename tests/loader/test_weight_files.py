"""The choice of the weights among the files of a directory."""

import pytest

from octavo.loader.errors import CheckpointError, SourceError, UnsupportedFormatError
from octavo.loader.hub import wanted_files
from octavo.loader.weight_files import choose_weights

SHARDS = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
PARTS = [f"big-Q8_0-{number:05}-of-00002.gguf" for number in (1, 2)]
INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("names", "weights", "index"),
    [
        (["config.json", "model.safetensors"], ["model.safetensors"], None),
        (["any.safetensors", "pytorch_model.bin"], ["any.safetensors"], None),
        ([*SHARDS, INDEX], SHARDS, INDEX),
        ([*SHARDS, INDEX, "consolidated.safetensors"], SHARDS, INDEX),
        (["consolidated.safetensors"], ["consolidated.safetensors"], None),
        (["model.safetensors", "adapter_model.safetensors"], ["model.safetensors"], None),
        (["a.safetensors", "b.safetensors", "x.safetensors.index.json"],
         ["a.safetensors", "b.safetensors"], "x.safetensors.index.json"),
        (SHARDS, SHARDS, None),
        (["m.gguf", "model.safetensors"], ["model.safetensors"], None),
        (["m.gguf", "original/model.safetensors"], ["m.gguf"], None),
        (["m.gguf", "mmproj-m-f16.gguf"], ["m.gguf"], None),
        (PARTS, PARTS, None),
        (["only-00001-of-00001.gguf"], ["only-00001-of-00001.gguf"], None),
    ],
)  # fmt: skip
def test_chosen(names: list[str], weights: list[str], index: str | None) -> None:
    chosen = choose_weights(reversed(names))
    assert list(chosen.names) == weights
    assert chosen.index == index
    assert chosen.is_gguf == weights[0].endswith(".gguf")


QUANTISED = ["m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m.q8_0.gguf", "m-IQ4_XS.gguf", *PARTS]


@pytest.mark.parametrize(
    ("select", "weights"),
    [
        ("Q4_K_M", ["m-Q4_K_M.gguf"]),
        ("q4_k_s", ["m-Q4_K_S.gguf"]),
        ("m.q8_0.gguf", ["m.q8_0.gguf"]),
        ("IQ4_XS", ["m-IQ4_XS.gguf"]),
    ],
)
def test_selected(select: str, weights: list[str]) -> None:
    assert list(choose_weights([*QUANTISED, "model.safetensors"], select).names) == weights


def test_a_selection_in_a_directory_of_its_own() -> None:
    names = [f"Q8_0/{part}" for part in PARTS] + ["Q4_0/big-Q4_0.gguf", "config.json"]
    assert list(choose_weights(names, "Q8_0").names) == names[:2]
    assert list(choose_weights(names, "Q4_0").names) == names[2:3]


@pytest.mark.parametrize(
    ("names", "select", "match"),
    [
        ([], None, r"no weights .*; it holds no files"),
        (["README.md"], None, r"no weights .*; it holds 'README\.md'"),
        ([f"{n:02}.txt" for n in range(30)], None, r"'11\.txt' and 18 more"),
        (["a.safetensors", "b.safetensors"], None, r"2 files that could be the weights: 'a\.safe"),
        (QUANTISED, None, "6 files that could be the weights"),
        (QUANTISED, "Q4_K", "no GGUF file matches 'Q4_K'; it holds 'big"),
        (QUANTISED, "Q8_0", "3 files that could be the weights"),
        (["model.safetensors"], "Q8_0", "no GGUF file to match 'Q8_0'"),
        (SHARDS[:2], None, "only 2 of the 3 parts of .* are here, part 3 is missing"),
        (PARTS[1:], None, "only 1 of the 2 parts of .* are here, part 1 is missing"),
        ([*SHARDS, "other-00001-of-00001.safetensors"], None, "4 files that could be"),
    ],
)
def test_refused(names: list[str], select: str | None, match: str) -> None:
    with pytest.raises(CheckpointError, match=match) as caught:
        choose_weights(names, select)
    # An incomplete model is one that is damaged; in the other cases there is none.
    assert isinstance(caught.value, SourceError) != ("parts of" in match)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "m.pth", "m.ckpt"])
def test_pickles_are_refused_with_a_way_to_convert_them(name: str) -> None:
    with pytest.raises(UnsupportedFormatError, match=r"run any code; convert it .*save_pretrained"):
        choose_weights(["config.json", name])


def test_only_needed_files_are_fetched_from_a_repository() -> None:
    small = [
        "config.json",
        "tokenizer.json",
        "chat_template.jinja",
        "merges.txt",
        "tokenizer.model",
    ]
    names = [*SHARDS, INDEX, *small, "README.md", "pytorch_model.bin", "onnx/config.json"]
    assert wanted_files(names, None) == sorted([*SHARDS, INDEX, *small])
    assert wanted_files([*QUANTISED, "config.json"], "Q4_K_M") == ["config.json", "m-Q4_K_M.gguf"]
