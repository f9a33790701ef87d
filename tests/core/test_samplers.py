"""Options of further samplers: what they accept, what switches them off, and their order."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.core.parameters.samplers import MAX_BREAKERS, SamplerOptions
from octavo.core.sampling_params import MAX_WINDOW, SAMPLERS, RequestError, SamplingParams


def options_of(**fields: Any) -> SamplerOptions | None:
    return SamplingParams(sampler_options=fields).sampler_options  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"typical_p": 1, "top_n_sigma": -1, "xtc_probability": 0, "dry_multiplier": 0},
        {"xtc_probability": 0.5, "xtc_threshold": 0.6},
        {"dry_multiplier": 0.8, "dry_penalty_last_n": 0},
        {"min_keep": 1, "dynatemp_exponent": 3.0, "repeat_last_n": -1},
        {"mirostat": 0, "mirostat_tau": 2, "mirostat_eta": 0.5},
    ],
)
def test_options_that_change_nothing_are_none(fields: dict[str, Any]) -> None:
    assert SamplingParams(sampler_options=fields) == SamplingParams()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        {"typical_p": 0.9},
        {"top_n_sigma": 1},
        {"xtc_probability": 0.5, "xtc_threshold": 0.5},
        {"dynatemp_range": 0.1},
        {"min_keep": 2},
        {"repeat_last_n": 0},
        {"dry_multiplier": 0.8},
        {"samplers": ["top_k"]},
        {"mirostat": 2},
    ],
)
def test_options_that_change_something_are_kept(fields: dict[str, Any]) -> None:
    made = options_of(**fields)
    assert made == SamplerOptions(**fields)
    assert SamplingParams(sampler_options=made).sampler_options == made


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"typical_p": 0.0}, None),
        ({"typical_p": 1.1}, None),
        ({"typical_p": True}, None),
        ({"top_n_sigma": float("nan")}, None),
        ({"xtc_probability": -0.1}, None),
        ({"dry_base": 0.9}, None),
        ({"dry_allowed_length": 0}, None),
        ({"dry_penalty_last_n": MAX_WINDOW + 1}, None),
        ({"min_keep": 1.5}, None),
        ({"dry_sequence_breakers": [""]}, "dry_sequence_breakers"),
        ({"dry_sequence_breakers": [3]}, "dry_sequence_breakers"),
        ({"dry_sequence_breakers": list(map(str, range(MAX_BREAKERS + 1)))}, None),
        ({"dry_breaker_ids": [-1]}, None),
        ({"samplers": ["mirostat"]}, "samplers"),
        ({"mirostat": 3}, None),
        ({"mirostat_tau": -1}, None),
        ({"mirostat_eta": 101}, None),
        ({"samplers": [["top_k"]]}, "samplers"),
        ({"samplers": ["top_k", "top-k"]}, "samplers"),
        ({"unknown": 1}, "sampler_options"),
    ],
)
def test_wrong_options_are_refused(fields: dict[str, Any], param: str | None) -> None:
    with pytest.raises(RequestError) as caught:
        options_of(**fields)
    assert caught.value.param == param


def test_options_are_a_mapping_or_options() -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(sampler_options=3)  # type: ignore[arg-type]
    assert caught.value.param == "sampler_options"


def test_names_of_samplers_have_other_spellings() -> None:
    made = options_of(samplers=["top-k", "typ_p", "temp", "top_n_sigma"])
    assert made is not None
    assert made.samplers == ("top_k", "typical_p", "temperature", "top_n_sigma")


def test_samplers_that_are_not_listed_are_off() -> None:
    made = SamplingParams(
        temperature=0.3,
        top_k=5,
        top_p=0.5,
        min_p=0.1,
        repetition_penalty=1.3,
        sampler_options={"samplers": ["top_k"], "dry_multiplier": 1.0},  # type: ignore[arg-type]
    )
    assert (made.temperature, made.top_k, made.top_p, made.min_p) == (1.0, 5, 1.0, 0.0)
    assert not made.has_penalties
    assert made.sampler_options is not None
    assert not made.sampler_options.has_dry


def test_penalties_over_no_tokens_are_none() -> None:
    made = SamplingParams(
        presence_penalty=1.0, sampler_options=SamplerOptions(repeat_last_n=0, typical_p=0.5)
    )
    assert not made.has_penalties
    with_all = SamplingParams(presence_penalty=1.0, sampler_options=SamplerOptions(typical_p=0.5))
    assert with_all.has_penalties


@pytest.mark.parametrize(
    ("order", "is_right"),
    [
        (SAMPLERS, True),
        (("penalties", "dry", "xtc", "temperature"), True),
        (("dry", "penalties"), False),
        (("top_k", "penalties"), False),
        (("penalties", "top_k", "dry"), False),
    ],
)
def test_penalties_come_first(order: tuple[str, ...], is_right: bool) -> None:
    options = SamplerOptions(samplers=order, dry_multiplier=1.0)
    if is_right:
        made = SamplingParams(presence_penalty=1.0, sampler_options=options)
        assert made.sampler_options == options
        return
    with pytest.raises(RequestError) as caught:
        SamplingParams(presence_penalty=1.0, sampler_options=options)
    assert caught.value.param == "samplers"
    off = SamplerOptions(samplers=order)
    assert SamplingParams(sampler_options=off).sampler_options == off  # none of them is on


def test_breakers_must_be_tokens_of_the_vocabulary() -> None:
    options = SamplerOptions(dry_multiplier=1.0, dry_breaker_ids=(3, 9))
    made = SamplingParams(sampler_options=options)
    made.check_vocabulary(10)
    with pytest.raises(RequestError) as caught:
        made.check_vocabulary(9)
    assert caught.value.param == "dry_breaker_ids"


def test_mirostat_has_a_state_unless_the_likeliest_token_is_taken() -> None:
    options = SamplerOptions(mirostat=2, samplers=("top_k",))
    made = SamplingParams(temperature=0.7, sampler_options=options)
    assert made.has_state
    assert made.temperature == 0.7  # which it is always behind
    assert not SamplingParams(temperature=0.0, sampler_options=options).has_state
    assert not SamplingParams(sampler_options=SamplerOptions(typical_p=0.5)).has_state
    assert not SamplingParams().has_state
