"""The first word of `octavo run`: a model, a prompt, or a mistyped model."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.cli.parsing import UsageError
from octavo.cli.run import model_and_prompt


@pytest.fixture
def here(caches: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a model, a file of weights and what is neither."""
    (caches / "hub" / "models--Qwen--Qwen3-0.6B").mkdir(parents=True)
    place = caches / "here"
    for name in ("model/config.json", "docs/page.md", "tests/data.bin"):
        (place / name).parent.mkdir(parents=True)
        (place / name).write_text("{}")
    (place / "file.gguf").write_bytes(b"")
    (place / "notes").write_text("")
    monkeypatch.chdir(place)
    return place


MODELS = [
    *("smollm2", "minilm", "model", "./model", "file.gguf", "pypi:some-model", "org/name"),
    *("Qwen/Qwen3-0.6B@main", "org/name:Q4_K_M"),
]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("word", MODELS)
def test_a_name_of_a_model_is_one(word: str) -> None:
    assert model_and_prompt([word, "hello", "there"]) == (word, ["hello", "there"])
    assert model_and_prompt([word]) == (word, [])


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "words",
    [
        ["nosuchmodel", "hi"],
        ["hello"],
        ["Why is the sky blue?"],
        ["Is 1/2 more than 1:3?"],
        ["org/name is a model"],
        ["docs", "are", "good"],  # a directory, and a file, that are no model
        ["tests", "fail"],
        ["notes"],
        ["Explain:", "x"],
        ["12 o'clock"],
        ["small", "talk"],
        ["mini", "golf"],
        ["llama", "or", "alpaca?"],
        ["python3", "or", "python2?"],
        ["covid-19"],
        [""],
        ["x" * 5000],
        [],
    ],
)
def test_other_words_are_the_prompt(words: list[str]) -> None:
    assert model_and_prompt(words) == (None, words)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("smollm", "smollm2"),
        ("smollm3", "smollm2"),
        ("Smol-LM2", "smollm2"),
        ("SMOLLM2", "smollm2"),
        ("Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("qwen3-0.6", "Qwen/Qwen3-0.6B"),
        ("./modell", "modell"),
        ("fil.gguf", "file.gguf"),
        ("llama3.2", ""),
        ("mistral:7b", ""),
        ("phi4", ""),
        ("a/b/c", ""),
    ],
)
def test_a_word_like_a_model_is_refused_with_the_nearest(word: str, near: str) -> None:
    with pytest.raises(UsageError) as caught:
        model_and_prompt([word, "hello"])
    message = str(caught.value)
    assert "there is no model" in message
    assert near in message
    assert f"octavo run smollm2 {word}" in message
