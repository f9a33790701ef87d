"""Rerankers made of a generator: the score is what its head gives an answer, such as yes or no."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from octavo.layers import Model
from octavo.loader.errors import TensorMismatchError, quote
from octavo.loader.strict_json import read_object
from octavo.models.config_reader import Config, ConfigurationError
from octavo.models.pooling_heads import Layer, PoolingHead
from octavo.models.sentence_files import Answers
from octavo.models.weights import Weights

MAX_ANSWERS = 64
KEY = "classifier_from_token"
IS_QWEN3_RERANKER = "is_original_qwen3_reranker"
_DIFFERENCE, _EACH = "from_2_way_softmax", "no_post_processing"


def answers_in(config: Config, directory: Path) -> Answers | None:
    """Read the answers that a classifier's config.json names, under vLLM's keys."""
    names = config.strings(KEY)
    if not names:
        return None
    if len(names) > MAX_ANSWERS:
        raise ConfigurationError(
            f"config: {KEY} has {len(names)} tokens, at most {MAX_ANSWERS} are supported"
        )
    usual = _DIFFERENCE if len(names) == 2 else _EACH
    if config.boolean(IS_QWEN3_RERANKER, False):
        usual = _DIFFERENCE
    method = config.string("method", usual)
    if method not in (_DIFFERENCE, _EACH):
        raise ConfigurationError(
            f"config: method is {quote(method)}; known are {_DIFFERENCE} and {_EACH}"
        )
    if method == _DIFFERENCE and len(names) != 2:
        raise ConfigurationError(
            f"config: {KEY} must have two tokens for {_DIFFERENCE}, and has {len(names)}"
        )
    return Answers(_ids_of(names, directory / "tokenizer.json"), method == _DIFFERENCE)


def answer_head(answers: Answers, model: Model, weights: Weights) -> PoolingHead:
    """Make a classifier of the rows of the head, or of the embedding that is also the head."""
    spec = model.spec
    if spec.logit_cap is not None:
        raise ConfigurationError(
            "config: the answers of a model whose logits are capped cannot be a classifier"
        )
    wrong = next((each for each in answers.token_ids if each >= spec.vocabulary), None)
    if wrong is not None:
        raise ConfigurationError(
            f"config: the answer's token {wrong} is none of the model's {spec.vocabulary}"
        )
    name = model.weights()["embed" if spec.tied else "head"]
    assert isinstance(name, str)
    if f"{name}.weight" not in weights.shapes():
        raise TensorMismatchError(
            f"{name}.weight is missing, of whose rows the classifier is made",
            advice="the checkpoint was saved without its head; take the original one",
        )
    rows = weights.rows(f"{name}.weight").reordered(np.array(answers.token_ids, np.int64))
    weight = rows.floats() * np.float32(spec.logit_scale)
    if answers.is_difference:
        weight = weight[1:] - weight[:1]
    return PoolingHead((Layer(weight, None),))


def _ids_of(names: Sequence[str], path: Path) -> tuple[int, ...]:
    """Return the ids of tokens, as the vocabulary writes them."""
    values = read_object(path)
    model, added = values.get("model"), values.get("added_tokens")
    listed = model.get("vocab") if isinstance(model, Mapping) else None
    known: dict[object, object] = {}
    if isinstance(listed, Mapping):
        known.update(listed)
    elif isinstance(listed, list):
        known.update((each[0], index) for index, each in enumerate(listed) if each)
    for token in added if isinstance(added, list) else []:
        if isinstance(token, Mapping):
            known[token.get("content")] = token.get("id")
    found = [known.get(name) for name in names]
    missing = next((name for name, index in zip(names, found, strict=True) if index is None), None)
    if missing is not None:
        raise ConfigurationError(f"config: {KEY}: the vocabulary has no token {quote(missing)}")
    if not all(type(index) is int and index >= 0 for index in found):
        raise ConfigurationError(f"config: {KEY}: the ids of these tokens are no numbers")
    return tuple(index for index in found if isinstance(index, int))
