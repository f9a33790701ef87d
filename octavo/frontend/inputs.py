"""What a user may give as a prompt, brought to token ids and checked."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.frontend.outputs import RequestError
from octavo.frontend.tokenizer import Tokenizer

# A text, its token ids, or either in a dict under "prompt" or "prompt_token_ids".
Prompt = str | Sequence[int] | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Input:
    """A prompt as the core wants it."""

    text: str | None
    token_ids: array[int]


def read_prompt(prompt: Prompt, tokenizer: Tokenizer, vocabulary: int) -> Input:
    """One prompt to token ids; refuses what is no prompt, and ids the model does not have."""
    text: str | None = None
    ids: Sequence[int]
    if isinstance(prompt, Mapping):
        keys = {"prompt", "prompt_token_ids"} & prompt.keys()
        if not keys:
            raise RequestError(
                f"a prompt given as a dict needs 'prompt' or 'prompt_token_ids'; "
                f"this one has {sorted(map(str, prompt))}"
            )
        text = prompt.get("prompt")
        prompt = prompt["prompt_token_ids"] if "prompt_token_ids" in keys else prompt["prompt"]
    if isinstance(prompt, str):
        text, ids = prompt, tokenizer.encode(prompt)
    elif isinstance(prompt, Sequence) and not isinstance(prompt, bytes):
        ids = prompt
    else:
        raise RequestError(
            f"a prompt is a string or a list of token ids, not {type(prompt).__name__}"
        )
    return Input(text, check_ids(ids, vocabulary))


def check_ids(ids: Sequence[int], vocabulary: int) -> array[int]:
    """Token ids as the core keeps them."""
    for index, token in enumerate(ids):
        is_id = isinstance(token, int) and not isinstance(token, bool)
        if not (is_id and 0 <= token < vocabulary):
            raise RequestError(
                f"prompt_token_ids[{index}] is {token!r}; the model's tokens are 0 to "
                f"{vocabulary - 1}"
            )
    return array("i", ids)


def is_many(prompts: object) -> bool:
    """Whether a list of prompts was given, rather than one prompt that is a list of ids."""
    if isinstance(prompts, str | Mapping) or not isinstance(prompts, Sequence):
        return False
    return not prompts or not all(isinstance(item, int) for item in prompts)
