"""SmolLM2's text for all fifty prompts, from its GGUF file and from equal safetensors.

This takes minutes, so only `make test-smollm2` runs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

from octavo.loader import ModelFiles, resolve
from octavo.models.load import open_model
from tests.models.rewrite import assert_same, write_safetensors
from tests.models.test_smollm2 import (
    NEW_TOKENS,
    PROMPTS,
    Both,
    check_perplexity,
    check_texts,
    fetch,
)


@pytest.fixture(scope="module")
def gguf() -> ModelFiles:
    return fetch()


@pytest.fixture(scope="module")
def directory(gguf: ModelFiles) -> Iterator[Path]:
    """The same weights as safetensors; half a gigabyte, so it is deleted at the end."""
    with TemporaryDirectory() as name:
        write_safetensors(open_model(gguf), Path(name))
        yield Path(name)


@pytest.fixture(scope="module", params=["gguf", "safetensors"])
def both(request: pytest.FixtureRequest, gguf: ModelFiles, directory: Path) -> Both:
    return Both(gguf, directory if request.param == "safetensors" else None)


def test_both_files_hold_the_same_model(gguf: ModelFiles, directory: Path) -> None:
    assert_same(open_model(gguf), open_model(resolve(str(directory))))


def test_the_safetensors_hold_what_the_reference_reads_in_the_gguf_file(
    gguf: ModelFiles, directory: Path
) -> None:
    written = load_file(directory / "model.safetensors")
    auto: Any = AutoModelForCausalLM
    name = gguf.weights[0].name
    model = auto.from_pretrained(gguf.directory, gguf_file=name, dtype=torch.float32)
    expected = dict(model.named_parameters())
    assert written.keys() == expected.keys()
    for name, values in written.items():
        assert np.array_equal(values, expected[name].detach().numpy()), name


def test_text_of_all_prompts(both: Both) -> None:
    """The greedy text of each prompt, 64 tokens, is that of the reference."""
    assert len(set(PROMPTS)) == 50
    check_texts(both, PROMPTS, NEW_TOKENS)


def test_perplexity(both: Both) -> None:
    """The perplexity of the fixed text agrees to four digits."""
    check_perplexity(both)
