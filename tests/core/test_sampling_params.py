"""Sampling parameters: accepted values, stored values, and the message of every rejection."""

import dataclasses
import math
from typing import Any

import pytest

from octavo.core.pooling import Pooling
from octavo.core.sampling_params import (
    NO_LIMIT,
    RequestError,
    RequestOutputKind,
    SamplingParams,
    ThinkingMarks,
)


def changed(**fields: Any) -> SamplingParams:
    """Return parameters with some fields of any type."""
    return SamplingParams(**fields)


class _Seven:
    """A number that is not a Python number, such as those of numpy."""

    def __index__(self) -> int:
        return 7

    def __float__(self) -> float:
        return 7.0


def test_the_defaults_are_those_of_vllm() -> None:
    params = SamplingParams()
    assert (params.n, params.max_tokens, params.temperature, params.top_p) == (1, 16, 1.0, 1.0)
    assert (params.top_k, params.min_p, params.seed, params.repetition_penalty) == (0, 0, None, 1)
    assert params.output_kind is RequestOutputKind.CUMULATIVE
    assert not params.is_greedy
    assert hash(params) == hash(SamplingParams())


def test_max_tokens_is_at_least_one() -> None:
    assert SamplingParams(max_tokens=1).max_tokens == 1
    with pytest.raises(ValueError, match="max_tokens=0 must be at least 1"):
        SamplingParams(max_tokens=0)


@pytest.mark.parametrize("min_tokens", [-1, 5])
def test_min_tokens_is_between_0_and_max_tokens(min_tokens: int) -> None:
    assert SamplingParams(max_tokens=4, min_tokens=4).min_tokens == 4
    with pytest.raises(ValueError, match=f"min_tokens={min_tokens} .* max_tokens=4"):
        SamplingParams(max_tokens=4, min_tokens=min_tokens)


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"max_tokens": None}, {"max_tokens": NO_LIMIT}),
        ({"max_tokens": _Seven()}, {"max_tokens": 7}),
        ({"temperature": 2.5}, {"temperature": 2.5}),
        ({"temperature": _Seven()}, {"temperature": 7.0}),
        ({"stop_token_ids": [_Seven()]}, {"stop_token_ids": (7,)}),
        ({"seed": -1}, {"seed": None}),
        ({"seed": -(2**63)}, {"seed": -(2**63)}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"stop": "x"}, {"stop": ("x",)}),
        ({"stop": ["x", "y"]}, {"stop": ("x", "y")}),
        ({"stop": None}, {"stop": ()}),
        ({"bad_words": ["no"]}, {"bad_words": ("no",)}),
        ({"stop_token_ids": [3, 1, 3]}, {"stop_token_ids": (3, 1)}),
        ({"stop_token_ids": None}, {"stop_token_ids": ()}),
        ({"allowed_token_ids": [5, 5, 2]}, {"allowed_token_ids": (5, 2)}),
        ({"logit_bias": {"7": 200, 3: -1}}, {"logit_bias": ((3, -1.0), (7, 100.0))}),
        ({"logit_bias": ((3, -500.0),)}, {"logit_bias": ((3, -100.0),)}),
        ({"logit_bias": None}, {"logit_bias": ()}),
        ({"bad_words_token_ids": [[1, 2], [3]]}, {"bad_words_token_ids": ((1, 2), (3,))}),
        ({"logits_processors": ["a", len]}, {"logits_processors": ("a", len)}),
        ({"extra_args": {"a": 1, "b": [True]}}, {"extra_args": '{"a":1,"b":[true]}'}),
        ({"extra_args": {}}, {"extra_args": ""}),
        ({"extra_args": None}, {"extra_args": ""}),
        ({"prediction": None}, {"prediction": ""}),
        ({"prediction": "a text"}, {"prediction": "a text"}),
        ({"prediction": [3, 1, 2**31 - 1]}, {"prediction": (3, 1, 2**31 - 1)}),
        ({"prediction": []}, {"prediction": ""}),
        ({"logprobs": -1, "prompt_logprobs": 0}, {"logprobs": -1, "prompt_logprobs": 0}),
        ({"logprob_token_ids": [7, 2, 7]}, {"logprob_token_ids": (7, 2), "logprobs": 2}),
    ],
)
def test_values_are_stored_in_one_form(fields: dict[str, Any], kept: dict[str, Any]) -> None:
    params = changed(**fields)
    assert {name: getattr(params, name) for name in kept} == kept
    assert dataclasses.replace(params) == params


