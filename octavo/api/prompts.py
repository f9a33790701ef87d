"""What a user may give as a prompt, brought to token ids and checked."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.api.outputs import RequestError
from octavo.text.tokenizer import Tokenizer

# A text, its token ids (a list, or an array of numpy's), or either in a dict under "prompt" or
# "prompt_token_ids".
Prompt = str | Sequence[int] | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Input:
    """A prompt as the core wants it."""

    text: str | None
    token_ids: array[int]


def read_prompt(prompt: Prompt, tokenizer: Tokenizer, vocabulary: int) -> Input:
    """One prompt to token ids; refuses what is no prompt, and ids the model does not have."""
    text: object = None
    given: Any = prompt
    if isinstance(prompt, Mapping):
        if not {"prompt", "prompt_token_ids"} & prompt.keys():
            raise RequestError(
                f"a prompt given as a dict needs 'prompt' or 'prompt_token_ids'; "
                f"this one has {sorted(map(str, prompt))}"
            )
        _refuse_others(prompt)
        text = prompt.get("prompt")
        given = prompt.get("prompt_token_ids")
        given = text if given is None else given
    if isinstance(given, str):
        return Input(given, check_ids(tokenizer.encode(given), vocabulary))
    given = plain(given)
    if not isinstance(given, Sequence) or isinstance(given, bytes):
        raise RequestError(
            f"a prompt is a string or a list of token ids, not {type(given).__name__}"
        )
    return Input(text if isinstance(text, str) else None, check_ids(given, vocabulary))


def _refuse_others(prompt: Mapping[str, Any]) -> None:
    """What stands beside a prompt would be left out of it without a word: images, adapters."""
    known = ("prompt", "prompt_token_ids")
    others = [str(key) for key, value in prompt.items() if key not in known and value is not None]
    if others:
        raise RequestError(
            f"a prompt given as a dict has 'prompt' or 'prompt_token_ids'; {', '.join(others)} "
            "cannot be taken"
        )


def check_ids(ids: Sequence[Any], vocabulary: int) -> array[int]:
    """Token ids as the core keeps them; a prompt has at least one."""
    checked = array("i")
    for index, token in enumerate(ids):
        number = -1 if isinstance(token, bool) else _index(token)
        if not 0 <= number < vocabulary:
            raise RequestError(
                f"prompt_token_ids[{index}] is {token!r}; the model's tokens are 0 to "
                f"{vocabulary - 1}"
            )
        checked.append(number)
    if not checked:
        raise RequestError("the prompt has no tokens; at least one is needed to begin from")
    return checked


def is_many(prompts: Any) -> bool:
    """Whether a list of prompts was given, rather than one prompt that is a list of ids."""
    prompts = plain(prompts)  # an array may be of ids, of rows of them, or of texts
    if isinstance(prompts, str | Mapping) or not isinstance(prompts, Sequence):
        return False
    return not prompts or not all(_is_id(item) for item in prompts)


def _is_id(item: Any) -> bool:
    """Whether it is meant as one token id; numpy's arrays have `__index__` too."""
    return hasattr(type(item), "__index__") and not getattr(item, "ndim", 0)


def plain(value: Any) -> Any:
    """An array as a list, whoever made it; everything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def _index(token: Any) -> int:
    """A token id as an int; -1 if it is none."""
    try:
        return operator.index(token)
    except TypeError:
        return -1
