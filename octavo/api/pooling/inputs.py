"""The prompts of requests that generate nothing: texts and pairs, cut where that is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from octavo.api.outputs import RequestError
from octavo.api.pooling.params import TO_FIT, PoolingParams
from octavo.api.pooling.tasks import Wanted
from octavo.api.prompts import Input, Prompt, check_ids, plain
from octavo.api.text_model import TextModel
from octavo.core.sampling_params import SamplingParams
from octavo.text.pairs import Pair, encode_pair
from octavo.wire.facts import EngineFacts


def longest_prompt(facts: EngineFacts) -> int:
    """Return the tokens of the longest prompt that gives a vector."""
    if facts.longest_tokens < facts.max_model_len:  # the engine keeps a place behind a prompt
        return max(1, facts.longest_tokens - 1)
    return facts.max_model_len


def most_tokens(facts: EngineFacts, truncate_prompt_tokens: int | None) -> int | None:
    """Return the tokens that are left of a longer text; None if it is not cut."""
    longest = longest_prompt(facts)
    if truncate_prompt_tokens == TO_FIT:
        return longest
    check_most(truncate_prompt_tokens, longest, "as many")
    return truncate_prompt_tokens


def check_most(truncate_prompt_tokens: int | None, longest: int, to_fit: str) -> None:
    """Refuse to keep more of a text than the model reads; `to_fit` says what -1 keeps."""
    if truncate_prompt_tokens is not None and truncate_prompt_tokens > longest:
        name = "truncate_prompt_tokens"
        raise RequestError(
            f"{name}={truncate_prompt_tokens} is more than this model reads: {longest} tokens; "
            f"give at most that, or -1 for {to_fit}",
            param=name,
        )


def prefix_of(facts: EngineFacts, prompt_name: str | None) -> str:
    """Return the text that the model expects before an input, by its use."""
    prompts = facts.pooling.prompts
    name = facts.pooling.default_prompt if prompt_name is None else prompt_name
    if not name:
        return ""
    if name not in prompts:
        raise RequestError(
            f"the model has no prompt {name[:64]!r}; it has: {', '.join(prompts) or 'none'}",
            param="prompt_name",
        )
    return prompts[name]


def cut(prompt: Prompt, model: TextModel, params: PoolingParams) -> Prompt:
    """Return a prompt with its prefix, cut; special tokens stay around a text."""
    most = most_tokens(model.facts, params.truncate_prompt_tokens)
    prefix = prefix_of(model.facts, params.prompt_name)
    if most is None and not prefix:
        return prompt
    given: Any = plain(prompt)
    if isinstance(prompt, Mapping):
        given = prompt.get("prompt_token_ids")
        given = prompt.get("prompt") if given is None else plain(given)
    if isinstance(given, str):
        given, _ = model.tokenizer.encode_framed(prefix + given, None, most)
    elif isinstance(given, list):
        given = given[:most]
    else:
        return prompt  # which is refused
    if isinstance(prompt, str | Mapping):
        others = prompt if isinstance(prompt, Mapping) else {"prompt": prompt}
        return {**others, "prompt_token_ids": given}
    cut_ids: list[int] = given
    return cut_ids


def pairs_of(
    first: Sequence[str], second: Sequence[str], names: tuple[str, str]
) -> list[tuple[int, int]]:
    """Return the places of the texts of each pair: one with each of many, or each with its own."""
    for name, texts in zip(names, (first, second), strict=True):
        if not texts:
            raise RequestError(f"{name} is empty; give at least one text", param=name)
    if len(first) not in (1, len(second)):
        raise RequestError(
            f"{names[0]} has {len(first)} texts and {names[1]} {len(second)}: give one of the "
            "first, or as many of both",
            param=names[0],
        )
    return [(index if len(first) > 1 else 0, index) for index in range(len(second))]


def read_pair(
    pair: Pair, model: TextModel, asked: Wanted, params: PoolingParams
) -> tuple[Input, SamplingParams]:
    """Return a pair as one prompt, and the parameters of the engine's request."""
    most = most_tokens(model.facts, params.truncate_prompt_tokens)
    compiled = partial(model.template, with_tools=False)
    ids, second_from = encode_pair(model.tokenizer, pair, compiled, most)
    read = Input(None, check_ids(ids, model.facts.vocabulary))
    pooling = replace(asked.pooling, second_from=second_from)
    return read, replace(asked.sampling, pooling=pooling)
