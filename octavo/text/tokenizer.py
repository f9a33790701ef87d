"""The tokenizer of a model: text to token ids and back, and the bytes of every token."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache

from tokenizers import Tokenizer as Backend
from tokenizers import processors

from octavo.text.detokenizer import Detokenizer
from octavo.text.token_bytes import TokenBytes, TokenizerError

BOS, EOS, UNKNOWN, PADDING = "bos_token", "eos_token", "unk_token", "pad_token"
# Texts of single tokens, which log-probabilities name again and again: at most some megabytes.
MAX_REMEMBERED = 1 << 15


class Tokenizer:
    """What every tokenizer gives, whether it came from `tokenizer.json` or from a GGUF file.

    `special_tokens` are the named ones, as templates know them (`bos_token`, ...). `end_ids` are
    all tokens after which the model has nothing more to say. `chat_templates` are by name; the
    one without a name is called "default".
    """

    def __init__(
        self,
        backend: Backend,
        *,
        special_tokens: Mapping[str, str] | None = None,
        end_ids: Iterable[int] = (),
        chat_templates: Mapping[str, str] | None = None,
    ) -> None:
        # A saved setting must not cut or pad a prompt without anyone asking for it.
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.pieces = TokenBytes(backend)
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
        """One more than the highest token id; a model's head may be larger, padded."""
        ids = self.backend.get_vocab(with_added_tokens=True).values()
        return max(ids, default=-1) + 1

    @property
    def added_tokens(self) -> Mapping[int, str]:
        """The tokens beside the vocabulary proper, which are matched whole in a text."""
        return self.pieces.added

    @property
    def special_ids(self) -> frozenset[int]:
        """The tokens that `skip_special_tokens` leaves out."""
        return self.pieces.special

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of `text`, framed as the model wants it if `add_special_tokens`.

        A string may hold half of a UTF-16 pair, which no UTF-8 can say. Two halves that belong
        together become their character, any other half becomes U+FFFD.
        """
        encoding = self.backend.encode(_valid(text), add_special_tokens=add_special_tokens)
        return encoding.ids

    def decode(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        """The text of `token_ids`; bytes that are no character become U+FFFD."""
        stream = self.detokenizer(
            skip_special_tokens=skip_special_tokens,
            spaces_between_special_tokens=spaces_between_special_tokens,
        )
        return "".join([*map(stream.push, token_ids), stream.finish()])

    @cached_property
    def text_of(self) -> Callable[[int], str]:
        """The text of one token alone, whatever it is; the last ones are remembered."""

        def decode(token_id: int) -> str:
            return self.decode([token_id], skip_special_tokens=False)

        return lru_cache(MAX_REMEMBERED)(decode)

    def detokenizer(
        self,
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        context: Sequence[int] = (),
    ) -> Detokenizer:
        """A stream from tokens to text; `context` is what stands before it."""
        return Detokenizer(
            self.pieces,
            skip_special_tokens=skip_special_tokens,
            spaces_between_special_tokens=spaces_between_special_tokens,
            context=context,
        )

    def token_bytes(self, token_id: int) -> bytes:
        """Exactly the bytes that a token stands for within a text; none for an unknown id."""
        return self.pieces.bytes_of(token_id) or b""

    def id_to_token(self, token_id: int) -> str | None:
        """How the vocabulary writes a token."""
        return self.backend.id_to_token(token_id)

    def token_to_id(self, token: str) -> int | None:
        """The id of a token as the vocabulary writes it."""
        return self.backend.token_to_id(token)

    def _named_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self.backend.token_to_id(token)


def frame(backend: Backend, *, bos: str | None, eos: str | None) -> None:
    """Have `backend` put `bos` before and `eos` after a text, instead of what it did so far."""
    template, tokens = ["$A:0"], []
    for name, token in (("BOS", bos), ("EOS", eos)):
        if token is None:
            continue
        token_id = backend.token_to_id(token)
        if token_id is None:
            raise TokenizerError(
                f"texts are to be framed with {token!r}, which is not in the vocabulary; correct"
                " bos_token, eos_token, add_bos_token or add_eos_token"
            )
        template.insert(0 if name == "BOS" else len(template), f"{name}:0")
        tokens.append({"id": name, "ids": [token_id], "tokens": [token]})
    backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=tokens)


def _valid(text: str) -> str:
    """`text` without lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
