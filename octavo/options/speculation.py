"""The settings of speculation under vLLM's names, checked once, when they are made."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import cast, get_args

from octavo.core.config import ConfigError
from octavo.nearest import nearest_or_all
from octavo.options.cpu_types import CpuWeights

# How drafts are made. Those that need no model are modules of octavo/runner/speculate.
METHODS = (
    "ngram",  # prompt lookup
    "suffix",  # what most often followed, in the sequence and in earlier answers
    "draft_model",  # a second model of the same vocabulary
    "eagle3",  # a layer that reads hidden states of several depths
    "eagle",  # a layer that reads the last hidden state
    "medusa",  # heads that each read the last hidden state and propose one token
    "dflash",  # layers that read hidden states and propose a block of tokens at once
    "mtp",  # a layer in the model's own files that reads its last hidden state
    "custom_class",  # a class of the operator's own, which `model` names
    "auto",  # as the files of `model` are for
    "off",  # no drafts at all, not even those of a request's own prediction
)
DRAFT_MODEL, DFLASH, MTP, CUSTOM_CLASS, AUTO = (
    "draft_model",
    "dflash",
    "mtp",
    "custom_class",
    "auto",
)
# Older names of MTP, by the kind of the model, which its own files state.
OF_MTP = (
    *("deepseek_mtp", "mimo_mtp", "mimo_v2_mtp", "glm4_moe_mtp", "glm4_moe_lite_mtp"),
    *("ernie_mtp", "qwen3_next_mtp", "qwen3_5_mtp", "longcat_flash_mtp", "exaone_moe_mtp"),
    *("nemotron_h_mtp", "pangu_ultra_moe_mtp", "step3p5_mtp"),
)
# SGLang's names of algorithms. Its EAGLE without files is what it calls NEXTN with them.
OF_SGLANG = {
    "STANDALONE": DRAFT_MODEL,
    "EAGLE3": "eagle3",
    "DFLASH": DFLASH,
    "EAGLE": "eagle",
    "NEXTN": MTP,
    "NGRAM": "ngram",
}
# `model` names their files.
WITH_MODEL = (DRAFT_MODEL, "eagle3", "eagle", "medusa", DFLASH, AUTO)
# Drafts of a sequence from its request's prediction in one step, at most; and those of all
# sequences that an engine without a proposer has room for. Each needs a row of logits.
PREDICTED_TOKENS = 16
PREDICTED_STEP_TOKENS = 16
# Drafts of a sequence in one step. Each needs a row of logits, and long drafts are seldom right.
MOST_TOKENS = 64
NUM_TOKENS = 5  # the default of most methods
# The longest n-gram that is looked up. Longer matches are found too: they grow from a shorter one.
MOST_LOOKUP = 32
LOOKUP_MAX, LOOKUP_MIN = 4, 2  # the defaults
TREE_DEPTH = 24  # the default, vLLM's
MOST_CANDIDATES = 8  # for each place of a tree of drafts


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """The proposal of drafts. Each draft is verified, so no text depends on these settings."""

    method: str  # one of METHODS; "auto" if there is a `model` and nothing else is given
    # Most drafts of a sequence in one step; None, until the files are open: as many as they were
    # made to draft in one pass, or else the default.
    num_speculative_tokens: int | None = None
    prompt_lookup_max: int = LOOKUP_MAX  # the longest n-gram that is looked up
    prompt_lookup_min: int = LOOKUP_MIN  # the shortest
    suffix_decoding_max_tree_depth: int = TREE_DEPTH  # tokens that are compared, at most
    suffix_decoding_max_cached_requests: int = 10_000  # answers kept of a cache scope; 0: none
    suffix_decoding_max_spec_factor: float = 1.0  # drafts for each token that matches, at most
    suffix_decoding_min_token_prob: float = 0.1  # of a draft: less probable ones are not proposed
    model: str | None = None  # what drafts: a directory, a file, a name on the hub, or a class
    draft_candidates: int = 1  # of `model` for each place; of several, drafts are a tree
    # What a drafter's floats become, or what its files are in; None: the backend's own.
    quantization: str | None = None
    use_heterogeneous_vocab: bool = False  # a draft model's tokens are translated by their texts

    def __post_init__(self) -> None:
        _check_method(self.method)
        self._check_model()
        self._check_quantization()
        self._check_vocabulary()
        if self.num_speculative_tokens is None and self.method not in (DFLASH, AUTO):
            object.__setattr__(self, "num_speculative_tokens", NUM_TOKENS)
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if value is None and name == _FOLLOWS_FILES:
                continue
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if name not in _FRACTIONS and not (is_number and isinstance(value, int)):
                raise _error(f"{name}={value!r} must be a whole number")
            if not is_number:
                raise _error(f"{name}={value!r} must be a number")
            if not least <= value <= most:
                raise _error(f"{name}={value} must be from {least} to {most}")
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise _error(
                f"prompt_lookup_min={self.prompt_lookup_min} is more than "
                f"prompt_lookup_max={self.prompt_lookup_max}; lower it, or raise the other"
            )

    @property
    def most_tokens(self) -> int:
        """The most drafts of a sequence in one step, where files do not say otherwise."""
        return self.num_speculative_tokens or NUM_TOKENS

    @property
    def has_drafter(self) -> bool:
        """True if a second model drafts, from files of its own or from the model's."""
        return self.method in (*WITH_MODEL, MTP)

    @property
    def drafter(self) -> str | None:
        """The name of the files that draft, beside those of the model; None: there are none."""
        return self.model if self.method in WITH_MODEL else None

    @property
    def weights(self) -> CpuWeights | None:
        """The format that a drafter's floats become, by its own name.

        None: none was asked for, or one that files have and floats do not become.
        """
        return None if self.quantization is None else _weights_of(self.quantization)

    def _check_vocabulary(self) -> None:
        if not isinstance(self.use_heterogeneous_vocab, bool):
            raise _error(f"use_heterogeneous_vocab={self.use_heterogeneous_vocab!r} is no bool")
        if self.use_heterogeneous_vocab and self.method not in (DRAFT_MODEL, AUTO):
            raise _error(
                "use_heterogeneous_vocab translates the tokens of a draft model, and "
                f"method={self.method!r} has none; leave it out"
            )

    def _check_quantization(self) -> None:
        if self.quantization is None:
            return
        if not isinstance(self.quantization, str):
            raise _error(f"quantization={self.quantization!r} must be the name of a format")
        if not self.has_drafter:
            raise _error(
                f"quantization={self.quantization!r} is what a second model's weights become, and "
                f"method={self.method!r} has none; leave it out"
            )

    def _check_model(self) -> None:
        if self.draft_candidates > 1 and self.method not in WITH_MODEL:
            raise _error(
                f"draft_candidates={self.draft_candidates} are those of a draft model, EAGLE, "
                f"Medusa or DFlash, and method={self.method!r} has none; leave it out"
            )
        if self.method in WITH_MODEL or self.method == CUSTOM_CLASS:
            if not self.model:
                raise _error(
                    f"method={self.method!r} needs the key 'model': {_NEEDED[self.method]}"
                )
        elif self.model is not None:
            raise _error(
                f"the key 'model' names {self.model!r}, which drafts with a method of its own, and "
                f"method={self.method!r} needs no model; leave one of them out"
            )


