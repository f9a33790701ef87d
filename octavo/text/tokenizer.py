"""The tokenizer of a model: text to token ids and back, and the bytes of every token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

from tokenizers import Tokenizer as Backend
from tokenizers import processors

from octavo.text.load_errors import is_from_library
from octavo.text.token_bytes import TokenBytes, TokenizerError, TokenNames
from octavo.text.token_table import PackedTable, TokenTable, pack

BOS, EOS, UNKNOWN, PADDING = "bos_token", "eos_token", "unk_token", "pad_token"
MAX_CHARACTER_BYTES = 4  # in UTF-8; a token has one byte at least
MAX_REASON_CHARACTERS = 200  # of the library's own message


class Tokenizer(TokenTable):
    """A tokenizer that was read from `tokenizer.json` or from a GGUF file."""

    def __init__(
        self,
        backend: Backend,
        *,
        special_tokens: Mapping[str, str] | None = None,
        end_ids: Iterable[int] = (),
        chat_templates: Mapping[str, str] | None = None,
        names: TokenNames | None = None,  # of all tokens, if the backend has only some of them
    ) -> None:
        # Saved settings must not truncate or pad a prompt when no caller asked for it.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        named = dict(special_tokens or {})
        ids = {name: backend.token_to_id(token) for name, token in named.items()}
        self.bos_id, self.eos_id = ids.get(BOS), ids.get(EOS)
        self.unknown_id, self.padding_id = ids.get(UNKNOWN), ids.get(PADDING)
        eos = [] if self.eos_id is None else [self.eos_id]
        super().__init__(
            names or backend,
            TokenBytes.of(backend, names),
            special_tokens=named,
            end_ids=[*end_ids, *eos],
            chat_templates=chat_templates,
        )

    @property
    def backend(self) -> Backend:
        """The library's own tokenizer, which defines the tokens."""
        return self._backend

    @cached_property
    def vocab_size(self) -> int:
        """The highest token id plus one; a model's head may be padded to more."""
        ids = self.backend.get_vocab(with_added_tokens=True).values()
        return max(ids, default=-1) + 1

    @property
    def marks(self) -> Sequence[int]:
        return self.encode("")

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of `text`, with the model's special tokens if `add_special_tokens`.

        A string may hold half of a UTF-16 pair, which UTF-8 cannot encode. Two halves that belong
        together become their character, any other half becomes U+FFFD.
        """
        with no_panic("this text"):
            # Without the tokens' places in the text, which take three times as long for long texts.
            encode = self.backend.encode_batch_fast
            return encode([valid_text(text)], add_special_tokens=add_special_tokens)[0].ids

    def encode_with_places(
        self, text: str, *, add_special_tokens: bool = True
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the token ids, and the place of each in the text; (0, 0) for special tokens."""
        with no_panic("this text"):
            encode = self.backend.encode_batch
            found = encode([valid_text(text)], add_special_tokens=add_special_tokens)[0]
        return found.ids, found.offsets

    def encode_framed(
        self,
        text: str,
        second: str | None = None,
        most_tokens: int | None = None,
        *,
        add_special_tokens: bool = True,
        keeps_end: bool = False,
    ) -> tuple[list[int], int]:
        """Return the token ids of a text or of a pair, and where the second text begins (or 0).

        What has more than `most_tokens` is cut: the longer text of a pair first, each at its end
        or, with `keeps_end`, at its start, so that the special tokens around the texts stay.
        """
        given = valid_text(text) if second is None else (valid_text(text), valid_text(second))
        if most_tokens is not None:
            is_pair = second is not None
            num_special = self.backend.num_special_tokens_to_add(is_pair)
            if most_tokens <= num_special * add_special_tokens:
                raise TokenizerError(
                    f"{most_tokens} tokens leave nothing of the text beside the model's "
                    f"{num_special} special tokens; allow more"
                )
            self.backend.enable_truncation(most_tokens, direction="left" if keeps_end else "right")
        try:
            with no_panic("this text"):
                encode = self.backend.encode_batch_fast
                found = encode([given], add_special_tokens=add_special_tokens)[0]
        finally:
            self.backend.no_truncation()
        if second is None:
            return found.ids, 0
        types = found.type_ids  # all 0 where the model does not tell the texts of a pair apart
        return found.ids, types.index(1) if 1 in types else 0

    def beginning(self, text: str, most_tokens: int) -> str:
        """Return the longest beginning of a text that has at most so many tokens of its own.

        A text that is cut may be split differently at its end, and is cut again if it has more.
        """
        left = valid_text(text)
        while len(left) * MAX_CHARACTER_BYTES > most_tokens:
            with no_panic("this text"):
                found = self.backend.encode_batch([left], add_special_tokens=False)[0]
            if len(found.ids) <= most_tokens:
                break
            places = found.offsets
            end = min(places[most_tokens - 1][1], places[most_tokens][0])
            left = left[: min(end, len(left) - 1)]
        return text if len(left) == len(text) else left

    def pack(self) -> PackedTable:
        """Return the table of all tokens; refuse one that is larger than allowed."""
        return pack(self, self.backend.get_vocab(with_added_tokens=True).values())

    def token_to_id(self, token: str) -> int | None:
        """Return the id of the vocabulary's string."""
        return self.backend.token_to_id(token)


@contextmanager
def no_panic(what: str) -> Iterator[None]:
    """Raise a TokenizerError where the library fails or panics.

    A panic is no `Exception` in Python. The library panics on rules of a model that it cannot
    follow, such as a pattern that backtracks without an end.
    """
    try:
        yield
    except BaseException as error:
        if not is_from_library(error):
            raise
        reason = str(error)[:MAX_REASON_CHARACTERS]
        raise TokenizerError(f"the model's tokenizer fails on {what}: {reason}") from None


def frame(backend: Backend, *, bos: str | None, eos: str | None) -> None:
    """Make `backend` put `bos` before and `eos` after a text, and nothing else."""
    template, tokens = ["$A:0"], []
    for name, token in (("BOS", bos), ("EOS", eos)):
        if token is None:
            continue
        token_id = backend.token_to_id(token)
        if token_id is None:
            raise TokenizerError(
                f"texts should be framed with {token!r}, which is not in the vocabulary; correct"
                " bos_token, eos_token, add_bos_token or add_eos_token"
            )
        template.insert(0 if name == "BOS" else len(template), f"{name}:0")
        tokens.append({"id": name, "ids": [token_id], "tokens": [token]})
    backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=tokens)


def valid_text(text: str) -> str:
    """Return `text` without lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