def test_each_reader_of_extra_arguments_gets_a_mapping_of_its_own() -> None:
    params = changed(extra_args={"a": 1})
    params.arguments["a"] = 2
    assert params.arguments == {"a": 1}
    assert changed().arguments == {}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": 2**31}, "max_tokens=2147483648 must be between 0 and 2147483647"),
        ({"max_tokens": 1.5}, "max_tokens=1.5 must be a whole number"),
        ({"max_tokens": True}, "max_tokens=True must be a whole number"),
        ({"min_tokens": "1"}, "min_tokens='1' must be a whole number"),
        ({"seed": 2**63}, "seed=9223372036854775808 must be between"),
        ({"n": 0}, "n=0 must be between 1 and 16384"),
        ({"n": 16_385}, "n=16385 must be between"),
        ({"n": 2, "temperature": 0}, "n=2 with temperature=0 would give the same text 2 times"),
        ({"temperature": -0.1}, "temperature=-0.1 must be a number between 0.0 and 1000000.0"),
        ({"temperature": math.inf}, "temperature=inf must be"),
        ({"temperature": 1 + 1j}, "must be a number"),
        ({"temperature": math.nan}, "temperature=nan must be"),
        ({"temperature": "hot"}, "temperature='hot' must be a number"),
        ({"top_p": 0}, "leaves no token; it must be above 0"),
        ({"top_p": 1.1}, "top_p=1.1 must be"),
        ({"top_k": -2}, "top_k=-2 must be between 0"),
        ({"min_p": math.inf}, "min_p=inf must be"),
        ({"presence_penalty": 2.5}, "presence_penalty=2.5 must be"),
        ({"frequency_penalty": -3}, "frequency_penalty=-3 must be"),
        ({"repetition_penalty": 0}, "repetition_penalty=0 must be"),
        ({"repetition_penalty": math.inf}, "repetition_penalty=inf must be"),
        ({"logprob_token_ids": (3, 5), "logprobs": 1}, "names 2 tokens"),
        ({"logprob_token_ids": range(129)}, "129 entries"),
        ({"logprobs": -2}, "logprobs=-2 must be between -1"),
        ({"prompt_logprobs": 1.0}, "prompt_logprobs=1.0 must be a whole number"),
        ({"logit_bias": {1: math.nan}}, "logit_bias of token 1=nan must be"),
        ({"logit_bias": {1: math.inf}}, "logit_bias of token 1 is inf; it must be finite"),
        (
            {"logit_bias": {"x": 1, "7": 1, "¹": 1, -1: 1, True: 1, 2.5: 1, "9" * 30: 1}},
            "keys that are no token ids: 'x', '¹', -1, True, 2.5, '9{30}'; token ids are",
        ),
        ({"logit_bias": {"k" * 65: 1}}, f"no token ids: '{'k' * 64}'; token ids are"),
        ({"logit_bias": dict.fromkeys("abc" * 30, 1)}, "no token ids: 'a', 'b', 'c'; token"),
        ({"logit_bias": {f"k{n}": 1 for n in range(66)}}, "'k62', 'k63' and 2 more; token ids"),
        ({"logit_bias": [4]}, "logit_bias contains 4; it must map token ids to numbers"),
        ({"logit_bias": 4}, "logit_bias=4 must be a list"),
        ({"allowed_token_ids": []}, "allowed_token_ids is empty, so no token could be chosen"),
        ({"allowed_token_ids": [-1]}, "a token id in allowed_token_ids=-1 must be between"),
        ({"allowed_token_ids": "12"}, "allowed_token_ids='12' must be a list"),
        ({"stop_token_ids": [1.0]}, "a token id in stop_token_ids=1.0 must be a whole number"),
        ({"stop_token_ids": range(2**20 + 1)}, "stop_token_ids has 1048577 entries; at most"),
        ({"bad_words_token_ids": [[]]}, "contains a word without tokens"),
        ({"bad_words_token_ids": [[1]] * 129}, "has 129 entries; at most 128 are allowed"),
        ({"logits_processors": [7]}, "contains 7, which is neither the name"),
        ({"logits_processors": "name"}, "logits_processors='name' must be a list"),
        ({"logits_processors": ["x"] * 17}, "has 17 entries; at most 16"),
        ({"extra_args": [1]}, "extra_args is a list; it must be a mapping"),
        ({"prediction": "x" * (1 + (1 << 22))}, "prediction has 4194305 characters"),
        ({"prediction": 7}, "prediction is a int"),
        ({"prediction": b"text"}, "prediction is a bytes"),
        ({"prediction": [1, -1]}, "prediction contains '-1'"),
        ({"prediction": [True]}, "prediction contains 'True'"),
        ({"prediction": ["a"]}, "prediction contains 'a'"),
        ({"prediction": range(1 + (1 << 20))}, "prediction has more than 1048576 token ids"),
        ({"extra_args": "{"}, "extra_args is not JSON"),
        ({"extra_args": "[" * 4096}, "extra_args is not JSON"),
        ({"extra_args": {str(n): 1 for n in range(17)}}, "has 17 names; at most 16"),
        ({"extra_args": {"a" * 65: 1}}, "1 to 64 characters"),
        ({"extra_args": {"": 1}}, "1 to 64 characters"),
        ({"extra_args": {7: 1}}, "has the name '7'"),
        ({"extra_args": {"a": None}}, "has 'a': None; a value is"),
        ({"extra_args": {"a": [[1]]}}, "a value is a string, a finite number"),
        ({"extra_args": {"a": math.nan}}, "a value is a string, a finite number"),
        ({"extra_args": {"a": -math.inf}}, "a value is a string, a finite number"),
        ({"extra_args": {"a": "x" * 4096}}, "has 4104 characters as JSON; at most 4096"),
        ({"stop": ""}, "stop contains an empty string"),
        ({"stop": [1]}, "stop contains 1, which is not a string"),
        ({"stop": ["x"] * 1025}, "stop has 1025 entries"),
        ({"stop": "x" * 4097}, "a string in stop has 4097 entries"),
        ({"stop": "x", "detokenize": False}, "detokenize=False makes none"),
        ({"ignore_eos": 1}, "ignore_eos=1 must be True or False"),
        ({"output_kind": 2}, "output_kind=2 is not a RequestOutputKind"),
    ],
)
def test_a_bad_value_is_rejected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=r"^.*" + message.replace("[", r"\[")):
        changed(**fields)


