"""Further samplers through `LLM`: each has its effect on a text, and breakers become tokens."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplerOptions, SamplingParams
from octavo.api.outputs import CompletionOutput
from octavo.backends.torch.sampling import chain, dry
from octavo.core import sampling_params
from octavo.runner.chain import chain_of
from tests.api.tiny import make_model, requests_of

PROMPT = "The quick brown fox"
WARM: dict[str, Any] = {"temperature": 1.2, "seed": 5, "max_tokens": 24, "ignore_eos": True}
EFFECTS: dict[str, dict[str, Any]] = {
    "typical_p": {"sampler_options": {"typical_p": 0.2}},
    "top_n_sigma": {"sampler_options": {"top_n_sigma": 1.0}},
    "xtc": {"sampler_options": {"xtc_probability": 1.0, "xtc_threshold": 0.001}},
    "dynatemp": {"sampler_options": {"dynatemp_range": 1.2, "dynatemp_exponent": 8.0}},
    "dry": {"sampler_options": {"dry_multiplier": 50, "dry_allowed_length": 1}, "top_k": 2},
    "repeat_last_n": {
        "sampler_options": {"repeat_last_n": 2},
        "repetition_penalty": 9.0,
        "top_k": 3,
    },
    "min_keep": {"sampler_options": {"min_keep": 3}, "top_p": 1e-4},
    "samplers": {"sampler_options": {"samplers": ["temperature", "top_p"]}, "top_k": 1},
}


def test_the_backend_and_the_parameters_have_the_same_bounds() -> None:
    assert dry.MOST_REPEATED == sampling_params.MAX_REPEATED
    assert chain.GREEDY_BELOW == sampling_params.GREEDY_BELOW
    assert chain.LEAST_TEMPERATURE == sampling_params.LEAST_TEMPERATURE


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    directory: Path = make_model(tmp_path_factory.mktemp("tiny"))
    return LLM(str(directory), block_size=4, num_gpu_blocks_override=200)


def completed(llm: LLM, **fields: Any) -> CompletionOutput:
    (output,) = llm.generate(PROMPT, SamplingParams(**fields))
    return output.outputs[0]


@pytest.mark.parametrize("name", EFFECTS)
def test_each_sampler_changes_the_text_in_the_same_way_each_time(llm: LLM, name: str) -> None:
    fields = WARM | EFFECTS[name]
    first, again = completed(llm, **fields), completed(llm, **fields)
    assert first.token_ids == again.token_ids
    assert first.token_ids != completed(llm, **fields | {"sampler_options": None}).token_ids


def test_dry_lets_no_pair_of_tokens_occur_twice(llm: LLM) -> None:
    options = {"dry_multiplier": 100.0, "dry_base": 1.0, "dry_allowed_length": 1}
    fields: dict[str, Any] = {"temperature": 0.0, "max_tokens": 60, "ignore_eos": True}
    known = llm.get_tokenizer().encode(PROMPT)

    def num_repeated(**more: Any) -> int:
        output = completed(llm, **fields, sampler_options={**options, **more})
        pairs = list(pairwise([*known, *output.token_ids]))
        return len(pairs) - len({*pairs})

    assert num_repeated(dry_sequence_breakers=[]) == 0
    assert num_repeated(dry_sequence_breakers=[], dry_multiplier=0.0) > 0
    assert num_repeated(dry_sequence_breakers=[], dry_penalty_last_n=3) > 0


@pytest.mark.parametrize(
    ("order", "is_plain"),
    [
        (["top_n_sigma", "top_k", "top_p", "min_p", "temperature", "xtc"], True),
        (["temperature", "xtc"], True),
        (["xtc", "temperature"], False),
        (["typical_p", "temperature"], False),
    ],
)
def test_the_likeliest_token_needs_no_chain_unless_it_may_be_left_out(
    order: list[str], is_plain: bool
) -> None:
    options = SamplerOptions(
        typical_p=0.5, top_n_sigma=1.0, xtc_probability=0.5, min_keep=2, samplers=tuple(order)
    )
    sampling = SamplingParams(
        temperature=0.0, top_k=5, top_p=0.5, min_p=0.1, sampler_options=options
    )
    assert (chain_of(sampling) == ()) is is_plain


@pytest.mark.parametrize("order", [(), ("typical_p",), ("xtc", "temperature"), ("top_k",)])
def test_mirostat_leaves_out_filters_at_temperature_0_too(order: tuple[str, ...]) -> None:
    """The text is not drawn, whatever `samplers` says."""
    options = SamplerOptions(mirostat=2, typical_p=0.5, xtc_probability=0.5, samplers=order)
    sampling = SamplingParams(temperature=0.0, top_k=5, sampler_options=options)
    assert sampling.is_greedy
    assert chain_of(sampling) == ()


def test_mirostat_at_temperature_0_gives_the_likeliest_text(llm: LLM) -> None:
    fields: dict[str, Any] = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}
    options = {"mirostat": 1, "typical_p": 0.3, "samplers": ["typical_p"]}
    likeliest = completed(llm, **fields).token_ids
    assert completed(llm, **fields, sampler_options=options).token_ids == likeliest


def test_breakers_are_the_last_tokens_of_their_texts(llm: LLM) -> None:
    encode = llm.get_tokenizer().encode
    options = SamplerOptions(dry_multiplier=1.0, dry_sequence_breakers=("x", "the"))
    ends = [encode(text, add_special_tokens=False)[-1] for text in ("x", "ax", "the", "athe")]

    def breakers_of(options: SamplerOptions) -> tuple[int, ...] | None:
        (request,) = requests_of(llm, PROMPT, SamplingParams(sampler_options=options))
        assert request.sampling.sampler_options is not None
        return request.sampling.sampler_options.dry_breaker_ids

    assert breakers_of(options) == tuple(dict.fromkeys(ends))
    assert breakers_of(replace(options, dry_breaker_ids=(3,))) == (3,)
