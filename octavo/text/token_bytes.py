"""The bytes that each token stands for, read from the tokenizer's own decoder.

Detokenising is concatenation: a token stands for the same bytes at every position, except for a few
rules about the beginning of a text. This makes streaming exact, so a decoder that works in another
way is rejected when the tokenizer is loaded, not when a stream goes wrong.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Protocol

from msgspec import Struct, field
from tokenizers import Tokenizer as Backend

REPLACEMENT = "\ufffd"
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
ONE_MARK_PER_BYTE = "octavo_one_mark_per_byte"
MAX_GROWTH = 64.0  # of a token's string on its way to text


class TokenizerError(ValueError):
    """A tokenizer that cannot be used, or an invalid use of one; the message says why."""

    is_of_model = True  # as that of a CheckpointError


def _mark_each_byte(error: UnicodeError) -> tuple[str, int]:
    """Return one U+FFFD for each byte that is not part of a character: SentencePiece's rule."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return REPLACEMENT * (error.end - error.start), error.end


codecs.register_error(ONE_MARK_PER_BYTE, _mark_each_byte)


def byte_alphabet() -> dict[str, int]:
    """Return the characters with which byte-level vocabularies spell the 256 bytes.

    Printable bytes of Latin-1 are spelled as themselves, all others from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    spelled = {chr(byte): byte for byte in printable}
    return spelled | {chr(0x100 + index): byte for index, byte in enumerate(others)}


class Spelling(Struct, frozen=True):
    """The rules by which the strings of a vocabulary spell text."""

    alphabet: dict[str, int] = field(default_factory=dict)  # of a byte-level vocabulary
    replacements: tuple[tuple[str, str], ...] = ()
    byte_tokens: bool = False  # `<0x0A>` is the byte 10
    dropped_at_start: str = ""  # from the first token of a text
    separator: str = ""  # between any two tokens
    stripped: str = ""  # this character is removed from the start of a text...
    num_stripped: int = 0  # ...at most this many times
    continuing: str = ""  # of a token that continues a word; other tokens begin with a space

    @property
    def first_differs(self) -> bool:
        """True if a token's bytes may be others at the beginning of a text."""
        return bool(self.dropped_at_start or self.continuing)

    @property
    def growth(self) -> float:
        """The most bytes that one byte of a token's string may become."""
        return prod(
            max(1.0, len(new.encode()) / len(old.encode())) for old, new in self.replacements
        )

    def bytes_of(self, token: str, *, is_added: bool = False) -> bytes:
        """Return the bytes of `token` when it is not the first one."""
        if self.alphabet:
            # A token added beside the vocabulary is text, not spelled bytes.
            if not is_added:
                with contextlib.suppress(KeyError):
                    return bytes(map(self.alphabet.__getitem__, token))
            return token.encode("utf-8")
        if self.continuing:
            is_inside = token.startswith(self.continuing) and not is_added
            return (token[len(self.continuing) :] if is_inside else f" {token}").encode("utf-8")
        if self.byte_tokens and (match := BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        for old, new in self.replacements:
            token = token.replace(old, new)
        return token.encode("utf-8")

    def first_bytes_of(self, token: str, *, is_added: bool = False) -> bytes:
        """Return the bytes of `token` when it is the first one."""
        if self.dropped_at_start:
            token = token.replace(self.dropped_at_start, "")
        if self.continuing:
            return self.bytes_of(token, is_added=is_added).removeprefix(b" ")
        return self.bytes_of(token, is_added=is_added)


def read_spelling(backend: Backend) -> Spelling:
    """Return the spelling that the decoder of `backend` describes; raise if it has none."""
    if backend.decoder is None:
        return Spelling(separator=" ")
    alphabet: dict[str, int] = {}
    replacements: list[tuple[str, str]] = []
    byte_tokens, is_fused, dropped, stripped, num_stripped = False, False, "", "", 0
    for step in _steps(json.loads(backend.decoder.__getstate__())):
        match step:
            case {"type": "Fuse"}:
                is_fused = True
            case {"type": "Strip", "content": str(content), "start": int(start), "stop": 0} if (
                is_fused and not num_stripped
            ):
                stripped, num_stripped = content, start
            case _ if is_fused:
                raise _unsupported(step)
            case {"type": "ByteLevel"} if not replacements and not byte_tokens:
                alphabet, is_fused = byte_alphabet(), True
            case {"type": "ByteFallback"}:
                byte_tokens = True
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if old:
                replacements.append((old, new))
            case {"type": "Metaspace", "replacement": str(old), "prepend_scheme": scheme} if old:
                replacements.append((old, " "))
                dropped = "" if scheme == "never" else old
            case {"type": "WordPiece", "prefix": str(prefix)} if prefix and not replacements:
                return Spelling(continuing=prefix)
            case _:
                raise _unsupported(step)
    spelling = Spelling(
        alphabet, tuple(replacements), byte_tokens, dropped, "", stripped, num_stripped
    )
    if spelling.growth > MAX_GROWTH:
        raise TokenizerError(
            f"the tokenizer's decoder makes up to {spelling.growth:.0f} bytes of one, more than the"
            f" limit of {MAX_GROWTH:.0f}: its Replace steps are not those of a vocabulary"
        )
    return spelling


def _steps(decoder: dict[str, object]) -> Iterator[dict[str, object]]:
    """Iterate over the decoder's steps in order, with sequences flattened."""
    match decoder:
        case {"type": "Sequence", "decoders": list(steps)}:
            for step in steps:
                yield from _steps(step)
        case _:
            yield decoder


def _unsupported(step: dict[str, object]) -> TokenizerError:
    return TokenizerError(
        f"the tokenizer's decoder has a step that cannot be streamed: {json.dumps(step)}; supported"
        " are ByteLevel, Metaspace, and Replace (of a string), ByteFallback, Fuse, Strip (at the"
        " start) in this order"
    )


class TokenNames(Protocol):
    """The strings of a vocabulary, by id."""

    def id_to_token(self, token_id: int, /) -> str | None:
        """Return the string of a token; None for an id without one."""


class TokenBytes:
    """The bytes of all tokens of one vocabulary, by id."""

    def __init__(
        self,
        names: TokenNames,
        spelling: Spelling,
        added: Mapping[int, str],
        special: Iterable[int],
    ) -> None:
        self._names = names
        self.spelling = spelling
        # The codec error handler for bytes that are not a character, by the vocabulary's kind.
        self.errors = ONE_MARK_PER_BYTE if self.spelling.byte_tokens else "replace"
        self.separator = self.spelling.separator.encode("utf-8")
        self.added = dict(added)
        self.special = frozenset(special)
        self._bytes: dict[int, bytes | None] = {}

    @classmethod
    def of(cls, backend: Backend, names: TokenNames | None = None) -> TokenBytes:
        """Return the bytes of a tokenizer's tokens; raise if its decoder cannot be streamed.

        `names` has their strings, if the tokenizer has only some of them.
        """
        tokens = backend.get_added_tokens_decoder()
        added = {token_id: token.content for token_id, token in tokens.items()}
        special = [token_id for token_id, token in tokens.items() if token.special]
        return cls(names or backend, read_spelling(backend), added, special)

    def bytes_of(self, token_id: int) -> bytes | None:
        """Return the bytes of a token; None for an id without one, such as a padded head's."""
        try:
            return self._bytes[token_id]
        except KeyError:
            token = self._token(token_id)
            is_added = token_id in self.added
            piece = None if token is None else self.spelling.bytes_of(token, is_added=is_added)
            if token is not None:  # made-up ids must not fill the memory
                self._bytes[token_id] = piece
            return piece

    def first_bytes_of(self, token_id: int) -> bytes | None:
        """Return the bytes of a token that begins a text."""
        if not self.spelling.first_differs:
            return self.bytes_of(token_id)
        token = self._token(token_id)
        if token is None:
            return None
        return self.spelling.first_bytes_of(token, is_added=token_id in self.added)

    def _token(self, token_id: int) -> str | None:
        if not 0 <= token_id < 1 << 32:
            raise TokenizerError(f"{token_id} is not a token id: ids are from 0 to 2**32 - 1")
        return self._names.id_to_token(token_id)