# What a drafter's floats may become; no text depends on it.
DRAFTER_WEIGHTS: tuple[CpuWeights, ...] = tuple(
    each for each in get_args(CpuWeights) if each != "auto"
)


def _weights_of(name: str) -> CpuWeights | None:
    from octavo.options.quantization import made_at_load  # here, since few engines need it

    return cast("CpuWeights | None", name if name in DRAFTER_WEIGHTS else made_at_load(name))


_NEEDED = {
    **dict.fromkeys(
        WITH_MODEL,
        "a smaller model of the same vocabulary, or what was trained to draft for this one",
    ),
    CUSTOM_CLASS: "the class, as module:Class",
}
_RANGES: Mapping[str, tuple[float, float]] = {
    "num_speculative_tokens": (1, MOST_TOKENS),
    "draft_candidates": (1, MOST_CANDIDATES),
    "prompt_lookup_max": (1, MOST_LOOKUP),
    "prompt_lookup_min": (1, MOST_LOOKUP),
    "suffix_decoding_max_tree_depth": (2, MOST_TOKENS),
    "suffix_decoding_max_cached_requests": (0, 1_000_000),
    "suffix_decoding_max_spec_factor": (0.0, 64.0),
    "suffix_decoding_min_token_prob": (0.0, 1.0),
}
_FOLLOWS_FILES = "num_speculative_tokens"
_FRACTIONS = ("suffix_decoding_max_spec_factor", "suffix_decoding_min_token_prob")
_DRAFTER = "a draft model is loaded, placed and run as the model is"
_AS_TRAINED = "what a drafter computes follows from its files"
_VERIFIED = "every draft is verified exactly, so that no text depends on it"
# vLLM's keys of other methods.
_OF_OTHER_METHODS = {
    **dict.fromkeys(
        (
            *("draft_tensor_parallel_size", "tensor_parallel_size", "draft_load_config"),
            *("moe_backend", "attention_backend", "kv_cache_dtype"),
            *("max_model_len", "revision", "code_revision", "enforce_eager"),
            "draft_lm_head_quantization",
        ),
        _DRAFTER,
    ),
    **dict.fromkeys(
        (
            *("index_share_for_mtp_iteration", "disable_padded_drafter_batch"),
            *("use_local_argmax_reduction", "parallel_drafting", "dspark_draft_topk"),
            "xpress_topc",
        ),
        _AS_TRAINED,
    ),
    "disable_eagle_block_drop": "no cached block is dropped: its rows depend on no later token",
    "draft_model": "the key is 'model'",
    "speculative_token_tree": "a tree's form follows from what is measured; the key "
    "'draft_candidates' says how many candidates there are for each place",
    "draft_sample_method": "it draws as the request does, with the same noise",
    **dict.fromkeys(
        (
            *("rejection_sample_method", "synthetic_acceptance_rates"),
            *("synthetic_acceptance_length", "posterior_threshold", "posterior_alpha"),
            *("fly_window_size", "fly_entropy_threshold", "fly_entropy_top_k"),
        ),
        _VERIFIED,
    ),
    **dict.fromkeys(
        ("num_speculative_tokens_per_batch_size", "speculative_disable_by_batch_size"),
        "how many drafts are sent follows from what steps of each width take, as measured",
    ),
    "enable_adaptive_verification": "all drafts of a step are verified",
    "disable_lookahead_block_hashes": "blocks are shared when their tokens are verified",
}


