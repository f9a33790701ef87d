"""The files of sentence-transformers beside a model: pooling, dense layers, prompts, lengths."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from msgspec import Struct

from octavo.loader.errors import CorruptFileError, UnsupportedFormatError, quote
from octavo.loader.strict_json import parse_object, read_object
from octavo.model_facts import Kind

MAX_MODULES = 16
MAX_PROMPTS = 256
MAX_ID = 1 << 31
MAX_PROMPT_CHARACTERS = 1 << 14
_MODES: Mapping[str, Kind] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
    "cls": "cls",
    "mean": "mean",
    "lasttoken": "last",
}
_ACTIVATIONS = {
    "Identity": "",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "Sigmoid": "sigmoid",
}


class Answers(NamedTuple):
    """The tokens whose logits are scores: each its own, or that of the second minus the first."""

    token_ids: tuple[int, ...]
    is_difference: bool


class DenseLayer(Struct, frozen=True):
    """A dense layer behind pooling: the directory of its weights, and its activation."""

    directory: Path
    inputs: int
    outputs: int
    bias: bool
    activation: str


class SentenceModel(Struct, frozen=True):
    """The settings of a model of embeddings, as its files state them."""

    kind: Kind = "mean"
    dense: tuple[DenseLayer, ...] = ()
    normalize: bool = False
    max_len: int | None = None
    prompts: Mapping[str, str] | None = None
    default_prompt: str = ""
    similarity: str = "cosine"
    answers: Answers | None = None  # of a reranker made of a generator
    activation: str | None = None  # of a cross-encoder's score, as torch names the class

    @property
    def instruction(self) -> str:
        """The default prompt, which a reranker reads as its instruction."""
        return (self.prompts or {}).get(self.default_prompt, "")


def sentence_model_in(directory: Path) -> SentenceModel | None:
    """Read modules.json and the files that it names; return None where there is none."""
    path = directory / "modules.json"
    if not path.is_file():
        return None
    content = b'{"modules": ' + path.read_bytes() + b"}"
    modules = parse_object(content, path, path.name)["modules"]
    if not isinstance(modules, list) or len(modules) > MAX_MODULES:
        raise CorruptFileError(f"must be a list of at most {MAX_MODULES} modules", path=path)
    kind: Kind | None = None
    pooling = directory
    dense: list[DenseLayer] = []
    normalize = False
    answers: Answers | None = None
    for module in modules:
        name = module.get("type") if isinstance(module, dict) else None
        inside = module.get("path", "") if isinstance(module, dict) else None
        if not isinstance(name, str) or not isinstance(inside, str) or ".." in inside:
            raise CorruptFileError("each module must have a type and a path inside", path=path)
        match name.rpartition(".")[2]:
            case "Transformer":
                continue
            case "Pooling":
                pooling = directory / inside / "config.json"
                kind = _kind(pooling)
            case "Dense":
                dense.append(_dense(directory / inside))
            case "Normalize":
                normalize = True
            case "LogitScore":
                answers = _answers(directory / inside / "config.json")
            case other:
                raise UnsupportedFormatError(
                    f"has the module {quote(other)}; known are Transformer, Pooling, Dense, "
                    "Normalize and LogitScore",
                    path=path,
                )
    own = directory / "config_sentence_transformers.json"
    values: Mapping[str, Any] = read_object(own) if own.is_file() else {}
    prompts, default = _prompts(values, own)
    if kind in ("mean", "cls") and any(prompts.values()):
        _refuse_left_out(pooling)
    activation = values.get("activation_fn")
    return SentenceModel(
        kind or "mean",
        tuple(dense),
        normalize,
        _max_len(directory),
        prompts,
        default,
        "dot" if values.get("similarity_fn_name") == "dot" else "cosine",
        answers,
        activation if isinstance(activation, str) else None,
    )


def _kind(path: Path) -> Kind:
    """Return the pooling that a module's configuration names; there must be one."""
    values = read_object(path)
    named = values.get("pooling_mode")
    modes = [named] if isinstance(named, str) else []
    modes += [key for key, on in values.items() if key.startswith("pooling_mode_") and on is True]
    kinds = {_MODES.get(mode) for mode in modes}
    if len(kinds) != 1 or None in kinds:
        raise UnsupportedFormatError(
            f"pools by {', '.join(map(quote, modes)) or 'nothing'}; supported is one of the first "
            "token (cls), the mean and the last token",
            path=path,
        )
    return cast("Kind", kinds.pop())


def _refuse_left_out(path: Path) -> None:
    """Refuse a pooling that leaves the tokens of a prompt out."""
    if read_object(path).get("include_prompt", True) is not True:
        raise UnsupportedFormatError(
            "include_prompt is false: the mean of a text without its prompt is not supported",
            path=path,
        )


def _dense(directory: Path) -> DenseLayer:
    path = directory / "config.json"
    values = read_object(path)
    sizes = [values.get(key) for key in ("in_features", "out_features")]
    activation = str(values.get("activation_function", "Identity")).rpartition(".")[2]
    if not all(type(size) is int and 0 < size <= 1 << 20 for size in sizes):
        raise CorruptFileError("in_features and out_features must be sizes", path=path)
    if activation not in _ACTIVATIONS:
        raise UnsupportedFormatError(
            f"has the activation {quote(activation)}; known are {', '.join(_ACTIVATIONS)}",
            path=path,
        )
    inputs, outputs = cast("list[int]", sizes)
    bias = values.get("bias", True) is True
    return DenseLayer(directory, inputs, outputs, bias, _ACTIVATIONS[activation])


def _max_len(directory: Path) -> int | None:
    """Return the length to which texts are cut, if a file states one."""
    path = directory / "sentence_bert_config.json"
    if not path.is_file():
        return None
    length = read_object(path).get("max_seq_length")
    if length is not None and (type(length) is not int or length < 2):
        raise CorruptFileError("max_seq_length must be a number of tokens above 1", path=path)
    return length


def _answers(path: Path) -> Answers:
    """Return the tokens whose logits are the score."""
    values = read_object(path)
    stated = [values.get("false_token_id"), values.get("true_token_id")]
    ids = [each for each in stated if type(each) is int and 0 <= each < MAX_ID]
    if len(ids) != 2 and (stated[0] is not None or not ids):
        raise CorruptFileError(
            "true_token_id must be a token's id, and false_token_id too, or null", path=path
        )
    return Answers(tuple(ids), is_difference=len(ids) == 2)


def _prompts(values: Mapping[str, Any], path: Path) -> tuple[Mapping[str, str], str]:
    """Return the prompts by name, and the default's name."""
    prompts = values.get("prompts") or {}
    is_table = isinstance(prompts, dict) and len(prompts) <= MAX_PROMPTS
    if not is_table or not all(
        isinstance(text, str) and len(text) <= MAX_PROMPT_CHARACTERS for text in prompts.values()
    ):
        raise CorruptFileError(
            f"prompts must be at most {MAX_PROMPTS} texts by name, of at most "
            f"{MAX_PROMPT_CHARACTERS:,} characters",
            path=path,
        )
    default = values.get("default_prompt_name") or ""
    if default and default not in prompts:
        raise CorruptFileError(f"default_prompt_name {quote(str(default))} is no prompt", path=path)
    return prompts, default
