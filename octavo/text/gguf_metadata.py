"""The tokenizer's entries in the metadata of a GGUF file, checked and with their meaning."""

from collections.abc import Mapping, Sequence
from operator import methodcaller
from typing import TypeVar

from octavo.text.token_bytes import TokenizerError

Item = TypeVar("Item")

_has_space = methodcaller("__contains__", " ")

PREFIX = "tokenizer.ggml."
TEMPLATE = "tokenizer.chat_template"

# The kinds of token, as the file numbers them.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

NAMED_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
END_KEYS = ("eot_token_id", "eom_token_id")

# A file names the end of a text, but a chat model ends its turn with another token. These texts
# are used for nothing else.
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
# In the format with these two, `<|end|>` ends one message of several.
HARMONY = frozenset({"<|return|>", "<|call|>"})


class Vocabulary:
    """Tokens, their kinds and the entries beside them."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata
        tokens = self.items("tokens", str)
        if not tokens:
            raise TokenizerError(
                f"the file has no vocabulary: {PREFIX}tokens is missing or empty; name the original"
                " model, for its tokenizer: tokenizer=MODEL"
            )
        if "" in tokens:
            # It cannot be looked up, but keeps its id under a name that no text has.
            tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]
        self.tokens = tokens
        self.ids = _ids(tokens)
        kinds = self.items("token_type", int, len(tokens)) or [NORMAL] * len(tokens)
        self.kinds = kinds[: len(tokens)]
        for end in END_TEXTS & self.ids.keys():
            if self.kinds[self.ids[end]] == NORMAL:
                self.kinds[self.ids[end]] = CONTROL

    def get(self, key: str, kind: type[Item]) -> Item | None:
        """The entry `key` below `tokenizer.ggml.`, if there is one."""
        value = self._metadata.get(PREFIX + key)
        if value is None or isinstance(value, kind):
            return value
        raise TokenizerError(
            f"{PREFIX}{key} must be {kind.__name__}, but is {type(value).__name__}"
        )

    def items(self, key: str, kind: type[Item], at_least: int = 0) -> list[Item] | None:
        """The list `key`, if there is one, whatever kind of sequence the reader made of it."""
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
        """The pairs of a vocabulary that lists them, best first."""
        merges = self.items("merges", str)
        if merges is None:
            raise TokenizerError(f"{PREFIX}merges is missing; this kind of vocabulary needs it")
        # Nearly always there is one space in each, between two pieces: then all are cut at once.
        pieces = " ".join(merges).split(" ")
        if len(pieces) == 2 * len(merges) and all(pieces) and all(map(_has_space, merges)):
            return list(zip(pieces[::2], pieces[1::2], strict=True))
        # A piece may begin with a space, but not hold another one.
        cuts = (merge.find(" ", 1) for merge in merges)
        return [(merge[:cut], merge[cut + 1 :]) for merge, cut in zip(merges, cuts, strict=True)]

    def with_kind(self, *kinds: int) -> list[int]:
        """The ids of all tokens of these kinds."""
        return [token_id for token_id, kind in enumerate(self.kinds) if kind in kinds]

    def named_tokens(self, defaults: Mapping[str, int]) -> dict[str, str]:
        """`bos_token` and its like: what the file says, or else `defaults`."""
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
        """Every token after which a model of this file has nothing more to say."""
        texts = END_TEXTS
        if self.ids.keys() >= HARMONY:
            texts -= {"<|end|>"}
        by_text = [self.ids[text] for text in texts if text in self.ids]
        by_key = [self.get(key, int) for key in END_KEYS]
        known = [end for end in by_key if end is not None and 0 <= end < len(self.tokens)]
        return frozenset([*by_text, *known])

    def chat_templates(self) -> dict[str, str]:
        """The templates by name; "default" is the one without."""
        templates = {}
        for key in self._metadata:
            name = "default" if key == TEMPLATE else key.removeprefix(f"{TEMPLATE}.")
            # A reader may decode values when they are asked for: ask for no others.
            if name != key and isinstance(template := self._metadata[key], str):
                templates[name] = template
        return templates

    def _is_special(self, token_id: int) -> bool:
        return token_id < len(self.tokens) and self.kinds[token_id] in (UNKNOWN, CONTROL)


def _ids(tokens: Sequence[str]) -> dict[str, int]:
    """The id of each token, which must be only one."""
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(ids) == len(tokens):
        return ids
    ids = {}
    for token_id, token in enumerate(tokens):
        if ids.setdefault(token, token_id) != token_id:
            raise TokenizerError(
                f"{PREFIX}tokens holds {token!r} twice, as {ids[token]} and as {token_id}"
            )
    return ids
