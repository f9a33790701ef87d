"""Conversion of a stream of tokens to text: the deltas add up to the text of all tokens."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from octavo.text.token_bytes import TokenBytes

# An incomplete UTF-8 character has at most this many bytes.
LONGEST_INCOMPLETE_BYTES = 3


class Detokenizer:
    """A converter of one stream of token ids to text, which never emits half a character.

    The concatenation of everything that `push` and then `finish` return is the text of all ids.
    Emitted text is never taken back.

    `context` holds the tokens before the stream: the prompt, or the prompt and the tokens already
    emitted. Its text is not returned, but the stream continues it: a leading space is kept, and a
    character begun in the context is completed and emitted by the stream.

    `skip_special_tokens` leaves special tokens out, except those in `kept`: a parser may need some
    as marks of its format. `spaces_between_special_tokens=False` puts no separator between two
    neighbouring added tokens; it matters only to the rare vocabularies whose tokens are words
    joined by spaces.
    """

    def __init__(
        self,
        token_bytes: TokenBytes,
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        kept: frozenset[int] = frozenset(),
        context: Sequence[int] = (),
    ) -> None:
        self._token_bytes = token_bytes
        self._skipped = token_bytes.special if skip_special_tokens else frozenset[int]()
        if kept:
            self._skipped -= kept
        self._separates_added = spaces_between_special_tokens
        self._separator = token_bytes.separator
        self._errors = token_bytes.errors
        self._rest = b""  # the bytes of an incomplete character
        self._num_to_strip = token_bytes.spelling.num_stripped
        self._is_first = True
        self._was_added = False
        if context:
            self._continue(context)

    def push(self, token_id: int) -> str:
        """Return the text that `token_id` completes; empty while a character is incomplete."""
        return self._decode(self._piece(token_id))

    def peek(self, token_id: int) -> str:
        """Return the text that `push` would return, and a skipped token's own; change nothing."""
        if token_id in self._skipped:
            return (self._token_bytes.bytes_of(token_id) or b"").decode("utf-8", self._errors)
        before = self._rest, self._num_to_strip, self._is_first, self._was_added
        text = self.push(token_id)
        self._rest, self._num_to_strip, self._is_first, self._was_added = before
        return text

    def push_all(self, token_ids: Iterable[int]) -> str:
        """Return the text that these complete, as if they were pushed one after the other."""
        return self._decode(b"".join(map(self._piece, token_ids)))

    def finish(self) -> str:
        """End the stream and return the rest: U+FFFD for a character that stayed incomplete."""
        return self._decode(b"", is_end=True)

    def _decode(self, piece: bytes, is_end: bool = False) -> str:
        """Return the characters that these bytes complete, and keep the other bytes."""
        if self._rest:
            piece = self._rest + piece
        text, num_used = codecs.utf_8_decode(piece, self._errors, is_end)
        self._rest = piece[num_used:]
        return self._strip(text) if self._num_to_strip else text

    def _piece(self, token_id: int) -> bytes:
        """Return the bytes that `token_id` adds to the tokens before it."""
        if token_id in self._skipped:
            return b""
        token_bytes = self._token_bytes
        piece = (
            token_bytes.first_bytes_of(token_id)
            if self._is_first
            else token_bytes.bytes_of(token_id)
        )
        if piece is None:
            return b""
        if self._separator:
            is_added = token_id in token_bytes.added
            joins = is_added and self._was_added and not self._separates_added
            if not self._is_first and not joins:
                piece = self._separator + piece
            self._was_added = is_added
        self._is_first = False
        return piece

    def _strip(self, text: str) -> str:
        """Remove from the start of the text what the vocabulary puts there."""
        num_there = len(text) - len(text.lstrip(self._token_bytes.spelling.stripped))
        num_to_strip = min(num_there, self._num_to_strip)
        self._num_to_strip -= num_to_strip
        text = text[num_to_strip:]
        if text:  # what comes later is no longer the start
            self._num_to_strip = 0
        return text

    def _continue(self, context: Sequence[int]) -> None:
        """Set the state that pushing `context` would leave, reading only its two ends."""
        has_rules = self._token_bytes.spelling.first_differs or self._separator
        if not has_rules and not self._num_to_strip:
            self._is_first = False  # every token is the same bytes at every place
        for token_id in context:
            if not self._is_first and not self._num_to_strip:
                break
            self.push(token_id)
        tail = b""
        for token_id in reversed(context):
            if len(tail) >= LONGEST_INCOMPLETE_BYTES:
                break
            if token_id not in self._skipped:
                tail = (self._token_bytes.bytes_of(token_id) or b"") + tail
        if self._separator:  # it matters only then
            self._was_added = self._last_is_added(context)
        _, num_used = codecs.utf_8_decode(tail, self._errors, False)
        self._rest = tail[num_used:]

    def _last_is_added(self, context: Sequence[int]) -> bool:
        """Return whether the last visible token of `context` is an added one."""
        for token_id in reversed(context):
            if token_id not in self._skipped and self._token_bytes.bytes_of(token_id) is not None:
                return token_id in self._token_bytes.added
        return False
