"""The sampling parameters of a request, checked once, when they are made.

Names, defaults and meanings are those of vLLM. Lists, mappings and a single string in place of a
list are accepted and stored as tuples, so that parameters can be compared, hashed and sent as
they are; `dataclasses.replace` makes a changed copy and checks it again.

The core reads only the fields that end a sequence. The front end reads the fields about text, and
sets two fields before a request reaches the core: `seed` (an unseeded request gets one, so that
its draws can be repeated after a restart; workers take None as 0) and `bad_words_token_ids`
(only the front end has the tokenizer). The sampler reads the rest.

`logits_processors` are names that the workers' runner was started with, or, where the engine
runs in the same process, callables `(prompt_ids, output_ids, logits) -> logits` over numpy
arrays. They receive a copy of the logits after masks and biases and before penalties. They must
be pure functions, since a token is drawn again after a preemption or a restart.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, cast, get_args

GREEDY_BELOW = 1e-5  # a lower temperature means the most likely token
LEAST_TEMPERATURE = 0.01  # temperatures between the two are raised to this
NO_LIMIT = 2**31 - 1  # max_tokens=None: as many as the model's length allows
ALL = -1  # logprobs=-1: the whole vocabulary

MAX_SEQUENCES = 16_384  # n
MAX_IDS = 1 << 20  # in any list of token ids; more than any vocabulary has
MAX_STRINGS = 1024  # in `stop` and `bad_words`
MAX_STRING_LENGTH = 4096
MAX_BAD_WORD_VARIANTS = 128  # each word with and without a space before it
MAX_PROCESSORS = 16
MAX_TEMPERATURE = 1e6  # above it all tokens are equally likely
MAX_BIAS = 100.0  # a logit bias is clamped to ± this
REPETITION_RANGE = (0.01, 100.0)  # a penalty outside of it only overflows

LogitsProcessor = Callable[[Any, Any, Any], Any]

# The hidden state of the prompt's last token, the mean over the prompt, that of its first token.
Pooling = Literal["last", "mean", "cls"]
POOLINGS = get_args(Pooling)


class RequestError(ValueError):
    """A request that cannot be served as it is; the message says why and what to change.

    `param` names the parameter at fault and `code` the kind of error, where the check knows them.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class RequestOutputKind(Enum):
    """The content of each output of a stream."""

    CUMULATIVE = 0  # everything so far
    DELTA = 1  # what is new
    FINAL_ONLY = 2  # everything, once, at the end


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of how tokens are drawn, when a sequence ends, and what is reported."""

    max_tokens: int = 16  # None is accepted and means as many as fit
    min_tokens: int = 0  # nothing stops the sequence before it has so many
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None  # -1 means None
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 or -1: off
    min_p: float = 0.0  # relative to the most likely token
    presence_penalty: float = 0.0  # for tokens in the output
    frequency_penalty: float = 0.0  # … for each occurrence
    repetition_penalty: float = 1.0  # for tokens in the prompt or the output
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    bad_words: tuple[str, ...] = ()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()  # set by the front end
    logit_bias: tuple[tuple[int, float], ...] = ()  # a mapping is accepted
    allowed_token_ids: tuple[int, ...] | None = None
    logits_processors: tuple[str | LogitsProcessor, ...] = ()
    logprobs: int | None = None  # how many tokens besides the sampled one; -1: all
    prompt_logprobs: int | None = None  # the same for the prompt; bypasses the prefix cache
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    pooling: Pooling | None = None  # return an embedding of the prompt

    def __post_init__(self) -> None:
        self._check_end()
        self._check_shape()
        self._check_penalties()
        self._check_tokens()
        self._check_text()

    @property
    def is_greedy(self) -> bool:
        """True if the most likely token is always chosen."""
        return self.temperature < GREEDY_BELOW

    @property
    def is_about_prompt(self) -> bool:
        """True if its one token is discarded, and so does not count against max_model_len."""
        return self.pooling is not None and self.max_tokens == 1

    def check_vocabulary(self, size: int) -> None:
        """Raise RequestError if a token id does not exist in a vocabulary of this size.

        Stop tokens are not checked: one that does not exist never stops anything.
        """
        highest = {
            "logit_bias": max((token for token, _ in self.logit_bias), default=0),
            "allowed_token_ids": max(self.allowed_token_ids or (0,)),
            "bad_words_token_ids": max(map(max, self.bad_words_token_ids), default=0),
        }
        for name, token in highest.items():
            if token >= size:
                raise RequestError(
                    f"{name} names token {token}, but the vocabulary has {size} tokens; "
                    f"ids go from 0 to {size - 1}"
                )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _take_int(self, name: str, low: int = -(2**63), high: int = 2**63 - 1) -> None:
        value = getattr(self, name)
        if type(value) is not int or not low <= value <= high:  # seldom: it costs most of the time
            self._set(name, _require_int(name, value, low, high))

    def _take_number(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        if type(value) is not float or not low <= value <= high:
            self._set(name, _require_number(name, value, low, high))

    def _is_given(self, name: str) -> bool:
        """Return whether a list is anything but the default, the empty tuple."""
        value = getattr(self, name)
        return not (isinstance(value, tuple) and not value)

    def _check_end(self) -> None:
        if self.max_tokens is None:
            self._set("max_tokens", NO_LIMIT)
        self._take_int("max_tokens")
        if self.max_tokens < 1:
            raise RequestError(f"max_tokens={self.max_tokens} must be at least 1")
        self._take_int("max_tokens", 1, NO_LIMIT)
        self._take_int("min_tokens")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise RequestError(
                f"min_tokens={self.min_tokens} must be between 0 and max_tokens={self.max_tokens}"
            )
        if self._is_given("stop_token_ids"):
            self._set("stop_token_ids", tuple(dict.fromkeys(_ids(self, "stop_token_ids"))))

    def _check_shape(self) -> None:
        if self.seed == -1:
            self._set("seed", None)
        if self.seed is not None:
            self._take_int("seed")
        self._take_int("n", 1, MAX_SEQUENCES)
        self._take_number("temperature", 0.0, MAX_TEMPERATURE)
        self._take_number("top_p", 0.0, 1.0)
        if self.top_p == 0.0:
            raise RequestError(
                "top_p=0.0 leaves no token; it must be above 0 and at most 1. "
                "For the most likely token, set temperature=0"
            )
        if self.top_k == -1:
            self._set("top_k", 0)
        self._take_int("top_k", 0, NO_LIMIT)
        self._take_number("min_p", 0.0, 1.0)
        if self.n > 1 and self.is_greedy:
            raise RequestError(
                f"n={self.n} with temperature={self.temperature} would give the same text "
                f"{self.n} times; set n=1, or a higher temperature"
            )
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                self._take_int(name, ALL, MAX_IDS)

    def _check_penalties(self) -> None:
        self._take_number("presence_penalty", -2.0, 2.0)
        self._take_number("frequency_penalty", -2.0, 2.0)
        self._take_number("repetition_penalty", *REPETITION_RANGE)

    def _check_tokens(self) -> None:
        if self._is_given("logit_bias"):
            bias = self.logit_bias
            pairs = bias.items() if isinstance(bias, Mapping) else _items("logit_bias", bias or ())
            self._set("logit_bias", tuple(sorted(dict(map(_bias, pairs)).items())))
            _require_length("logit_bias", len(self.logit_bias), MAX_IDS)
        if self.allowed_token_ids is not None:
            self._set("allowed_token_ids", tuple(dict.fromkeys(_ids(self, "allowed_token_ids"))))
            if not self.allowed_token_ids:
                raise RequestError(
                    "allowed_token_ids is empty, so no token could be chosen; "
                    "omit it, or name at least one"
                )
        if self._is_given("bad_words_token_ids"):
            words = _items("bad_words_token_ids", self.bad_words_token_ids)
            kept = tuple(tuple(_each_id("bad_words_token_ids", word)) for word in words)
            if not all(kept):
                raise RequestError("bad_words_token_ids contains a word without tokens; remove it")
            self._set("bad_words_token_ids", kept)
            _require_length("bad_words_token_ids", len(kept), MAX_BAD_WORD_VARIANTS)
        if self._is_given("logits_processors"):
            processors = _items("logits_processors", self.logits_processors)
            self._set("logits_processors", tuple(processors))
            _require_length("logits_processors", len(self.logits_processors), MAX_PROCESSORS)
        for processor in self.logits_processors:
            if not (isinstance(processor, str) or callable(processor)):
                raise RequestError(
                    f"logits_processors contains {processor!r}, which is neither the name of a "
                    "processor that the engine was started with nor a callable"
                )

    def _check_text(self) -> None:
        for name in ("stop", "bad_words"):
            if self._is_given(name):
                self._set(name, tuple(_strings(name, getattr(self, name))))
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name}={getattr(self, name)!r} must be True or False")
        if self.stop and not self.detokenize:
            raise RequestError(
                "stop strings are searched for in the text, and detokenize=False makes none; "
                "use stop_token_ids, or detokenize=True"
            )
        if self.pooling is None:
            pass
        elif self.pooling not in POOLINGS:
            raise RequestError(f"pooling={self.pooling!r} must be one of {', '.join(POOLINGS)}")
        elif (self.logprobs, self.prompt_logprobs) != (None, None):
            raise RequestError(
                "pooling cannot be combined with logprobs or prompt_logprobs; send two requests"
            )
        if not isinstance(self.output_kind, RequestOutputKind):
            raise RequestError(f"output_kind={self.output_kind!r} is not a RequestOutputKind")


_FLAGS = (
    "ignore_eos",
    "include_stop_str_in_output",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
)


def _require_int(name: str, value: Any, low: int = -(2**63), high: int = 2**63 - 1) -> int:
    """Return `value` as an int. Integers of numpy are accepted, a bool is not."""
    try:
        number = operator.index(value)
    except TypeError:
        raise RequestError(f"{name}={value!r} must be a whole number") from None
    if isinstance(value, bool):
        raise RequestError(f"{name}={value!r} must be a whole number")
    if not low <= number <= high:
        raise RequestError(f"{name}={value} must be between {low} and {high}")
    return number


def _require_number(name: str, value: Any, low: float, high: float) -> float:
    """Return `value` as a Python number. Numbers of numpy are accepted, a bool is not."""
    number = value
    if not isinstance(value, int | float):
        if not hasattr(type(value), "__float__"):
            raise RequestError(f"{name}={value!r} must be a number")
        try:
            number = float(value)
        except TypeError:
            raise RequestError(f"{name}={value!r} must be a number") from None
    if isinstance(value, bool):
        raise RequestError(f"{name}={value!r} must be a number")
    if not low <= number <= high:  # false for NaN too
        raise RequestError(f"{name}={value} must be a number between {low} and {high}")
    return cast("float", number)


def _require_length(name: str, length: int, most: int) -> None:
    if length > most:
        raise RequestError(f"{name} has {length} entries; at most {most} are allowed")


def _items(name: str, value: object) -> Iterable[Any]:
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise RequestError(f"{name}={value!r} must be a list")
    return value


def _each_id(name: str, value: object) -> Iterable[int]:
    for count, token in enumerate(_items(name, value), 1):
        _require_length(name, count, MAX_IDS)
        yield _require_int(f"a token id in {name}", token, 0, NO_LIMIT)


def _ids(params: SamplingParams, name: str) -> Iterable[int]:
    return _each_id(name, getattr(params, name))


def _bias(pair: Any) -> tuple[int, float]:
    """Return one checked entry of logit_bias; in JSON the token id is a string."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise RequestError(f"logit_bias contains {pair!r}; it must map token ids to numbers")
    token, value = pair
    if isinstance(token, str) and token.isascii() and token.isdigit():
        token = int(token[:20])
    if isinstance(token, str):
        raise RequestError(
            f"logit_bias has the key {token[:64]!r}, which is no token id; token ids are "
            "whole numbers, such as '42'"
        )
    token = _require_int("a token id in logit_bias", token, 0, NO_LIMIT)
    value = _require_number(f"logit_bias of token {token}", value, -math.inf, math.inf)
    if not math.isfinite(value):
        raise RequestError(f"logit_bias of token {token} is {value}; it must be finite")
    return token, max(-MAX_BIAS, min(MAX_BIAS, float(value)))


def _strings(name: str, value: object) -> Iterable[str]:
    if isinstance(value, str):
        value = (value,)
    for count, text in enumerate(_items(name, value), 1):
        _require_length(name, count, MAX_STRINGS)
        if not isinstance(text, str):
            raise RequestError(f"{name} contains {text!r}, which is not a string")
        if not text:
            raise RequestError(
                f"{name} contains an empty string, which matches everywhere; remove it"
            )
        _require_length(f"a string in {name}", len(text), MAX_STRING_LENGTH)
        yield text
