"""What the model makes of its texts: hidden states that a drafter reads, and those it must guess.

They are kept in files of some hundred texts each, so that a run that was stopped goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.draft_head.progress import Progress
from benchmarks.draft_head.texts import Text

TEXTS_A_FILE = 200
TOKENS_A_BATCH = 4096


@dataclass(frozen=True, slots=True)
class Example:
    """A text with the hidden states of each of its tokens."""

    tokens: Tensor
    num_prompt: int
    read: Tensor  # the inputs of the layers that a drafter reads, side by side
    last: Tensor  # the last state, normalised: what the model's head scores


def open_target(directory: Path) -> Any:
    """Return the model in torch, for its hidden states and its head."""
    import transformers

    kind: Any = transformers.AutoModelForCausalLM
    model = kind.from_pretrained(directory, dtype=torch.bfloat16)
    return model.requires_grad_(False).eval()


@torch.no_grad()
def states_of(model: Any, texts: Sequence[Text], layers: Sequence[int]) -> list[Example]:
    """Return the states of texts, which are computed together."""
    tokens = [torch.tensor(text.prompt + text.answer) for text in texts]
    padded = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)
    # What follows a text is never read by it, so padding needs no mask.
    found = model.model(padded, output_hidden_states=True, use_cache=False).hidden_states
    read = torch.cat([found[layer] for layer in layers], -1)
    return [
        Example(each, len(text.prompt), read[row, : len(each)], found[-1][row, : len(each)])
        for row, (each, text) in enumerate(zip(tokens, texts, strict=True))
    ]


def write_states(model: Any, texts: Sequence[Text], directory: Path, layers: Sequence[int]) -> None:
    """Write the states of all texts, as far as the directory has them not."""
    directory.mkdir(parents=True, exist_ok=True)
    starts = range(0, len(texts), TEXTS_A_FILE)
    left = [start for start in starts if not _file(directory, start).exists()]
    progress = Progress("texts read again", len(texts), len(texts) - len(left) * TEXTS_A_FILE)
    for number, start in enumerate(left, 1):
        tensors: dict[str, Tensor] = {}
        some = texts[start : start + TEXTS_A_FILE]
        for batch in _batches(some):
            examples = states_of(model, [some[index] for index in batch], layers)
            for index, example in zip(batch, examples, strict=True):
                tensors[f"{index}.tokens"] = example.tokens
                tensors[f"{index}.prompt"] = torch.tensor(example.num_prompt)
                tensors[f"{index}.read"] = example.read.contiguous()
                tensors[f"{index}.last"] = example.last.contiguous()
        made = _file(directory, start).with_suffix(".part")
        save_file(tensors, made)
        made.rename(_file(directory, start))
        progress.show(len(texts) - (len(left) - number) * TEXTS_A_FILE)


def read_states(directory: Path) -> list[Example]:
    """Read the states of all texts."""
    examples = []
    for path in sorted(directory.glob("states-*.safetensors")):
        tensors = load_file(path)
        for index in range(len(tensors) // 4):
            tokens, prompt, read, last = (
                tensors[f"{index}.{name}"] for name in ("tokens", "prompt", "read", "last")
            )
            examples.append(Example(tokens, int(prompt), read, last))
    return examples


def _file(directory: Path, start: int) -> Path:
    return directory / f"states-{start:06}.safetensors"


def _batches(texts: Sequence[Text]) -> list[list[int]]:
    """Return the places of texts of similar length, in batches of about as many tokens."""
    lengths = [len(text.prompt) + len(text.answer) for text in texts]
    batches: list[list[int]] = [[]]
    for index in sorted(range(len(texts)), key=lengths.__getitem__):
        if batches[-1] and lengths[index] * (len(batches[-1]) + 1) > TOKENS_A_BATCH:
            batches.append([])
        batches[-1].append(index)
    return batches
