"""The comparison of a drafter's tokens with those of its model, and their translation."""

from __future__ import annotations

import logging

from octavo.core.config import ConfigError
from octavo.loader import ModelFiles
from octavo.models.load import OpenedModel
from octavo.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

# Of the model's tokens, that a drafter must know: one of another script would hardly ever be right.
LEAST_SHARED = 0.1

Files = tuple[ModelFiles, OpenedModel]


def check_tokens(name: str, model: Files, drafter: Files) -> None:
    """Refuse a drafter to which an id means another token."""
    own, others = model[1].spec.vocabulary, drafter[1].spec.vocabulary
    if own != others:
        raise _error(
            name,
            f"it has {others:,} tokens, and the model {own:,}; take one of the same vocabulary, "
            f"usually a smaller model of the same family, {_OR_TRANSLATE}",
        )
    first, second = _tokenizer_of(*model), _tokenizer_of(*drafter)
    if first is None or second is None:
        log.info("a model without a tokenizer: the tokens of the drafter were not compared")
        return
    own_tokens, other_tokens = _tokens(first), _tokens(second)
    different = [
        (number, own_tokens[number], other_tokens[number])
        for number in sorted(own_tokens.keys() & other_tokens.keys())
        if own_tokens[number] != other_tokens[number]
    ]
    if different:
        number, one, other = different[0]
        raise _error(
            name,
            f"its vocabulary is another one: token {number} is {other!r} there, and {one!r} in the "
            f"model ({len(different):,} tokens differ); take a drafter of the same vocabulary, "
            f"{_OR_TRANSLATE}",
        )


def translation(name: str, model: Files, drafter: Files) -> list[int]:
    """Return for each of the model's ids the drafter's id of a token with the same bytes.

    Tokens that it does not have become one that it hardly ever draws.
    """
    first, second = _tokenizer_of(*model), _tokenizer_of(*drafter)
    if first is None or second is None:
        raise _error(name, "tokens are translated by their texts, and one has no tokenizer")
    ids: dict[object, int] = {}
    for number in range(drafter[1].spec.vocabulary - 1, -1, -1):
        ids[_meaning(second, number)] = number
    ids.pop(None, None)
    size = model[1].spec.vocabulary
    found = [ids.get(_meaning(first, number)) for number in range(size)]
    num_known = sum(each is not None for each in found)
    if num_known < LEAST_SHARED * size:
        raise _error(
            name,
            f"it knows {num_known:,} of the model's {size:,} tokens; take one whose vocabulary is "
            "more alike",
        )
    log.info("the drafter knows %s of the model's %s tokens", f"{num_known:,}", f"{size:,}")
    unknown = _least_likely(second, drafter[1].spec.vocabulary, {*found})
    return [unknown if each is None else each for each in found]


def _least_likely(tokenizer: Tokenizer, size: int, used: set[int | None]) -> int:
    """Return a token that a model hardly ever draws: it stands for all that it does not have."""
    for number in (tokenizer.unknown_id, tokenizer.padding_id):
        if number is not None:
            return number
    return max({*range(size)} - used, default=0)


def _meaning(tokenizer: Tokenizer, number: int) -> object:
    """Return what a token is in any vocabulary: its bytes, or the name of a special one."""
    if number in tokenizer.added_tokens:
        return tokenizer.added_tokens[number]
    return tokenizer.token_bytes(number) or None


def _tokens(tokenizer: Tokenizer) -> dict[int, str]:
    vocabulary = tokenizer.backend.get_vocab(with_added_tokens=True)
    return {number: token for token, number in vocabulary.items()}


def _tokenizer_of(source: ModelFiles, opened: OpenedModel) -> Tokenizer | None:
    """Return the tokenizer of a model; None if its files have none."""
    from octavo.text.gguf_vocabulary import tokenizer_from_gguf
    from octavo.text.texts_beside import Directory
    from octavo.text.tokenizer_files import tokenizer_without_templates

    if source.is_gguf:
        return tokenizer_from_gguf(opened.checkpoint.metadata)
    if (source.directory / "tokenizer.json").exists():
        return tokenizer_without_templates(Directory(source.directory))
    return None


_OR_TRANSLATE = "or have its tokens translated, with the key use_heterogeneous_vocab"


def _error(name: str, why: str) -> ConfigError:
    return ConfigError(f"speculative_config: {name!r} cannot draft: {why}")
