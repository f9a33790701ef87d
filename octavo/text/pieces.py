"""Prompts of texts around an answer, and the texts of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from octavo.text.token_bytes import TokenizerError
from octavo.text.tokenizer import Tokenizer

MAX_TEXT_CHARACTERS = 1 << 23  # of token ids as text

# The tokens before the prefix, before the suffix and before the middle: those of Qwen, StarCoder,
# SantaCoder and DeepSeek.
FORMS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)
# The tokens before the name of a repository and before the name of a file.
FILES = (("<|repo_name|>", "<|file_sep|>"), ("<repo_name>", "<file_sep>"))
REPOSITORY, FILE = "project", "file"  # names where a request has none


class InfillError(ValueError):
    """A model without tokens for infilling."""


class Infill(Struct, frozen=True, kw_only=True):
    """The texts around an answer, behind the text that precedes it."""

    suffix: str
    beginning: str = ""  # of the answer itself
    extra: list[tuple[str, str]] = []  # other files, before all else: names and texts


def infill_tokens(
    tokenizer: Tokenizer, prefix: str, around: Infill, *, add_special_tokens: bool
) -> list[int]:
    """Return the token ids after which the model writes what stands between the two texts."""
    ids = {text: token for token, text in tokenizer.added_tokens.items()}
    form = next((form for form in FORMS if all(mark in ids for mark in form)), None)
    if form is None:
        raise InfillError(
            "suffix: this model has no tokens for text between two others, as models for code "
            "have; leave it out"
        )
    before, between, after = (ids[mark] for mark in form)
    start = tokenizer.encode("") if add_special_tokens else []
    return [
        *start,
        *_files(tokenizer, around.extra, ids),
        before,
        *tokenizer.encode(prefix, add_special_tokens=False),
        between,
        *tokenizer.encode(around.suffix, add_special_tokens=False),
        after,
        *tokenizer.encode(around.beginning, add_special_tokens=False),
    ]


def _files(tokenizer: Tokenizer, files: list[tuple[str, str]], ids: dict[str, int]) -> list[int]:
    """Return the tokens of other files, each behind its name; the file of the answer is last."""
    if not files:
        return []
    marks = next((marks for marks in FILES if all(mark in ids for mark in marks)), None)
    if marks is None:  # the model knows no files: the texts stand before its own
        texts = "".join(f"{text}\n\n" for _, text in files)
        return tokenizer.encode(texts, add_special_tokens=False)
    repository, separator = (ids[mark] for mark in marks)
    tokens = [repository, *tokenizer.encode(f"{REPOSITORY}\n", add_special_tokens=False)]
    for name, text in files:
        tokens += [separator]
        tokens += tokenizer.encode(f"{name or FILE}\n{text}", add_special_tokens=False)
    return [*tokens, separator, *tokenizer.encode(f"{FILE}\n", add_special_tokens=False)]


def with_pieces(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return each token as an object, as llama.cpp lists tokens."""
    return [{"id": token, "piece": _piece_of(tokenizer, token)} for token in token_ids]


def _piece_of(tokenizer: Tokenizer, token: int) -> str | list[int]:
    """Return the text of a token, or its bytes if they are no whole characters."""
    exact = tokenizer.token_bytes(token)
    try:
        return exact.decode()
    except UnicodeDecodeError:
        return list(exact)


def decoded(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    """Return the text of token ids; refuse one that is too long."""
    stream = tokenizer.detokenizer(skip_special_tokens=False)
    parts, num_characters = [], 0
    for token_id in token_ids:
        parts.append(stream.push(token_id))
        num_characters += len(parts[-1])
        if num_characters > MAX_TEXT_CHARACTERS:
            raise TokenizerError(
                f"the tokens' text has more than {MAX_TEXT_CHARACTERS} characters, which is "
                "the limit; send fewer tokens"
            )
    return "".join([*parts, stream.finish()])
