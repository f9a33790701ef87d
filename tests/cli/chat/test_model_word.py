"""The first word of `octavo run` is a model: the prompt's words are never taken for one."""

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
    for name in ("model/config.json", "docs/page.md"):
        (place / name).parent.mkdir(parents=True)
        (place / name).write_text("{}")
    (place / "file.gguf").write_bytes(b"")
    monkeypatch.chdir(place)
    return place


MODELS = [
    *("smollm2", "minilm", "model", "./model", "file.gguf", "pypi:some-model", "org/name"),
    *("Qwen/Qwen3-0.6B@main", "org/name:Q4_K_M"),
    "docs",  # what is wrong with a directory is said when it is opened
]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("word", MODELS)
def test_a_name_of_a_model_is_one(word: str) -> None:
    assert model_and_prompt([word, "hello", "there"], None) == (word, ["hello", "there"])
    assert model_and_prompt([word], None) == (word, [])


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
        *((word, "") for word in ("llama3.2", "mistral:7b", "phi4", "a/b/c", "nosuchmodel")),
        *((word, "") for word in ("hello", "Is 1/2 more than 1:3?", "12 o'clock", "", "covid-19")),
    ],
)
def test_another_word_is_refused_with_the_nearest_names(word: str, near: str) -> None:
    with pytest.raises(UsageError) as caught:
        model_and_prompt([word, "there"], None)
    message = str(caught.value)
    assert "there is no model" in message
    assert near in message
    is_question = not near and word not in ("a/b/c", "nosuchmodel")  # like the file model
    assert ("the model is the first word, as in: octavo run smollm2" in message) is is_question
    assert message.isprintable()


@pytest.mark.parametrize("word", ["x" * 5000, "two\nlines", "\x1b[31m"])
def test_a_word_is_not_repeated_whole(word: str) -> None:
    with pytest.raises(UsageError) as caught:
        model_and_prompt([word], None)
    message = str(caught.value)
    assert message.endswith("octavo run smollm2 …")
    assert message.isprintable()
    assert len(message) < 1000
