"""The tasks of a model, from its configuration and the files of sentence-transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from octavo.layers import Model, ModelSpec
from octavo.loader.errors import quote
from octavo.model_facts import Kind, PoolingFacts, Squash
from octavo.models.answer_tokens import IS_QWEN3_RERANKER, answer_head, answers_in
from octavo.models.config_reader import Config, ConfigurationError
from octavo.models.pooling_heads import LayerNames, PoolingHead, read_dense, read_head
from octavo.models.registry import ENCODERS
from octavo.models.registry import Kind as Architecture
from octavo.models.sentence_files import SentenceModel
from octavo.models.weights import Weights

MAX_LABELS = 1 << 14
# By the names of torch's classes.
_SQUASHES: Mapping[str, Squash] = {"Identity": "none", "Sigmoid": "sigmoid", "Softmax": "softmax"}
# Known forms of pairs (octavo/text/pairs.py) of rerankers made of these generators.
_PAIR_FORMS = {"Qwen3": "qwen3_reranker"}
# The layers of encoders' classifiers behind the first token's state.
_DENSE_OUT = (LayerNames("classifier.dense", "tanh"), LayerNames("classifier.out_proj"))
_CLASSIFIERS: Mapping[str, tuple[LayerNames, ...]] = {
    "Bert": (LayerNames("pooler.dense", "tanh"), LayerNames("classifier")),
    "Roberta": _DENSE_OUT,
    "XLMRoberta": _DENSE_OUT,
    "Camembert": _DENSE_OUT,
    "MPNet": _DENSE_OUT,
    "DistilBert": (LayerNames("pre_classifier", "relu"), LayerNames("classifier")),
    "NomicBert": (LayerNames("pooler.dense", "tanh"), LayerNames("classifier")),
}


def read_pooling(
    config: Config,
    model: Model,
    kind: Architecture,
    sentence: SentenceModel | None,
    weights: Weights,
    directory: Path,
) -> tuple[PoolingFacts, Mapping[str, PoolingHead]]:
    """Return what a model says of itself, and what follows pooling, by name."""
    spec = model.spec
    answers = sentence.answers if sentence is not None else None
    if kind.task == "ForSequenceClassification" and kind.base not in ENCODERS:
        answers = answers or answers_in(config, directory)
    if answers is not None:
        head = answer_head(answers, model, weights)
        facts, found = _classifying(config, spec, sentence, "last", head)
        instruction = sentence.instruction if sentence else ""
        form = _PAIR_FORMS.get(kind.base, "")
        return replace(facts, instruction=instruction, pair_form=form), found
    if kind.task in ("ForSequenceClassification", "ForTokenClassification"):
        pooled, layers = _classifier(config, spec, kind)
        facts, found = _classifying(config, spec, sentence, pooled, read_head(layers, weights))
        is_converted = kind.base == "Qwen3" and config.boolean(IS_QWEN3_RERANKER, False)
        return replace(facts, pair_form=_PAIR_FORMS["Qwen3"] if is_converted else ""), found
    if sentence is None:
        # A model without files that say more: the usual pooling of its kind.
        usual: Kind = "mean" if kind.base in ENCODERS else "last"
        return PoolingFacts(("embed",), usual, width=spec.hidden), {}
    heads: dict[str, PoolingHead] = {}
    if sentence.dense:
        heads["embed"] = read_dense(sentence.dense, spec.hidden)
    facts = PoolingFacts(
        ("embed",),
        sentence.kind,
        sentence.normalize,
        "embed" if heads else "",
        heads["embed"].width if heads else spec.hidden,
        sentence.prompts or {},
        sentence.default_prompt,
        "dot" if sentence.similarity == "dot" else "cosine",
    )
    return facts, heads


def _classifier(
    config: Config, spec: ModelSpec, kind: Architecture
) -> tuple[Kind, tuple[LayerNames, ...]]:
    """Return the pooling of a classifier of texts or of tokens, and the layers behind it."""
    pooled: Kind = "cls"
    layers: tuple[LayerNames, ...]
    if kind.task == "ForTokenClassification":
        pooled = "all"
        layers = (LayerNames("classifier" if kind.base in ENCODERS else "score"),)
    elif kind.base == "ModernBert":
        stated = config.string("classifier_pooling", "cls")
        if stated not in ("cls", "mean"):
            raise ConfigurationError("config: classifier_pooling must be cls or mean")
        pooled = "mean" if stated == "mean" else "cls"
        activation: Literal["gelu"] = "gelu"
        if config.string("classifier_activation", "gelu") != activation:
            raise ConfigurationError("config: classifier_activation must be gelu")
        layers = (
            LayerNames("head.dense", activation, "head.norm", spec.eps),
            LayerNames("classifier"),
        )
    elif kind.base in _CLASSIFIERS:
        layers = _CLASSIFIERS[kind.base]
    else:
        pooled, layers = "last", (LayerNames("score"),)
    return pooled, layers


def _classifying(
    config: Config,
    spec: ModelSpec,
    sentence: SentenceModel | None,
    pooled: Kind,
    head: PoolingHead,
) -> tuple[PoolingFacts, Mapping[str, PoolingHead]]:
    """Return the facts of a classifier; one class alone is a score."""
    facts = PoolingFacts(
        ("classify", "score") if head.width == 1 else ("classify",),
        pooled,
        width=spec.hidden,
        classify_kind=pooled,
        labels=_labels(config, head.width),
        squash=_squash(config, sentence, head.width),
    )
    return facts, {"classify": head}


def _squash(config: Config, sentence: SentenceModel | None, width: int) -> Squash:
    """Return what makes probabilities of scores: sentence-transformers' function, or the usual."""
    own = config.values.get("sentence_transformers")
    stated = own.get("activation_fn") if isinstance(own, Mapping) else None
    stated = stated or config.values.get("sbert_ce_default_activation_function")
    stated = stated or (sentence and sentence.activation)
    if stated is not None:
        name = str(stated).rpartition(".")[2]
        if name not in _SQUASHES:
            raise ConfigurationError(
                f"the activation of the scores is {quote(str(stated))}; known are "
                f"{', '.join(_SQUASHES)}"
            )
        return _SQUASHES[name]
    problem = config.string("problem_type", "") if config.has("problem_type") else ""
    if problem == "regression":
        return "none"
    return "sigmoid" if width == 1 or problem == "multi_label_classification" else "softmax"


def _labels(config: Config, count: int) -> tuple[str, ...]:
    """Return the names of the classes; LABEL_0 … where the file has none."""
    if count > MAX_LABELS:
        raise ConfigurationError(
            f"the classifier has {count:,} classes, at most {MAX_LABELS:,} are supported"
        )
    names = config.values.get("id2label")
    found = names if isinstance(names, Mapping) else {}
    return tuple(str(found.get(str(index), f"LABEL_{index}"))[:200] for index in range(count))
