"""Errors of a tokenizer's files, which all name the place of the files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from octavo.loader.errors import CheckpointError
from octavo.text.token_bytes import TokenizerError

# The class of a panic in the library, which is no Exception.
_PANIC = "PanicException"
_LONGEST_REASON = 300
_END = 60


@contextmanager
def tokenizer_errors_at(place: Path) -> Iterator[None]:
    """Raise each error of a model's files as a TokenizerError that names their place."""
    try:
        yield
    except (TokenizerError, CheckpointError) as error:
        text = str(error)
        raise TokenizerError(text if str(place) in text else f"{place}: {text}") from error


def is_from_library(error: BaseException) -> bool:
    """Return whether an error is the tokenizer's library's, which raises nothing more precise."""
    return type(error) is Exception or type(error).__name__ == _PANIC


def reason(error: BaseException) -> str:
    """Return the message of a library's error on one line, cut to a readable length."""
    text = "".join(mark if mark.isprintable() else " " for mark in str(error))
    if len(text) <= _LONGEST_REASON:
        return text
    # The end often has the place.
    return f"{text[: _LONGEST_REASON - _END]} … {text[-_END:]}"
