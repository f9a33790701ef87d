"""The settings of pooling under vLLM's names, checked once, when they are made.

They replace what a model's files say of its vectors and classes; requests go before them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from octavo.core.config import ConfigError
from octavo.nearest import nearest_or_all

PoolerTask = Literal["embed", "classify", "token_embed", "token_classify", "plain"]
OneVector = Literal["CLS", "LAST", "MEAN"]
EachToken = Literal["ALL", "STEP"]
_MOST = 1 << 31


@dataclass(frozen=True, slots=True)
class PoolerConfig:
    """The defaults of requests for vectors and classes; None: what the model's files say."""

    task: PoolerTask | None = None  # of requests that name none
    seq_pooling_type: OneVector | None = None  # of the one vector of a text
    tok_pooling_type: EachToken | None = None  # STEP: the tokens that are step_tag_id alone
    use_activation: bool | None = None  # length one for embeddings, probabilities for classes
    dimensions: int | None = None  # the first so many numbers of an embedding
    enable_chunked_processing: bool = False  # texts longer than the model reads, in pieces
    max_embed_len: int | None = None  # the most tokens of such a text
    logit_mean: float | None = None  # subtracted from classes' logits
    logit_sigma: float | None = None  # by which they are divided then
    step_tag_id: int | None = None  # the token that ends a step

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if not (value is None or (isinstance(value, str) and value in choices)):
                raise _error(f"{name}={value!r} must be one of {', '.join(choices)}")
        for name in ("use_activation", "enable_chunked_processing"):
            value = getattr(self, name)
            if not (isinstance(value, bool) or (value is None and name == "use_activation")):
                raise _error(f"{name}={value!r} must be true or false")
        for name, least in (("dimensions", 1), ("max_embed_len", 1), ("step_tag_id", 0)):
            value = getattr(self, name)
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and not (is_whole and least <= value < _MOST):
                raise _error(f"{name}={value!r} must be a whole number from {least}")
        for name in ("logit_mean", "logit_sigma"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (is_number and math.isfinite(value)):
                raise _error(f"{name}={value!r} must be a finite number")
        if self.logit_sigma == 0:
            raise _error("logit_sigma=0 divides by zero; give another number")
        self._check_together()

    def _check_together(self) -> None:
        """Refuse settings that have no effect without each other, or contradict each other."""
        if self.enable_chunked_processing and self.max_embed_len is None:
            raise _error(
                "enable_chunked_processing needs max_embed_len, the most tokens of a text that is "
                "embedded in pieces; add it"
            )
        if self.max_embed_len is not None and not self.enable_chunked_processing:
            raise _error(
                "max_embed_len is the limit of texts that are embedded in pieces; set "
                "enable_chunked_processing too"
            )
        if self.tok_pooling_type == "ALL" and self.step_tag_id is not None:
            raise _error(
                "step_tag_id leaves some tokens out, and tok_pooling_type='ALL' none; give 'STEP'"
            )


_CHOICES: Mapping[str, tuple[str, ...]] = {
    "task": get_args(PoolerTask),
    "seq_pooling_type": get_args(OneVector),
    "tok_pooling_type": get_args(EachToken),
}
# The older names of use_activation.
_ACTIVATION = ("normalize", "softmax", "activation")
_MISSING = {
    "returned_token_ids": "a classifier made of a generator names its tokens in hf_overrides, as "
    "classifier_from_token",
    "logit_bias": "it is called logit_mean now",
    "logit_scale": "logit_sigma divides instead of multiplying; give its inverse",
}
_IGNORED = ("enable_flash_late_interaction",)  # the backend chooses its kernels
_EXAMPLE = 'as in {"pooling_type": "MEAN", "use_activation": true}'


def read_pooler_config(given: object) -> PoolerConfig:
    """Turn a user's settings, a mapping or the text of a JSON object, into checked ones.

    As in vLLM, None means the default.
    """
    if isinstance(given, PoolerConfig):
        return given
    if isinstance(given, str):
        given = _parsed(given)
    if not isinstance(given, Mapping):
        raise _error(f"it is {str(given)[:100]!r}; it must be a mapping, {_EXAMPLE}")
    known = [field.name for field in fields(PoolerConfig)]
    chosen: dict[str, Any] = {}
    for name, value in given.items():
        if value is None or name in _IGNORED:
            continue
        if name in _MISSING:
            raise _error(f"{name} is not supported: {_MISSING[name]}")
        meant = _meant(str(name), value)
        if meant not in known:
            names = [*known, "pooling_type"]
            raise _error(f"there is no key {str(name)[:100]!r}; {nearest_or_all(str(name), names)}")
        if meant in chosen:
            raise _error(f"{name} and another key both set {meant}; give one of them")
        kinds = _CHOICES[meant] if meant.endswith("pooling_type") else ()
        upper = value.upper() if isinstance(value, str) else value
        chosen[meant] = upper if upper in kinds else value
    return PoolerConfig(**chosen)


def _meant(name: str, value: object) -> str:
    """Return the setting that a key is for."""
    if name in _ACTIVATION:
        return "use_activation"
    if name != "pooling_type":
        return name
    upper = value.upper() if isinstance(value, str) else value
    if upper in _CHOICES["seq_pooling_type"]:
        return "seq_pooling_type"
    if upper in _CHOICES["tok_pooling_type"]:
        return "tok_pooling_type"
    choices = (*_CHOICES["seq_pooling_type"], *_CHOICES["tok_pooling_type"])
    raise _error(f"pooling_type={value!r} must be one of {', '.join(choices)}")


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _error(f"{text[:100]!r} is not JSON; write an object, {_EXAMPLE}") from None


def _error(message: str) -> ConfigError:
    return ConfigError(f"pooler_config: {message}")
