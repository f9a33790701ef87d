"""The tokens of a model as plain data: their texts, bytes and roles, without what splits a text.

A model's tokenizer is hostile input: its rules may take any time and memory. So a server loads it
in prompt workers only. The server's own process has this table, which one of them packs, and which
it needs to turn tokens into text. Packing refuses a vocabulary whose texts would be too large.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from octavo.text.detokenizer import Detokenizer
from octavo.text.token_bytes import Spelling, TokenBytes, TokenizerError, TokenNames

MAX_TOKEN_BYTES = 1 << 16  # of the longest token
MAX_TABLE_BYTES = 1 << 26  # of all tokens together
MAX_MARKS = 64  # that are put around a text
MAX_TEMPLATE_CHARACTERS = 1 << 18  # of a chat template


class TokenTable:
    """The texts of a model's tokens.

    `special_tokens` are the named ones, as templates know them (`bos_token`, ...). `end_ids` are
    all tokens that end generation. `chat_templates` are by name; the one without a name is called
    "default".
    """

    def __init__(
        self,
        names: TokenNames,
        bytes_by_token: TokenBytes,
        *,
        special_tokens: Mapping[str, str] | None = None,
        end_ids: Iterable[int] = (),
        chat_templates: Mapping[str, str] | None = None,
        marks: Sequence[int] = (),
    ) -> None:
        self._names = names
        self.bytes_by_token = bytes_by_token
        self.special_tokens = dict(special_tokens or {})
        self.chat_templates = dict(chat_templates or {})
        self.end_ids = frozenset(end_ids)
        self._marks = tuple(marks)

    @property
    def marks(self) -> Sequence[int]:
        """The tokens of an empty text: the marks that every text gets, such as of its beginning."""
        return self._marks

    @property
    def added_tokens(self) -> Mapping[int, str]:
        """The tokens beside the vocabulary itself, which are matched whole in a text."""
        return self.bytes_by_token.added

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids of the tokens that `skip_special_tokens` leaves out."""
        return self.bytes_by_token.special

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Raise TokenizerError; only a `Tokenizer` splits texts."""
        raise TokenizerError(
            "texts are tokenised in prompt workers, and not in the server's own process; give "
            "token ids"
        )

    def encode_framed(
        self,
        text: str,
        second: str | None = None,
        most_tokens: int | None = None,
        *,
        add_special_tokens: bool = True,
        keeps_end: bool = False,
    ) -> tuple[list[int], int]:
        """Raise TokenizerError, like `encode`."""
        return self.encode(text), 0

    def beginning(self, text: str, most_tokens: int) -> str:
        """Raise TokenizerError, like `encode`."""
        return "" if not self.encode(text) else text

    def decode(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        """Return the text of `token_ids`; bytes that are not a character become U+FFFD."""
        stream = self.detokenizer(
            skip_special_tokens=skip_special_tokens,
            spaces_between_special_tokens=spaces_between_special_tokens,
        )
        return "".join([*map(stream.push, token_ids), stream.finish()])

    def detokenizer(
        self,
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        context: Sequence[int] = (),
    ) -> Detokenizer:
        """Return a stream from tokens to text; `context` are the tokens before it."""
        return Detokenizer(
            self.bytes_by_token,
            skip_special_tokens=skip_special_tokens,
            spaces_between_special_tokens=spaces_between_special_tokens,
            context=context,
        )

    def token_bytes(self, token_id: int) -> bytes:
        """Return the exact bytes of a token within a text; none for an unknown id."""
        return self.bytes_by_token.bytes_of(token_id) or b""

    def id_to_token(self, token_id: int) -> str | None:
        """Return the vocabulary's string for a token."""
        return self._names.id_to_token(token_id)


class PackedTable(Struct, frozen=True, tag=True):
    """A table of tokens on its way from the process that read the tokenizer."""

    ids: bytes  # of all tokens, ascending, four bytes each
    ends: bytes  # where each one's string ends, four bytes each
    strings: bytes
    added: dict[int, str]
    special: list[int]
    spelling: Spelling
    special_tokens: dict[str, str]
    end_ids: list[int]
    chat_templates: dict[str, str]  # to recognise the formats of answers
    marks: list[int]


class _PackedNames:
    """The strings of a packed table."""

    def __init__(self, packed: PackedTable) -> None:
        self._ids, self._ends = array("I", packed.ids), array("I", packed.ends)
        self._strings = packed.strings

    def id_to_token(self, token_id: int) -> str | None:
        place = bisect_left(self._ids, token_id)
        if place == len(self._ids) or self._ids[place] != token_id:
            return None
        start = self._ends[place - 1] if place else 0
        return self._strings[start : self._ends[place]].decode()


def pack(table: TokenTable, token_ids: Iterable[int]) -> PackedTable:
    """Return the table with these tokens; raise if their texts are too large to be harmless."""
    ids, ends, strings, size, longest = array("I"), array("I"), [], 0, 0
    for token_id in sorted(set(token_ids)):
        string = (table.id_to_token(token_id) or "").encode()
        strings.append(string)
        size += len(string)
        longest = max(longest, len(string))
        if size > MAX_TABLE_BYTES:
            break
        ids.append(token_id)
        ends.append(size)
    spelling = table.bytes_by_token.spelling
    check_size("the tokens", size, spelling.growth, MAX_TABLE_BYTES)
    check_size("the longest token", longest, spelling.growth, MAX_TOKEN_BYTES)
    return PackedTable(
        ids=ids.tobytes(),
        ends=ends.tobytes(),
        strings=b"".join(strings),
        added=dict(table.added_tokens),
        special=sorted(table.special_ids),
        spelling=spelling,
        special_tokens=table.special_tokens,
        end_ids=sorted(table.end_ids),
        chat_templates={
            name: source
            for name, source in table.chat_templates.items()
            if len(source) <= MAX_TEMPLATE_CHARACTERS
        },
        marks=list(table.marks[:MAX_MARKS]),
    )


def check_size(what: str, size: int, growth: float, limit: int) -> None:
    """Raise if a string of this size may become a text beyond the limit."""
    if size * growth > limit:
        raise TokenizerError(
            f"the tokenizer's texts are too large: {what} would take up to {size * growth:.0f}"
            f" bytes, more than the limit of {limit}; use the model's original tokenizer"
        )


def unpack(packed: PackedTable) -> TokenTable:
    """Return the table that was packed."""
    names = _PackedNames(packed)
    bytes_by_token = TokenBytes(names, packed.spelling, packed.added, packed.special)
    return TokenTable(
        names,
        bytes_by_token,
        special_tokens=packed.special_tokens,
        end_ids=packed.end_ids,
        chat_templates=packed.chat_templates,
        marks=packed.marks,
    )
