"""Text from tokens as they come: the deltas of a stream add up to the text of the whole."""

import codecs
from collections.abc import Iterable, Sequence

from octavo.text.token_bytes import TokenBytes

# A character of UTF-8 that is not complete yet has at most so many bytes.
LONGEST_INCOMPLETE_BYTES = 3


class Detokenizer:
    """Turns one stream of token ids to text, a token at a time and never half a character.

    The concatenation of everything that `push` and then `finish` return is the text of all ids
    together, whatever they are. What was emitted is never taken back.

    `context` is what stands before the stream: the prompt, or the prompt and what was already
    emitted. Its text is not returned, but the stream continues it: a leading space is kept, and a
    character begun in the context is completed and emitted by the stream.

    `skip_special_tokens` leaves special tokens out. `spaces_between_special_tokens=False` puts no
    separator between two neighbouring added tokens; it only matters to the rare vocabularies whose
    tokens are words that spaces join.
    """

    def __init__(
        self,
        pieces: TokenBytes,
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        context: Sequence[int] = (),
    ) -> None:
        self._pieces = pieces
        self._skipped = pieces.special if skip_special_tokens else frozenset[int]()
        self._separates_added = spaces_between_special_tokens
        self._separator = pieces.spelling.separator.encode("utf-8")
        self._errors = pieces.spelling.errors
        self._rest = b""  # of a character that is not whole yet
        self._num_to_strip = pieces.spelling.num_stripped
        self._is_first = True
        self._was_added = False
        if context:
            self._continue(context)

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; empty while a character is not whole."""
        return self._decode(self._piece(token_id))

    def push_all(self, token_ids: Iterable[int]) -> str:
        """The text that these complete, as pushing one after the other would give it."""
        return self._decode(b"".join(map(self._piece, token_ids)))

    def finish(self) -> str:
        """What is left when the stream ends: U+FFFD for a character that never became whole."""
        return self._decode(b"", is_end=True)

    def _decode(self, piece: bytes, is_end: bool = False) -> str:
        """The characters that are whole with these bytes; what is not waits."""
        if self._rest:
            piece = self._rest + piece
        text, num_used = codecs.utf_8_decode(piece, self._errors, is_end)
        self._rest = piece[num_used:]
        return self._strip(text) if self._num_to_strip else text

    def _piece(self, token_id: int) -> bytes:
        """The bytes that `token_id` adds, given what came before it."""
        if token_id in self._skipped:
            return b""
        pieces = self._pieces
        piece = pieces.first_bytes_of(token_id) if self._is_first else pieces.bytes_of(token_id)
        if piece is None:
            return b""
        if self._separator:
            is_added = token_id in pieces.added
            joins = is_added and self._was_added and not self._separates_added
            if not self._is_first and not joins:
                piece = self._separator + piece
            self._was_added = is_added
        self._is_first = False
        return piece

    def _strip(self, text: str) -> str:
        """Take what the vocabulary puts before a text from its start."""
        while self._num_to_strip and text:
            if text[0] != self._pieces.spelling.stripped:
                self._num_to_strip = 0
                break
            text = text[1:]
            self._num_to_strip -= 1
        return text

    def _continue(self, context: Sequence[int]) -> None:
        """Be as after pushing `context`, without reading more than its two ends."""
        for token_id in context:
            self.push(token_id)
            if not self._is_first and not self._num_to_strip:
                break
        tail = b""
        for token_id in reversed(context):
            if len(tail) >= LONGEST_INCOMPLETE_BYTES:
                break
            if token_id not in self._skipped:
                tail = (self._pieces.bytes_of(token_id) or b"") + tail
        self._was_added = bool(context) and self._last_is_added(context)
        _, num_used = codecs.utf_8_decode(tail, self._errors, False)
        self._rest = tail[num_used:]

    def _last_is_added(self, context: Sequence[int]) -> bool:
        """Whether the last visible token of `context` is an added one."""
        for token_id in reversed(context):
            if token_id not in self._skipped and self._pieces.bytes_of(token_id) is not None:
                return token_id in self._pieces.added
        return False
