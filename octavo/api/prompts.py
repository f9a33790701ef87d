"""The forms in which a user may give a prompt, converted to checked token ids."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from octavo.api.outputs import RequestError
from octavo.text.token_table import TokenTable

# A text, its token ids (a list, or an array of numpy's), or either in a dict under "prompt" or
# "prompt_token_ids".
Prompt = str | Sequence[int] | Mapping[str, Any]
_KEYS = {"prompt", "prompt_token_ids"}


class Input(Struct, frozen=True):
    """A prompt as the core takes it: its token ids have been checked."""

    text: str | None
    token_ids: array[int]


def read_prompt(prompt: Prompt, tokenizer: TokenTable, vocabulary: int) -> Input:
    """Return a prompt as checked token ids; refuse other values, and ids that do not exist."""
    text: object = None
    given: Any = prompt
    if isinstance(prompt, Mapping):
        if prompt.keys() != _KEYS:
            _check_keys(prompt)
        text = prompt.get("prompt")
        given = prompt.get("prompt_token_ids")
        given = text if given is None else given
    if isinstance(given, str):
        return Input(given, check_ids(tokenizer.encode(given), vocabulary))
    if not isinstance(given, list):
        given = plain(given)
    if not isinstance(given, Sequence) or isinstance(given, bytes):
        raise RequestError(
            f"a prompt is a string or a list of token ids, not {type(given).__name__}",
            param="prompt",
        )
    return Input(text if isinstance(text, str) else None, check_ids(given, vocabulary))


def _check_keys(prompt: Mapping[str, Any]) -> None:
    """Refuse a dict without a prompt, and one with images or adapters, which would be dropped."""
    if not _KEYS & prompt.keys():
        raise RequestError(
            f"a prompt given as a dict needs 'prompt' or 'prompt_token_ids'; "
            f"this one has {sorted(map(str, prompt))}",
            param="prompt",
        )
    others = [str(key) for key, value in prompt.items() if key not in _KEYS and value is not None]
    if others:
        raise RequestError(
            f"a prompt given as a dict has 'prompt' or 'prompt_token_ids'; {', '.join(others)} "
            "must be left out",
            param="prompt",
        )


def check_ids(ids: Sequence[Any], vocabulary: int, name: str = "prompt_token_ids") -> array[int]:
    """Return token ids as the core keeps them; refuse none at all, and ids that do not exist."""
    if (
        type(ids) is list
        and set(map(type, ids)) == {int}
        and 0 <= min(ids) <= max(ids) < vocabulary
    ):
        return array("i", ids)
    is_packed = isinstance(ids, array) and ids.typecode == "i"
    if is_packed and ids and 0 <= min(ids) <= max(ids) < vocabulary:
        assert isinstance(ids, array)
        return ids
    checked = array("i")
    for index, token in enumerate(ids):
        number = -1 if isinstance(token, bool) else _index(token)
        if not 0 <= number < vocabulary:
            raise RequestError(
                f"{name}[{index}] is {token!r}; the model's tokens are 0 to {vocabulary - 1}",
                param="prompt" if name == "prompt_token_ids" else name,
            )
        checked.append(number)
    if not checked:
        raise RequestError(
            "the prompt has no tokens; at least one is needed to begin from", param="prompt"
        )
    return checked


def as_many(prompts: Prompt | Sequence[Prompt]) -> Sequence[Any]:
    """Return a list of prompts: the one that is given, or one prompt, alone in a list."""
    listed: Any = plain(prompts)  # an array may be of ids, of rows of them, or of texts
    is_one = isinstance(listed, str | Mapping) or not isinstance(listed, Sequence)
    if is_one or (listed and all(_is_id(item) for item in listed)):  # one that is a list of ids
        return [prompts]
    return prompts  # type: ignore[return-value]


def _is_id(item: Any) -> bool:
    """Return whether this is one token id; arrays of numpy have `__index__` too."""
    return hasattr(type(item), "__index__") and not getattr(item, "ndim", 0)


def plain(value: Any) -> Any:
    """Convert an array of any library to a list; return everything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def _index(token: Any) -> int:
    """Return a token id as an int; -1 if it is not one."""
    try:
        return operator.index(token)
    except TypeError:
        return -1