# A value of such a key that changes nothing: vLLM's examples have it.
_AS_HERE: Mapping[str, object] = {
    "draft_tensor_parallel_size": 1,
}


def read_speculative_config(given: object) -> SpeculativeConfig:
    """Turn a user's settings, a mapping or the text of a JSON object, into checked ones.

    As in vLLM, None means the default. If one bound of the lookup is given, the other follows it
    where the default would contradict it.
    """
    if isinstance(given, SpeculativeConfig):
        return given
    if isinstance(given, str):
        given = _parsed(given)
    if not isinstance(given, Mapping):
        raise _error(f"it is {given!r}; it must be a mapping, {_EXAMPLE}")
    if given.get("method") is not None:
        given = {**given, "method": _named_here(given["method"], given.get("model"))}
        _check_method(given["method"])  # another method has other keys, unknown here
    known = [field.name for field in fields(SpeculativeConfig)]
    chosen = {
        name: value
        for name, value in given.items()
        if value is not None and (name not in _AS_HERE or value != _AS_HERE[name])
    }
    for name in chosen:
        if name in _OF_OTHER_METHODS:
            raise _error(f"{name} is not supported: {_OF_OTHER_METHODS[name]}")
        if name not in known:
            raise _error(f"there is no key {name!r}; {nearest_or_all(str(name), known)}")
    if "model" in chosen and isinstance(chosen["model"], os.PathLike):
        chosen["model"] = os.fspath(chosen["model"])
    if "model" in chosen:  # as in vLLM
        if not isinstance(chosen["model"], str):
            raise _error(
                "the key 'model' must be the name or the path of a model, and is "
                f"{chosen['model']!r}"
            )
        chosen.setdefault("method", AUTO)
    if "method" not in chosen:
        raise _error(f"no key says what drafts, neither 'method' nor 'model'; write it {_EXAMPLE}")
    shortest, longest = chosen.get("prompt_lookup_min"), chosen.get("prompt_lookup_max")
    if chosen["method"] == "suffix":  # as in vLLM
        depth = chosen.get("suffix_decoding_max_tree_depth", TREE_DEPTH)
        chosen.setdefault("num_speculative_tokens", depth)
    if isinstance(longest, int) and shortest is None:
        chosen["prompt_lookup_min"] = min(longest, LOOKUP_MIN)
    if isinstance(shortest, int) and longest is None:
        chosen["prompt_lookup_max"] = max(shortest, LOOKUP_MAX)
    return SpeculativeConfig(**chosen)


def _named_here(method: object, model: object) -> object:
    """Return the name here of a method that vLLM or SGLang name otherwise."""
    if not isinstance(method, str):
        return method
    if method in OF_MTP or (method == "EAGLE" and model is None):
        return MTP
    return OF_SGLANG.get(method, method)


def _check_method(method: object) -> None:
    if isinstance(method, str) and method.lower() in _NOT_BUILT:
        raise _error(f"method={method!r} is not supported: {_NOT_BUILT[method.lower()]}")
    if method not in METHODS:
        raise _error(
            f"method={method!r} is unknown; there is {', '.join(map(repr, METHODS))}, and 'ngram' "
            "looks drafts up in the text itself and needs no model"
        )


# Methods of others, and what comes nearest.
_NOT_BUILT = {
    "dspark": "its heads correct each token of a block by those before it, which is not computed; "
    "'dflash' drafts blocks without",
    "mlp_speculator": "such heads are not read; those of Medusa are 'medusa'",
    "ngram_gpu": "n-grams are looked up on the host, with 'ngram'",
    "extract_hidden_states": "it drafts nothing; 'token_embed' returns hidden states",
}
_EXAMPLE = 'as in {"method": "ngram", "num_speculative_tokens": 5}'


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _error(f"{text[:100]!r} is not JSON; write an object, {_EXAMPLE}") from None


def _error(message: str) -> ConfigError:
    return ConfigError(f"speculative_config: {message}")
