"""The tokenizer that the metadata of a GGUF file describes."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import TypedDict

from msgspec import Struct
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from octavo.loader.errors import quote
from octavo.loader.metadata import Metadata
from octavo.text.gguf_metadata import NORMAL, PREFIX, USER_DEFINED, Vocabulary
from octavo.text.gguf_pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from octavo.text.load_errors import is_from_library, reason, tokenizer_errors_at
from octavo.text.token_bytes import TokenizerError
from octavo.text.tokenizer import Tokenizer, frame, no_panic

# Each way to cut a piece is tried, so the time grows with the square of its length.
MAX_PIECE_CHARACTERS = 4096
log = logging.getLogger(__name__)

SPACE = "▁"  # how SentencePiece writes a space
# The default ids, for files that do not give them.
SENTENCEPIECE_IDS = {"bos_token": 1, "eos_token": 2, "unk_token": 0}


class Built(Struct, frozen=True):
    """A tokenizer without its special tokens, and the defaults of its kind."""

    backend: Backend
    named: dict[str, str]
    add_bos: bool
    add_eos: bool = False


def tokenizer_from_gguf(metadata: Mapping[str, object]) -> Tokenizer:
    """Build the tokenizer from the `tokenizer.*` and `general.name` entries of a GGUF file."""
    place = tokenizer_errors_at(metadata.path) if isinstance(metadata, Metadata) else nullcontext()
    with place, no_panic("its own files"):
        return _build(metadata)


def _build(metadata: Mapping[str, object]) -> Tokenizer:
    vocabulary = Vocabulary(metadata)
    model = vocabulary.get("model", str)
    build = BUILDERS.get(model or "")
    if build is None:
        raise TokenizerError(
            f"{PREFIX}model is {quote(model or '')}; supported are {', '.join(sorted(BUILDERS))}."
            " Use the tokenizer.json of the original model: tokenizer=MODEL"
        )
    try:
        built = build(vocabulary)
    except BaseException as error:
        if not is_from_library(error):
            raise
        raise TokenizerError(
            f"{PREFIX}tokens contradicts {PREFIX}merges or {PREFIX}scores: {reason(error)}"
        ) from error
    return Tokenizer(built.backend, **complete(built, vocabulary))


class Settings(TypedDict):
    """The settings of a tokenizer beside its backend."""

    special_tokens: dict[str, str]
    end_ids: frozenset[int]
    chat_templates: dict[str, str]


def complete(built: Built, vocabulary: Vocabulary) -> Settings:
    """Add the special tokens to a tokenizer; return its other settings."""
    _add_tokens(built.backend, vocabulary)
    add_bos, add_eos = vocabulary.get("add_bos_token", bool), vocabulary.get("add_eos_token", bool)
    frame(
        built.backend,
        bos=built.named.get("bos_token") if _or(add_bos, built.add_bos) else None,
        eos=built.named.get("eos_token") if _or(add_eos, built.add_eos) else None,
    )
    return {
        "special_tokens": built.named,
        "end_ids": vocabulary.end_ids(),
        "chat_templates": vocabulary.chat_templates(),
    }


def _byte_level(vocabulary: Vocabulary) -> Built:
    """Build the kind "gpt2": bytes spelled as characters, explicit merges."""
    rule = pre_tokenizer_of(vocabulary)
    ids, merges = dict(vocabulary.ids), vocabulary.merges()
    return byte_level(models.BPE(ids, merges, ignore_merges=rule.ignore_merges), rule, vocabulary)


def byte_level(model: models.Model, rule: PreTokenizer, vocabulary: Vocabulary) -> Built:
    """Build a tokenizer that spells bytes as characters, before it has special tokens."""
    backend = Backend(model)
    if rule.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = rule.build()
    backend.decoder = decoders.ByteLevel()
    return Built(backend, vocabulary.named_tokens({}), add_bos=rule.add_bos)


def _sentencepiece(vocabulary: Vocabulary) -> Built:
    """Build the kind "llama": pieces merged by score."""
    scores = _scores(vocabulary)
    merges = merges_from_scores(vocabulary.tokens, scores, vocabulary.with_kind(NORMAL))
    named = vocabulary.named_tokens(SENTENCEPIECE_IDS)
    add_prefix = _or(vocabulary.get("add_space_prefix", bool), True)
    return Built(_pieces_backend(vocabulary, merges, named, add_prefix), named, add_bos=True)


def _gemma4(vocabulary: Vocabulary) -> Built:
    """Build the kind "gemma4": SentencePiece's spelling with explicit merges."""
    named = vocabulary.named_tokens({})
    merges = vocabulary.merges()
    return Built(_pieces_backend(vocabulary, merges, named, False), named, add_bos=True)


