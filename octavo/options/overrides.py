"""Settings that are JSON objects and replace values of the model's files, read and checked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from octavo.core.config import ConfigError
from octavo.core.sampling_params import LogitsProcessor, RequestError, SamplingParams
from octavo.nearest import nearest_or_all

# The sampling parameters that a generation_config.json may set, by their names there.
_GENERATION = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "max_new_tokens",
)
# The options that are JSON objects.
EXAMPLES = {
    "hf_overrides": '{"classifier_from_token": ["no", "yes"]}',
    "override_generation_config": '{"temperature": 0.6, "top_p": 0.95}',
}


def read_override(option: str, given: Any) -> dict[str, Any]:
    """Return the values of a mapping or of a JSON object's text, without those that are null."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            raise wrong_override(option, f"{given[:100]!r} is not JSON; write an object") from None
    if not isinstance(given, Mapping):
        raise wrong_override(option, f"it is a {type(given).__name__}; it must be an object")
    return {name: value for name, value in given.items() if value is not None}


def check_override(given: Any) -> None:
    """Refuse fields and values that no request could use."""
    option = "override_generation_config"
    if not isinstance(given, dict):
        raise wrong_override(option, f"it is a {type(given).__name__}; it must be an object")
    for name in given:
        if name not in _GENERATION:
            hint = nearest_or_all(str(name), _GENERATION)
            raise wrong_override(option, f"there is no field {str(name)[:100]!r}; {hint}")
    sampling = {"max_tokens" if name == "max_new_tokens" else name: given[name] for name in given}
    try:
        SamplingParams(**sampling)
    except RequestError as error:
        message = str(error).replace("max_tokens", "max_new_tokens")
        raise wrong_override(option, message) from None


def wrong_override(option: str, problem: str) -> ConfigError:
    return ConfigError(f"{option}: {problem}; an example is {EXAMPLES[option]}")


def check_place(given: str) -> None:
    """Refuse a place without a generation_config.json before the model is loaded."""
    if given in ("auto", "vllm"):
        return
    path = Path(given)
    if path.is_dir():
        path /= "generation_config.json"
    if not path.exists():
        raise ConfigError(
            f"generation_config={given!r}: there is no file {path}; give auto, vllm, or the place "
            "of a generation_config.json"
        )


def split_processors(
    given: Mapping[str, LogitsProcessor] | Sequence[str] | None,
) -> tuple[Mapping[str, LogitsProcessor] | None, dict[str, Any]]:
    """Return functions that requests name, and the option of an engine's classes.

    Users of Python give either of them as `logits_processors`.
    """
    if isinstance(given, list | tuple):
        return None, {"logits_processors": given}
    return cast("Mapping[str, LogitsProcessor] | None", given), {}
