"""The tokenizer of a model: text to token ids and back, and the bytes of every token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from tokenizers import Tokenizer as Backend
from tokenizers import processors

from octavo.text.detokenizer import Detokenizer
from octavo.text.token_bytes import TokenBytes, TokenizerError

BOS, EOS, UNKNOWN, PADDING = "bos_token", "eos_token", "unk_token", "pad_token"


class Tokenizer:
    """A tokenizer that was read from `tokenizer.json` or from a GGUF file.

    `special_tokens` are the named ones, as templates know them (`bos_token`, ...). `end_ids` are
    all tokens that end generation. `chat_templates` are by name; the one without a name is called
    "default".
    """

    def __init__(
        self,
        backend: Backend,
        *,
        special_tokens: Mapping[str, str] | None = None,
        end_ids: Iterable[int] = (),
        chat_templates: Mapping[str, str] | None = None,
    ) -> None:
        # Saved settings must not truncate or pad a prompt when no caller asked for it.
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.bytes_by_token = TokenBytes(backend)
        self.special_tokens = dict(special_tokens or {})
        self.chat_templates = dict(chat_templates or {})
        self.bos_id = self._named_id(BOS)
        self.eos_id = self._named_id(EOS)
        self.unknown_id = self._named_id(UNKNOWN)
        self.padding_id = self._named_id(PADDING)
        eos = [] if self.eos_id is None else [self.eos_id]
        self.end_ids = frozenset([*end_ids, *eos])

    @cached_property
    def vocab_size(self) -> int:
        """The highest token id plus one; a model's head may be padded to more."""
        ids = self.backend.get_vocab(with_added_tokens=True).values()
        return max(ids, default=-1) + 1

    @property
    def added_tokens(self) -> Mapping[int, str]:
        """The tokens beside the vocabulary itself, which are matched whole in a text."""
        return self.bytes_by_token.added

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids of the tokens that `skip_special_tokens` leaves out."""
        return self.bytes_by_token.special

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of `text`, with the model's special tokens if `add_special_tokens`.

        A string may hold half of a UTF-16 pair, which UTF-8 cannot encode. Two halves that belong
        together become their character, any other half becomes U+FFFD.
        """
        encoding = self.backend.encode(valid_text(text), add_special_tokens=add_special_tokens)
        return encoding.ids

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
        return self.backend.id_to_token(token_id)

    def token_to_id(self, token: str) -> int | None:
        """Return the id of the vocabulary's string."""
        return self.backend.token_to_id(token)

    def _named_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self.backend.token_to_id(token)


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