def _unigram(vocabulary: Vocabulary) -> Built:
    """Build the kind "t5": the most likely of all ways to split a text."""
    named = vocabulary.named_tokens({"eos_token": 1, "unk_token": 2})
    scored = list(zip(vocabulary.tokens, _scores(vocabulary), strict=False))
    unknown_id = vocabulary.ids[named["unk_token"]] if "unk_token" in named else None
    backend = Backend(models.Unigram(scored, unknown_id))
    steps: list[normalizers.Normalizer] = []
    if (charsmap := vocabulary.items("precompiled_charsmap", int)) is not None:
        steps.append(normalizers.Precompiled(bytes(byte & 0xFF for byte in charsmap)))
    if _or(vocabulary.get("remove_extra_whitespaces", bool), False):
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    backend.normalizer = normalizers.Sequence(steps)
    add_prefix = _or(vocabulary.get("add_space_prefix", bool), True)
    scheme = "always" if add_prefix else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, scheme)
    backend.decoder = decoders.Metaspace(SPACE, scheme)
    return Built(backend, named, add_bos=False, add_eos=True)


BUILDERS: dict[str, Callable[[Vocabulary], Built]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
    "gemma4": _gemma4,
    "t5": _unigram,
}


def _pieces_backend(
    vocabulary: Vocabulary, merges: list[tuple[str, str]], named: dict[str, str], add_prefix: bool
) -> Backend:
    """Build merges over text with `▁` for spaces; bytes without a piece have tokens."""
    unknown = named.get("unk_token")
    backend = Backend(
        models.BPE(
            dict(vocabulary.ids), merges, unk_token=unknown, fuse_unk=True, byte_fallback=True
        )
    )
    spaces = normalizers.Replace(" ", SPACE)
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if add_prefix:
        # A space goes before each stretch of plain text, also after a special token.
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = spaces
    backend.decoder = decoders.Sequence(steps)
    return backend


def pre_tokenizer_of(vocabulary: Vocabulary) -> PreTokenizer:
    """Return the rule that the file names; raise if it is unknown."""
    name = vocabulary.get("pre", str)
    if name is None:
        log.warning(
            "the GGUF file does not name its rule for splitting text (%spre); the oldest is used,"
            " which may not be the model's own: convert the model again to be sure",
            PREFIX,
        )
    rule = PRE_TOKENIZERS.get(name or "default")
    if rule is None:
        # Another rule would seem to work and would silently make the model worse.
        raise TokenizerError(
            f"{PREFIX}pre is {quote(name or '')}, an unknown rule for splitting text; known are"
            f" {', '.join(sorted(PRE_TOKENIZERS))}. Use the tokenizer.json of the original"
            " model: tokenizer=MODEL"
        )
    return rule


def _add_tokens(backend: Backend, vocabulary: Vocabulary) -> None:
    """Add control and user-defined tokens, matched whole; control tokens are special."""
    # The spaces after Phi-3's markers belong to them, which only the model's name shows.
    model_name = vocabulary.model_name
    is_phi3 = "phi-3" in model_name.lower() or "phi3" in model_name.lower()
    keeps_spaces = (
        frozenset({"<unk>", "<s>", "<|endoftext|>"}) if is_phi3 else vocabulary.ids.keys()
    )
    added = []
    for token_id in vocabulary.added_ids:
        token = vocabulary.tokens[token_id]
        # Converters pad a vocabulary with such names; text that contains one does not mean it.
        if token == f"[PAD{token_id}]":
            continue
        is_special = vocabulary.kinds[token_id] != USER_DEFINED
        takes_spaces = token not in keeps_spaces
        added.append(AddedToken(token, rstrip=takes_spaces, normalized=False, special=is_special))
    backend.add_tokens(added)


def _scores(vocabulary: Vocabulary) -> list[float]:
    """Return the score of each token."""
    scores = []
    for score in vocabulary.items("scores", object, len(vocabulary.tokens)) or []:
        if not isinstance(score, int | float) or not math.isfinite(score):
            raise TokenizerError(f"{PREFIX}scores holds {score!r}, which is not a finite number")
        scores.append(float(score))
    if not scores:
        raise TokenizerError(f"{PREFIX}scores is missing; this kind of vocabulary needs it")
    return scores


def _or(value: bool | None, default: bool) -> bool:
    return default if value is None else value


def merges_from_scores(
    tokens: Sequence[str], scores: Sequence[float], mergeable: Collection[int]
) -> list[tuple[str, str]]:
    """Return the pairs in order of rank; `mergeable` are the ids that merging may produce."""
    longest = max(mergeable, key=lambda token_id: len(tokens[token_id]), default=None)
    if longest is not None and len(tokens[longest]) > MAX_PIECE_CHARACTERS:
        raise TokenizerError(
            f"tokenizer.ggml.tokens[{longest}] has {len(tokens[longest]):,} characters, at most "
            f"{MAX_PIECE_CHARACTERS:,} are supported in this kind of vocabulary"
        )
    known = {tokens[token_id] for token_id in mergeable}
    best_first = sorted(mergeable, key=lambda token_id: (-scores[token_id], token_id))
    merges = []
    for token_id in best_first:
        token = tokens[token_id]
        for cut in range(len(token) - 1, 0, -1):
            left, right = token[:cut], token[cut:]
            if left in known and right in known:
                merges.append((left, right))
    return merges
