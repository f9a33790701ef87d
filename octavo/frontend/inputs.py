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
    text: object = None
    given: object = prompt
    if isinstance(prompt, Mapping):
        if not {"prompt", "prompt_token_ids"} & prompt.keys():
            raise RequestError(
                f"a prompt given as a dict needs 'prompt' or 'prompt_token_ids'; "
                f"this one has {sorted(map(str, prompt))}"
            )
        text = prompt.get("prompt")
        given = prompt.get("prompt_token_ids", text)
    if isinstance(given, str):
        return Input(given, check_ids(tokenizer.encode(given), vocabulary))
    if not isinstance(given, Sequence) or isinstance(given, bytes):
        raise RequestError(
            f"a prompt is a string or a list of token ids, not {type(given).__name__}"
        )
    return Input(text if isinstance(text, str) else None, check_ids(given, vocabulary))


def check_ids(ids: Sequence[object], vocabulary: int) -> array[int]:
    """Token ids as the core keeps them."""
    checked = array("i")
    for index, token in enumerate(ids):
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocabulary:
            raise RequestError(
                f"prompt_token_ids[{index}] is {token!r}; the model's tokens are 0 to "
                f"{vocabulary - 1}"
            )
        checked.append(token)
    return checked


def is_many(prompts: object) -> bool:
    """Whether a list of prompts was given, rather than one prompt that is a list of ids."""
    if isinstance(prompts, str | Mapping) or not isinstance(prompts, Sequence):
        return False
    return not prompts or not all(isinstance(item, int) for item in prompts)
