"""What a model's files say about generating with it: where texts end, and how to sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.loader.metadata import Metadata
from octavo.models.config_reader import Config, ConfigurationError

_SAMPLING = ("temperature", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """None: the files do not say."""

    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()  # any of them ends a text; the first is "the" end
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None


def of_configuration(
    config: Mapping[str, Any], generation: Mapping[str, Any]
) -> GenerationDefaults:
    """generation_config.json first, config.json where it is silent."""
    ids = {
        **_text(config),
        **{key: value for key, value in generation.items() if value is not None},
    }
    said = Config(generation)
    return GenerationDefaults(
        bos_id=next(iter(_ids(ids, "bos_token_id")), None),
        eos_ids=_ids(ids, "eos_token_id"),
        top_k=_top_k(said),
        max_new_tokens=_max_new_tokens(said),
        **{name: said.optional_number(name) for name in _SAMPLING},
    )


def of_gguf(metadata: Metadata) -> GenerationDefaults:
    """A GGUF file says it among the tokenizer's keys and under general.sampling."""

    def token(name: str) -> int | None:
        return metadata.integer(f"tokenizer.ggml.{name}_token_id", None)

    # The end of a turn and of a message end a text too, where they are not its end already.
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


def _top_k(said: Config) -> int | None:
    """Some say -1 for all tokens, some 0."""
    if said.values.get("top_k") == -1:
        return 0
    return said.integer("top_k") if said.has("top_k") else None


def _max_new_tokens(said: Config) -> int | None:
    """Nothing, and what leaves room for nothing, is no recommendation."""
    most = said.integer("max_new_tokens") if said.has("max_new_tokens") else None
    return most if most is None or most > 0 else None


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A model of text and images may say it of its text part alone."""
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
