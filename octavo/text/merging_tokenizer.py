"""The tokenizer of a GGUF file with bytes and merges, made in a small part of the library's time.

The library defines the tokens here too. A tokenizer of it that knows only the single bytes and the
added tokens normalises a text and divides it into words, and the native engine's `MergeTable`
merges the bytes of each word. The library's tokenizer of the whole vocabulary is made when it is
needed for more than that: for a long text, for places in a text, for two texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, overload

from tokenizers import Tokenizer as Backend
from tokenizers import models

from octavo.loader.metadata import Metadata
from octavo.text.gguf_metadata import PREFIX, Vocabulary
from octavo.text.gguf_vocabulary import (
    Settings,
    byte_level,
    complete,
    pre_tokenizer_of,
    tokenizer_from_gguf,
)
from octavo.text.load_errors import tokenizer_errors_at
from octavo.text.token_bytes import byte_alphabet
from octavo.text.tokenizer import Tokenizer, no_panic, valid_text

if TYPE_CHECKING:
    from octavo.backends.native import _native

# Bytes that are in no UTF-8.
NOT_IN_UTF8 = frozenset({0xC0, 0xC1, *range(0xF5, 0x100)})
# Of a text that is merged here. The library takes half the time for a text, once it has its tables.
MAX_CHARACTERS = 1 << 14


def quick_tokenizer_from_gguf(metadata: Mapping[str, object]) -> Tokenizer:
    """Build the tokenizer of a GGUF file, without the library's tables where that is possible."""
    if not isinstance(metadata, Metadata):
        return tokenizer_from_gguf(metadata)
    with tokenizer_errors_at(metadata.path), no_panic("its own files"):
        table = _table_of(metadata)
        return tokenizer_from_gguf(metadata) if table is None else _build(metadata, table)


def _table_of(metadata: Metadata) -> _native.MergeTable | None:
    """Return the vocabulary and its merges; None for another kind, or for one that is not usual.

    What is wrong with a vocabulary is found and said where the whole tokenizer is made.
    """
    if metadata.get(PREFIX + "model") != "gpt2":
        return None
    tokens = metadata.stored_strings(PREFIX + "tokens")
    merges = metadata.stored_strings(PREFIX + "merges")
    if tokens is None or merges is None or PREFIX + "pre" not in metadata:
        return None
    _, num_tokens = tokens
    if not num_tokens:
        return None
    try:
        from octavo.backends.native import _native

        return _native.MergeTable(*tokens, *merges)
    except (ImportError, ValueError):
        return None


def _build(metadata: Metadata, table: _native.MergeTable) -> Tokenizer:
    vocabulary = Vocabulary(metadata, (_Tokens(table), _Ids(table)))
    rule = pre_tokenizer_of(vocabulary)
    if rule.ignore_merges and not _spells_all(table):
        # The library drops bytes without a token, but not before it looks for the whole word.
        return tokenizer_from_gguf(metadata)
    texts = [*byte_alphabet(), *vocabulary.named_tokens({}).values()]
    texts += [vocabulary.tokens[token] for token in vocabulary.added_ids]
    known = {text: token for text in texts if (token := table.id_of(text)) is not None}
    built = byte_level(models.BPE(known, []), rule, vocabulary)
    return MergingTokenizer(
        built.backend,
        table,
        lambda: tokenizer_from_gguf(metadata).backend,
        complete(built, vocabulary),
        takes_whole_words=rule.ignore_merges,
    )


def _spells_all(table: _native.MergeTable) -> bool:
    """Return whether each byte that a text may have is a token."""
    spelled = {byte for text, byte in byte_alphabet().items() if table.id_of(text) is not None}
    return spelled | NOT_IN_UTF8 == set(range(256))


class MergingTokenizer(Tokenizer):
    """A tokenizer whose library divides a text into words of bytes, which are merged natively."""

    def __init__(
        self,
        words: Backend,
        table: _native.MergeTable,
        make_whole: Callable[[], Backend],
        settings: Settings,
        *,
        takes_whole_words: bool,  # a word that is a token is not split by the merges
    ) -> None:
        self._whole: Backend | None = None
        self._make_whole, self._lock = make_whole, Lock()
        self._table, self._takes_whole_words = table, takes_whole_words
        super().__init__(words, names=_Tokens(table), **settings)

    @property
    def backend(self) -> Backend:
        """The library's tokenizer of the whole vocabulary."""
        with self._lock:
            if self._whole is None:
                self._whole = self._make_whole()
            return self._whole

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of `text`, which are those of the whole tokenizer."""
        if self._whole is not None or len(text) > MAX_CHARACTERS:
            return super().encode(text, add_special_tokens=add_special_tokens)
        with no_panic("this text"):
            text = valid_text(text)
            found = self._backend.encode(text, add_special_tokens=add_special_tokens)
        return self._table.merge_words(found.ids, found.word_ids, self._takes_whole_words)

    def token_to_id(self, token: str) -> int | None:
        """Return the id of the vocabulary's string."""
        return self._table.id_of(token)


class _Tokens(Sequence[str]):
    """The texts of a table's tokens, in order of their ids."""

    def __init__(self, table: _native.MergeTable) -> None:
        self._table = table
        self.id_to_token = table.token

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return [self[token] for token in range(*place.indices(len(self)))]
        text = self._table.token(place)
        if text is None:
            raise IndexError(place)
        return text

    def __len__(self) -> int:
        return len(self._table)


class _Ids(Mapping[str, int]):
    """The ids of a table's tokens, by their texts."""

    def __init__(self, table: _native.MergeTable) -> None:
        self._table = table

    def __getitem__(self, text: str) -> int:
        token = self._table.id_of(text)
        if token is None:
            raise KeyError(text)
        return token

    def __iter__(self) -> Iterator[str]:
        return iter(_Tokens(self._table))

    def __len__(self) -> int:
        return len(self._table)
