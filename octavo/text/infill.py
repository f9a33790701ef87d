"""The prompt of a text between two others, for models that were trained to fill it in."""

from __future__ import annotations

from octavo.text.tokenizer import Tokenizer

# The tokens before the prefix, before the suffix and before the middle: those of Qwen, StarCoder,
# SantaCoder and DeepSeek.
FORMS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)


class InfillError(ValueError):
    """A model without tokens for infilling."""


def infill_tokens(
    tokenizer: Tokenizer, prefix: str, suffix: str, *, add_special_tokens: bool
) -> list[int]:
    """Return the token ids after which the model writes what stands between the two texts."""
    ids = {text: token for token, text in tokenizer.added_tokens.items()}
    form = next((form for form in FORMS if all(mark in ids for mark in form)), None)
    if form is None:
        raise InfillError(
            "suffix: this model has no tokens for text between two others, as models for code "
            "have; leave it out"
        )
    before, between, after = (ids[mark] for mark in form)
    start = tokenizer.encode("") if add_special_tokens else []
    return [
        *start,
        before,
        *tokenizer.encode(prefix, add_special_tokens=False),
        between,
        *tokenizer.encode(suffix, add_special_tokens=False),
        after,
    ]
