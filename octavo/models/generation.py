"""The defaults for generation in a model's files: end tokens and sampling parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.loader.metadata import Metadata
from octavo.models.config_reader import Config, ConfigurationError

_SAMPLING = ("temperature", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """The defaults of one model; None means that its files have none."""

    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()  # any of them ends a text; the first is the tokenizer's own
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None


def defaults_from_json(
    config: Mapping[str, Any], generation: Mapping[str, Any]
) -> GenerationDefaults:
    """Read generation_config.json, and config.json for token ids that it lacks."""
    ids = {
        **_text(config),
        **{key: value for key, value in generation.items() if value is not None},
    }
    sampling = Config(generation)
    return GenerationDefaults(
        bos_id=next(iter(_ids(ids, "bos_token_id")), None),
        eos_ids=_ids(ids, "eos_token_id"),
        top_k=_top_k(sampling),
        max_new_tokens=_max_new_tokens(sampling),
        **{name: sampling.optional_number(name) for name in _SAMPLING},
    )


def defaults_from_gguf(metadata: Metadata) -> GenerationDefaults:
    """Read a GGUF file's tokenizer keys and those under general.sampling."""

    def token(name: str) -> int | None:
        return metadata.integer(f"tokenizer.ggml.{name}_token_id", None)

    # The ends of a turn (eot) and of a message (eom) also end a text.
    ends = dict.fromkeys(end for end in map(token, ("eos", "eot", "eom")) if end is not None)
    return GenerationDefaults(
        bos_id=token("bos"),
        eos_ids=tuple(ends),
        temperature=metadata.number("general.sampling.temp", None),
        top_p=metadata.number("general.sampling.top_p", None),
        top_k=metadata.integer("general.sampling.top_k", None),
        min_p=metadata.number("general.sampling.min_p", None),
        repetition_penalty=metadata.number("general.sampling.penalty_repeat", None),
    )


def _top_k(sampling: Config) -> int | None:
    """Read top_k; files use both -1 and 0 for all tokens."""
    if sampling.values.get("top_k") == -1:
        return 0
    return sampling.integer("top_k") if sampling.has("top_k") else None


def _max_new_tokens(sampling: Config) -> int | None:
    """Read max_new_tokens; 0 is no recommendation."""
    most = sampling.integer("max_new_tokens") if sampling.has("max_new_tokens") else None
    return most if most is None or most > 0 else None


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Merge in text_config, where multimodal models may keep their token ids."""
    part = config.get("text_config")
    return {**part, **config} if isinstance(part, Mapping) else config


def _ids(values: Mapping[str, Any], key: str) -> tuple[int, ...]:
    value = values.get(key)
    found = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(item) is int and item >= 0 for item in found):
        raise ConfigurationError(
            f"config: {key} must be a token id or a list of them, is {value!r}"
        )
    return tuple(found)
