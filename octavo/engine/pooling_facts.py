"""Replaces what a model's files say of its vectors and classes by the user's settings."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from octavo.core.config import ConfigError
from octavo.model_facts import Kind, PoolingFacts
from octavo.options.pooling import PoolerConfig

_KINDS: Mapping[str, Kind] = {"CLS": "cls", "LAST": "last", "MEAN": "mean"}
# What the model must serve for a task.
_NEEDS = {
    "embed": "embed",
    "token_embed": "embed",
    "classify": "classify",
    "token_classify": "classify",
}


def with_settings(facts: PoolingFacts, config: PoolerConfig | None) -> PoolingFacts:
    """Return the facts with the user's settings; refuse those that the model cannot follow."""
    if config is None:
        return facts
    _check(facts, config)
    kind = facts.kind if config.seq_pooling_type is None else _KINDS[config.seq_pooling_type]
    is_pooled = facts.classify_kind != "all"  # a classifier of tokens pools nothing
    activates = config.use_activation
    return replace(
        facts,
        kind=kind,
        classify_kind=kind if is_pooled and config.seq_pooling_type else facts.classify_kind,
        normalize=facts.normalize if activates is None else activates,
        activates=activates is not False,
        dimensions=config.dimensions,
        default_task=config.task or "",
        logit_mean=config.logit_mean or 0.0,
        logit_sigma=config.logit_sigma or 1.0,
        step_tag_id=config.step_tag_id,
        max_embed_len=config.max_embed_len,
    )


def _check(facts: PoolingFacts, config: PoolerConfig) -> None:
    """Refuse settings of tasks that the model does not serve, and too many dimensions."""
    needed = {
        "task": _NEEDS.get(config.task or ""),
        "dimensions": config.dimensions and "embed",
        "max_embed_len": config.max_embed_len and "embed",
        "logit_mean": None if config.logit_mean is None else "classify",
        "logit_sigma": None if config.logit_sigma is None else "classify",
        "step_tag_id": None if config.step_tag_id is None else "classify",
    }
    for name, task in needed.items():
        if task and task not in facts.tasks:
            raise ConfigError(
                f"pooler_config: {name}={getattr(config, name)!r} is for a model that serves "
                f"{task!r}, and this one serves: {', '.join(facts.tasks)}; leave it out"
            )
    if config.dimensions is not None and config.dimensions > facts.width:
        raise ConfigError(
            f"pooler_config: dimensions={config.dimensions} are more than the model's vectors "
            f"have: {facts.width}"
        )
