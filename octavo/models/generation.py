"""The defaults for generation in a model's files: end tokens and sampling parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from octavo.loader.errors import errors_at
from octavo.loader.metadata import Metadata
from octavo.loader.strict_json import read_object
from octavo.model_facts import GenerationDefaults
from octavo.models.bounds import MOST
from octavo.models.values import ConfigurationError, Values, shown

GENERATION_CONFIG = "generation_config.json"
SAMPLING = ("temperature", "top_p", "min_p", "repetition_penalty")
# GGUF's names of the same.
_GGUF_SAMPLING = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
# Each is compared with every token that is drawn.
MAX_END_TOKENS = 1024


def defaults_in(directory: Path, config: Mapping[str, Any]) -> GenerationDefaults:
    """Read the directory's generation_config.json, and `config` for token ids that it lacks."""
    with errors_at(directory / "config.json"):
        text = Values(_text(config))
        bos, eos = (_ids(text, key) for key in ("bos_token_id", "eos_token_id"))
    path = directory / GENERATION_CONFIG
    found = _read(path) if path.is_file() else GenerationDefaults()
    bos_id = next(iter(bos), None) if found.bos_id is None else found.bos_id
    return replace(found, bos_id=bos_id, eos_ids=found.eos_ids or eos)


def _read(path: Path) -> GenerationDefaults:
    with errors_at(path):
        values = Values(read_object(path))
        return GenerationDefaults(
            bos_id=next(iter(_ids(values, "bos_token_id")), None),
            eos_ids=_ids(values, "eos_token_id"),
            top_k=_top_k(values, "top_k"),
            max_new_tokens=_max_new_tokens(values),
            **{name: values.optional_number(name) for name in SAMPLING},
        )


def chosen_defaults(
    model: GenerationDefaults, source: str, changed: Mapping[str, Any]
) -> GenerationDefaults:
    """Return the defaults that a server uses, from those of the model's own files.

    `source` is "auto" (the model's own), "vllm" (the model's end tokens and no sampling
    parameters), or the place of another generation_config.json. `changed` fields replace both.
    """
    if source == "auto":
        found = model
    elif source == "vllm":
        found = GenerationDefaults(model.bos_id, model.eos_ids)
    else:
        path = Path(source)
        found = _read(path / GENERATION_CONFIG if path.is_dir() else path)
        found = replace(found, bos_id=model.bos_id, eos_ids=found.eos_ids or model.eos_ids)
    return replace(found, **changed)


def defaults_from_gguf(metadata: Metadata) -> GenerationDefaults:
    """Read a GGUF file's tokenizer keys and those under general.sampling."""
    values = Values(metadata, stored_names={})

    def token(name: str) -> tuple[int, ...]:
        return _ids(values, f"tokenizer.ggml.{name}_token_id")

    sampling: dict[str, Any] = {
        name: values.optional_number(key) for name, key in _GGUF_SAMPLING.items()
    }
    # The ends of a turn (eot) and of a message (eom) also end a text.
    ends = dict.fromkeys(end for name in ("eos", "eot", "eom") for end in token(name))
    return GenerationDefaults(
        bos_id=next(iter(token("bos")), None),
        eos_ids=tuple(ends),
        top_k=_top_k(values, "general.sampling.top_k"),
        **sampling,
    )


def _top_k(values: Values, key: str) -> int | None:
    """Read top_k; files use both -1 and 0 for all tokens."""
    if values.values.get(key) == -1:
        return 0
    return values.integer(key) if values.has(key) else None


def _max_new_tokens(values: Values) -> int | None:
    """Read max_new_tokens; 0 is no recommendation."""
    most = values.integer("max_new_tokens") if values.has("max_new_tokens") else None
    return most if most is None or most > 0 else None


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Merge in text_config, where multimodal models may keep their token ids."""
    part = config.get("text_config")
    return {**part, **config} if isinstance(part, Mapping) else config


def _ids(values: Values, key: str) -> tuple[int, ...]:
    value = values.values.get(key)
    found = value if isinstance(value, list) else [] if value is None else [value]
    most = MOST["eos_token_id"]
    if len(found) > MAX_END_TOKENS or not all(
        type(item) is int and 0 <= item <= most for item in found
    ):
        raise ConfigurationError(
            f"{values.name_of(key)} must be a token id from 0 to {most:,}, or a list of at most "
            f"{MAX_END_TOKENS:,}, is {shown(value)}"
        )
    return tuple(found)