def test_a_low_temperature_means_greedy() -> None:
    assert SamplingParams(temperature=0).is_greedy
    assert SamplingParams(temperature=9e-6).is_greedy
    assert not SamplingParams(temperature=1e-5).is_greedy


@pytest.mark.parametrize(
    "fields",
    [
        {"logit_bias": {10: 1, 12: 1}},
        {"allowed_token_ids": [12, 3, 10]},
        {"bad_words_token_ids": [[1, 10], [12]]},
        {"stop_token_ids": [10, 12]},
    ],
)
def test_token_ids_must_exist(fields: dict[str, Any]) -> None:
    params = changed(**fields)
    params.check_vocabulary(13)
    (name,) = fields
    found = "12, 10" if name == "allowed_token_ids" else "10, 12"
    message = f"{name} has ids that are no tokens: {found}; the vocabulary has 10 tokens, with"
    with pytest.raises(RequestError, match=message) as raised:
        params.check_vocabulary(10)
    assert raised.value.param == name


def test_pooling_excludes_logprobs() -> None:
    with pytest.raises(ValueError, match="pooling cannot be combined with logprobs"):
        SamplingParams(pooling=Pooling("last"), logprobs=0)
    tail: Any = "tail"
    wrong: tuple[tuple[Any, str], ...] = (
        ("max", "pooling='max' must be one of last, mean, cls, all"),
        (["last"], r"pooling=\['last'\] must be one of"),
        (Pooling("last", head=tail), "the head of pooling=.* must be one of '', 'embed'"),
        (Pooling("last", second_from=-1), "second_from=-1 must be between 0"),
    )
    for pooling, message in wrong:
        with pytest.raises(ValueError, match=message):
            SamplingParams(pooling=pooling)


def test_only_pooling_asks_for_no_token() -> None:
    named: Any = "mean"  # a kind's name is accepted
    asked = SamplingParams(max_tokens=0, pooling=named)
    assert asked.pooling == Pooling("mean")
    assert asked.is_about_prompt
    with pytest.raises(ValueError, match="max_tokens=0 must be at least 1"):
        SamplingParams(max_tokens=0)
    with pytest.raises(ValueError, match="n=2 answers need tokens"):
        SamplingParams(max_tokens=0, pooling=Pooling(), n=2)


class _Array:
    """An array of several numbers."""

    def __float__(self) -> float:
        raise TypeError("only arrays of one element can be converted")


def test_a_number_of_another_library_is_accepted_and_an_array_is_not() -> None:
    assert changed(temperature=_Seven()).temperature == 7.0
    for value in (_Array(), True):
        with pytest.raises(RequestError, match=r"^temperature=.* must be a number$"):
            changed(temperature=value)


def test_a_budget_of_reasoning_must_be_able_to_end_it() -> None:
    """Minus one is no budget, as in vLLM."""
    assert SamplingParams(thinking_token_budget=-1).thinking_token_budget is None
    marks = ThinkingMarks(((3,),), ((4, 5), (6,)))
    right = SamplingParams(
        thinking_token_budget=0,
        thinking_marks=marks,
        allowed_token_ids=(4, 5),
        stop_token_ids=(5,),
        bad_words_token_ids=((4, 6),),
    )
    right.check_thinking()
    dataclasses.replace(right, allowed_token_ids=None).check_thinking()
    SamplingParams(thinking_token_budget=7, bad_words_token_ids=((5,),)).check_thinking()
    wrongs: tuple[dict[str, Any], ...] = (
        {"allowed_token_ids": [4]},
        {"bad_words_token_ids": [[7, 5]]},
        {"stop_token_ids": [4], "min_tokens": 1},
    )
    for wrong in wrongs:
        (name, *_) = wrong
        with pytest.raises(RequestError, match="thinking_token_budget") as caught:
            dataclasses.replace(right, **wrong).check_thinking()
        assert caught.value.param == name
    with pytest.raises(RequestError, match="thinking_token_budget=-2 must be between 0"):
        SamplingParams(thinking_token_budget=-2)
