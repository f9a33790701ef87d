"""The tokenizer's entries in the metadata of a GGUF file, checked and interpreted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TypeVar

from octavo.loader.errors import quote
from octavo.loader.metadata import Metadata
from octavo.text.token_bytes import TokenizerError

Item = TypeVar("Item")

PREFIX = "tokenizer.ggml."
TEMPLATE = "tokenizer.chat_template"

# The kinds of tokens and their numbers in the file.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
ADDED = (UNKNOWN, CONTROL, USER_DEFINED)  # tokens that a text contains as a whole

NAMED_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
END_KEYS = ("eot_token_id", "eom_token_id")

# A file names the token that ends a text, but a chat model ends its turn with another one. Tokens
# with these texts are used for nothing else.
END_TEXTS = frozenset(
    {
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<turn|>",
        "<|END_OF_TURN_TOKEN|>",
        "<｜end▁of▁sentence｜>",
    }
)
# In the format that has these two, `<|end|>` ends one message of several.
HARMONY = frozenset({"<|return|>", "<|call|>"})


class Vocabulary:
    """The tokens of a GGUF file, their kinds, and the entries about them.

    The tokens and their ids are read here unless something else has them already.
    """

    def __init__(
        self,
        metadata: Mapping[str, object],
        read: tuple[Sequence[str], Mapping[str, int]] | None = None,
    ) -> None:
        self._metadata = metadata
        self.tokens, self.ids = read or self._read()
        tokens = self.tokens
        kinds = self.items("token_type", int, len(tokens)) or [NORMAL] * len(tokens)
        self.kinds = kinds[: len(tokens)]
        for end in END_TEXTS & self.ids.keys():
            if self.kinds[self.ids[end]] == NORMAL:
                self.kinds[self.ids[end]] = CONTROL

    @property
    def model_name(self) -> str:
        """The name of the model, by which a few of its rules are recognised."""
        return str(self._metadata.get("general.name", ""))

    def _read(self) -> tuple[list[str], dict[str, int]]:
        tokens = self.items("tokens", str)
        if not tokens:
            raise TokenizerError(
                f"the file has no vocabulary: {PREFIX}tokens is missing or empty; use the tokenizer"
                " of the original model: tokenizer=MODEL"
            )
        if "" in tokens:
            # An empty token matches no text; it keeps its id under a name that no text contains.
            tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]
        return tokens, _ids(tokens)

    def get(self, key: str, kind: type[Item]) -> Item | None:
        """Return the entry `key` below `tokenizer.ggml.`, if there is one."""
        value = self._metadata.get(PREFIX + key)
        if value is None or isinstance(value, kind):
            return value
        raise TokenizerError(
            f"{PREFIX}{key} must be {kind.__name__}, but is {type(value).__name__}"
        )

    def items(self, key: str, kind: type[Item], at_least: int = 0) -> list[Item] | None:
        """Return the list `key`, if there is one; the reader may have made an array of it."""
        value = self._metadata.get(PREFIX + key)
        if value is None:
            return None
        as_list = getattr(value, "tolist", None)
        if as_list is not None:
            value = as_list()
        if not isinstance(value, list | tuple) or not all(
            issubclass(found, kind) for found in set(map(type, value))
        ):
            raise TokenizerError(f"{PREFIX}{key} must be a list of {kind.__name__}")
        if len(value) < at_least:
            raise TokenizerError(f"{PREFIX}{key} has {len(value)} entries for {at_least} tokens")
        return list(value)

    def merges(self) -> list[tuple[str, str]]:
        """Return the merged pairs that the file lists, best first."""
        if isinstance(self._metadata, Metadata):
            pairs = self._metadata.pairs(f"{PREFIX}merges")
            if pairs is not None:
                return pairs
        merges = self.items("merges", str)
        if merges is None:
            raise TokenizerError(f"{PREFIX}merges is missing; this kind of vocabulary needs it")
        # A piece may begin with a space, but has no other one.
        cuts = (merge.find(" ", 1) for merge in merges)
        return [(merge[:cut], merge[cut + 1 :]) for merge, cut in zip(merges, cuts, strict=True)]

    def with_kind(self, kind: int) -> list[int]:
        """Return the ids of all tokens of a kind."""
        return [token_id for token_id, found in enumerate(self.kinds) if found == kind]

    @cached_property
    def added_ids(self) -> list[int]:
        """The ids of the tokens that a text contains as a whole."""
        return [token_id for token_id, kind in enumerate(self.kinds) if kind in ADDED]

    def named_tokens(self, defaults: Mapping[str, int]) -> dict[str, str]:
        """Return `bos_token` and the others by name, from the file or else from `defaults`."""
        named = {}
        for name, key in NAMED_TOKENS.items():
            token_id = self.get(key, int)
            if token_id is None:
                token_id = defaults.get(name)
                if token_id is None or not self._is_special(token_id):
                    continue
            if not 0 <= token_id < len(self.tokens):
                raise TokenizerError(
                    f"{PREFIX}{key} is {token_id}, but there are {len(self.tokens)} tokens"
                )
            named[name] = self.tokens[token_id]
        return named

    def end_ids(self) -> frozenset[int]:
        """Return the ids of all tokens that end generation."""
        texts = END_TEXTS
        if self.ids.keys() >= HARMONY:
            texts -= {"<|end|>"}
        by_text = [self.ids[text] for text in texts if text in self.ids]
        by_key = [self.get(key, int) for key in END_KEYS]
        known = [end for end in by_key if end is not None and 0 <= end < len(self.tokens)]
        return frozenset([*by_text, *known])

    def chat_templates(self) -> dict[str, str]:
        """Return the chat templates by name; the one without a name is "default"."""
        templates = {}
        for key in self._metadata:
            name = "default" if key == TEMPLATE else key.removeprefix(f"{TEMPLATE}.")
            # A reader may decode a value when it is read: read only the templates.
            if name != key and isinstance(template := self._metadata[key], str):
                templates[name] = template
        return templates

    def _is_special(self, token_id: int) -> bool:
        return token_id < len(self.tokens) and self.kinds[token_id] in (UNKNOWN, CONTROL)


def _ids(tokens: Sequence[str]) -> dict[str, int]:
    """Return the id of each token; raise if a token has two."""
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(ids) == len(tokens):
        return ids
    ids = {}
    for token_id, token in enumerate(tokens):
        if ids.setdefault(token, token_id) != token_id:
            raise TokenizerError(
                f"{PREFIX}tokens holds {quote(token)} twice, as {ids[token]} and as {token_id}"
            )
    return ids
