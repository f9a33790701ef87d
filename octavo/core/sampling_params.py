"""The sampling parameters of a request, checked once, when they are made.

Names, defaults and meanings are those of vLLM. Lists, mappings and a single string in place of a
list are accepted and stored as tuples, so that parameters can be compared, hashed and sent as
they are; `dataclasses.replace` makes a changed copy and checks it again.

The core reads only the fields that end a sequence. The front end reads the fields about text, and
sets some fields before a request reaches the core: `seed` (an unseeded request gets one, so that
its draws can be repeated after a restart; workers take None as 0), `bad_words_token_ids` and
`sampler_options.dry_breaker_ids` (only the front end has the tokenizer), `grammar` (what
`structured_outputs` means for the grammar engine) and `thinking_marks` (how the model writes its
reasoning). The sampler reads the rest.

`logits_processors` are names that the workers' runner was started with, or, where the engine
runs in the same process, callables `(prompt_ids, output_ids, logits) -> logits` over numpy
arrays. They receive a copy of the logits after masks and biases and before penalties. They must
be pure functions, since a token is drawn again after a preemption or a restart.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from octavo.core.parameters.errors import TOO_LONG as TOO_LONG
from octavo.core.parameters.errors import RequestError as RequestError
from octavo.core.parameters.extra_args import MAX_EXTRA_ARGS as MAX_EXTRA_ARGS
from octavo.core.parameters.extra_args import arguments_of, read_extra_args
from octavo.core.parameters.prediction import MAX_PREDICTION_TOKENS as MAX_PREDICTION_TOKENS
from octavo.core.parameters.prediction import read_prediction
from octavo.core.parameters.samplers import MAX_BREAKER_LENGTH as MAX_BREAKER_LENGTH
from octavo.core.parameters.samplers import MAX_BREAKERS as MAX_BREAKERS
from octavo.core.parameters.samplers import MAX_REPEATED as MAX_REPEATED
from octavo.core.parameters.samplers import MAX_WINDOW as MAX_WINDOW
from octavo.core.parameters.samplers import SAMPLERS as SAMPLERS
from octavo.core.parameters.samplers import SamplerOptions as SamplerOptions
from octavo.core.parameters.samplers import read_sampler_options as read_sampler_options
from octavo.core.parameters.thinking import Mark as Mark
from octavo.core.parameters.thinking import ThinkingMarks as ThinkingMarks
from octavo.core.parameters.values import MAX_NAMED as MAX_NAMED
from octavo.core.parameters.values import (
    items,
    listed,
    require_int,
    require_length,
    require_number,
)
from octavo.core.pooling import HEADS, POOLINGS, Pooling
from octavo.core.stopping.repetition import (
    MAX_COMPARED,
    MAX_PATTERN_SIZE,
    RepetitionDetectionParams,
)
from octavo.core.structured_outputs import StructuredOutputsParams

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
MAX_LOGPROB_IDS = 128  # in `logprob_token_ids`
MAX_TEMPERATURE = 1e6  # above it all tokens are equally likely
MAX_BIAS = 100.0  # a logit bias is clamped to ± this
REPETITION_RANGE = (0.01, 100.0)  # a penalty outside of it only overflows

LogitsProcessor = Callable[[Any, Any, Any], Any]


class RequestOutputKind(Enum):
    """The content of each output of a stream."""

    CUMULATIVE = 0  # everything so far
    DELTA = 1  # what is new
    FINAL_ONLY = 2  # everything, once, at the end


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of how tokens are drawn, when a sequence ends, and what is reported."""

    max_tokens: int = 16  # None is accepted and means as many as fit; 0: only pooling
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
    extra_args: str = ""  # for the engine's own processors, as JSON; a mapping is accepted
    logprobs: int | None = None  # how many tokens besides the sampled one; -1: all
    logprob_token_ids: tuple[int, ...] = ()  # instead of the likeliest; `logprobs` is their number
    prompt_logprobs: int | None = None  # of the prompt's tokens; bypasses the prefix cache
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    pooling: Pooling | None = None  # return vectors of the prompt; a kind's name is accepted
    structured_outputs: StructuredOutputsParams | None = None  # the shape of the text
    grammar: str = ""  # set by the front end
    thinking_token_budget: int | None = None  # then the end of the reasoning is written; -1: None
    thinking_marks: ThinkingMarks | None = None  # set by the front end; None: no reasoning
    repetition_detection: RepetitionDetectionParams | None = None  # a mapping is accepted
    prediction: str | tuple[int, ...] = ""  # a text that the answer may follow, or its token ids
    speculation: bool = True  # whether drafts may be verified; no text depends on it
    sampler_options: SamplerOptions | None = None  # further samplers; a mapping is accepted

    def __post_init__(self) -> None:
        if self.max_tokens is None:
            self._set("max_tokens", NO_LIMIT)
        elif type(self.max_tokens) is int and self.max_tokens < (self.pooling is None):
            raise RequestError(f"max_tokens={self.max_tokens} must be at least 1")
        if self.seed == -1:
            self._set("seed", None)
        if self.top_k == -1:
            self._set("top_k", 0)
        if self.thinking_token_budget == -1:
            self._set("thinking_token_budget", None)
        # Types are compared first: nearly all values are right, and calls would take most time.
        for name, low, high in _INTEGERS:
            value = getattr(self, name)
            if (type(value) is not int or not low <= value <= high) and not (
                value is None and name in _OPTIONAL
            ):
                self._set(name, require_int(name, value, low, high))
        for name, least, most in _NUMBERS:
            value = getattr(self, name)
            if type(value) is not float or not least <= value <= most:
                self._set(name, require_number(name, value, least, most))
        if self.extra_args != "":
            self._set("extra_args", read_extra_args(self.extra_args))
        if self.prediction != "":
            self._set("prediction", read_prediction(self.prediction))
        if self.pooling is not None:
            self._set("pooling", _read_pooling(self.pooling))
        if self.repetition_detection is not None:
            self._set("repetition_detection", _read_repetition(self.repetition_detection))
        if self.sampler_options is not None:
            self._set("sampler_options", read_sampler_options(self.sampler_options))
        if self.sampler_options is not None:
            self._switch_off(self.sampler_options)
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name}={getattr(self, name)!r} must be True or False")
        for name, read in _LISTS.items():
            value = getattr(self, name)
            if type(value) is not tuple or value:  # anything but the default
                self._set(name, read(name, value))
        self._check_together()

    @property
    def has_penalties(self) -> bool:
        return any(getattr(self, name) != off for name, off in _PENALTIES.items())

    @property
    def is_greedy(self) -> bool:
        """True if the most likely token is always chosen."""
        return self.temperature < GREEDY_BELOW

    @property
    def arguments(self) -> dict[str, Any]:
        """`extra_args` as a mapping, which is new each time."""
        return arguments_of(self.extra_args)

    @property
    def has_state(self) -> bool:
        """True if its sampler has a state that the tokens before do not determine."""
        options = self.sampler_options
        return options is not None and options.mirostat > 0 and not self.is_greedy

    @property
    def is_about_prompt(self) -> bool:
        """True if it ends with its prompt, and no token is drawn."""
        return self.max_tokens == 0

    def check_vocabulary(self, size: int) -> None:
        """Raise RequestError if a token id does not exist in a vocabulary of this size."""
        ids: dict[str, Sequence[int]] = {
            "stop_token_ids": self.stop_token_ids,
            "logit_bias": [token for token, _ in self.logit_bias],
            "allowed_token_ids": self.allowed_token_ids or (),
            "logprob_token_ids": self.logprob_token_ids,
            "bad_words_token_ids": [token for word in self.bad_words_token_ids for token in word],
        }
        if self.sampler_options is not None:
            ids["dry_breaker_ids"] = self.sampler_options.dry_breaker_ids or ()
        for name, tokens in ids.items():
            if max(tokens, default=0) >= size:
                unknown = listed([token for token in tokens if token >= size])
                raise RequestError(
                    f"{name} has ids that are no tokens: {unknown}; the vocabulary has {size} "
                    f"tokens, with ids from 0 to {size - 1}",
                    param=name,
                )

    def check_thinking(self) -> None:
        """Raise RequestError if a rule forbids to write the end of the reasoning."""
        if self.thinking_token_budget is None or self.thinking_marks is None:
            return
        mark = self.thinking_marks.close[0]
        forbidden: dict[str, Sequence[int]] = {
            "bad_words_token_ids": [word[-1] for word in self.bad_words_token_ids],
            "stop_token_ids": self.stop_token_ids if self.min_tokens else (),
        }
        if self.allowed_token_ids is not None:
            allowed = dict.fromkeys(self.allowed_token_ids)
            forbidden["allowed_token_ids"] = [token for token in mark if token not in allowed]
        for name, tokens in forbidden.items():
            for token in (each for each in mark if each in tokens):
                raise RequestError(
                    f"{name} forbids token {token}, with which the end of the reasoning is written "
                    "when thinking_token_budget is spent; leave out one of the two",
                    param=name,
                )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _switch_off(self, options: SamplerOptions) -> None:
        """Set what options exclude to the values that have no effect; refuse a wrong order."""
        off = {} if options.repeat_last_n else dict(_PENALTIES)
        for name, values in _OFF.items():
            # Mirostat is always behind the temperature.
            is_listed = name in options.samplers or (options.mirostat and name == "temperature")
            if options.samplers and not is_listed:
                off.update(values)
        for name, value in off.items():
            self._set(name, value)
        options.check_order(has_penalties=self.has_penalties)

    def _check_together(self) -> None:
        """Refuse values that are right alone and wrong beside others."""
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise RequestError(
                f"min_tokens={self.min_tokens} must be between 0 and max_tokens={self.max_tokens}"
            )
        if self.top_p == 0.0:
            raise RequestError(
                "top_p=0.0 leaves no token; it must be above 0 and at most 1. "
                "For the most likely token, set temperature=0"
            )
        if self.n > 1 and self.is_about_prompt:
            raise RequestError(
                f"n={self.n} answers need tokens, and max_tokens=0 asks for none; set n=1"
            )
        if self.n > 1 and self.is_greedy:
            raise RequestError(
                f"n={self.n} with temperature={self.temperature} would give the same text "
                f"{self.n} times; set n=1, or a higher temperature"
            )
        if self.allowed_token_ids is not None:
            self._set("allowed_token_ids", _read_ids("allowed_token_ids", self.allowed_token_ids))
            if not self.allowed_token_ids:
                raise RequestError(
                    "allowed_token_ids is empty, so no token could be chosen; "
                    "omit it, or name at least one"
                )
        if self.stop and not self.detokenize:
            raise RequestError(
                "stop strings are searched for in the text, and detokenize=False makes none; "
                "use stop_token_ids, or detokenize=True"
            )
        if self.logprob_token_ids:
            self._set_number_of_logprobs()
        if self.pooling is None:
            pass
        elif (self.logprobs, self.prompt_logprobs) != (None, None):
            raise RequestError(
                "pooling cannot be combined with logprobs or prompt_logprobs; send two requests"
            )
        shape = self.structured_outputs
        if shape is not None and not isinstance(shape, StructuredOutputsParams):
            raise RequestError(
                f"structured_outputs is a {type(shape).__name__}; it must be "
                "StructuredOutputsParams, such as StructuredOutputsParams(json=schema)"
            )
        if self.pooling is not None and (shape is not None or self.grammar):
            raise RequestError(
                "structured_outputs is about a text, and pooling asks for none; leave one out"
            )
        if not isinstance(self.output_kind, RequestOutputKind):
            raise RequestError(f"output_kind={self.output_kind!r} is not a RequestOutputKind")

    def _set_number_of_logprobs(self) -> None:
        """Set `logprobs` to the number of the tokens that are named; refuse another number."""
        num_tokens = len(self.logprob_token_ids)
        require_length("logprob_token_ids", num_tokens, MAX_LOGPROB_IDS)
        if self.logprobs not in (None, num_tokens):
            raise RequestError(
                f"logprob_token_ids names {num_tokens} tokens, whose log-probabilities are "
                f"returned instead of those of the likeliest; leave out logprobs={self.logprobs}",
                param="logprob_token_ids",
            )
        self._set("logprobs", num_tokens)


_INT64 = (-(2**63), 2**63 - 1)
_INTEGERS = (
    ("max_tokens", 0, NO_LIMIT),
    ("min_tokens", *_INT64),
    ("seed", *_INT64),
    ("n", 1, MAX_SEQUENCES),
    ("top_k", 0, NO_LIMIT),
    ("logprobs", ALL, MAX_IDS),
    ("prompt_logprobs", ALL, MAX_IDS),
    ("thinking_token_budget", 0, NO_LIMIT),
)
_OPTIONAL = ("seed", "logprobs", "prompt_logprobs", "thinking_token_budget")
_NUMBERS = (
    ("temperature", 0.0, MAX_TEMPERATURE),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
    ("repetition_penalty", *REPETITION_RANGE),
)
_PENALTIES = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
# What has no effect, by the names in `samplers`.
_OFF: dict[str, dict[str, float]] = {
    "penalties": _PENALTIES,
    "temperature": {"temperature": 1.0},
    "min_p": {"min_p": 0.0},
    "top_k": {"top_k": 0},
    "top_p": {"top_p": 1.0},
}
_FLAGS = (
    "ignore_eos",
    "include_stop_str_in_output",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "speculation",
)


def _read_pooling(value: object) -> Pooling:
    """Return `value`, or the pooling of the kind that it names."""
    pooling = Pooling(value) if isinstance(value, str) else value  # type: ignore[arg-type]
    kind = pooling.kind if isinstance(pooling, Pooling) else value
    if not isinstance(pooling, Pooling) or kind not in POOLINGS:
        raise RequestError(
            f"pooling={kind!r} must be one of {', '.join(POOLINGS)}, or Pooling(kind, head)"
        )
    if pooling.head not in HEADS:
        heads = ", ".join(map(repr, HEADS))
        raise RequestError(f"the head of pooling={value!r} must be one of {heads}")
    require_int("pooling.second_from", pooling.second_from, 0, NO_LIMIT)
    return pooling


def _read_repetition(value: object) -> RepetitionDetectionParams | None:
    """Return which repetition ends a text, with every default filled in; None if none does."""
    name = "repetition_detection"
    if isinstance(value, Mapping):
        unknown = [each for each in value if each not in RepetitionDetectionParams.__slots__]
        if unknown:
            known = ", ".join(RepetitionDetectionParams.__slots__)
            raise RequestError(f"{name} has {listed(unknown)}; it may have {known}", param=name)
        value = RepetitionDetectionParams(**value)
    if not isinstance(value, RepetitionDetectionParams):
        raise RequestError(f"{name}={value!r} must be RepetitionDetectionParams", param=name)
    try:
        most = require_int("max_pattern_size", value.max_pattern_size, 0, MAX_PATTERN_SIZE)
        least = require_int("min_pattern_size", value.min_pattern_size, 0, most)
        count = require_int("min_count", value.min_count, 2 if most else 0, MAX_COMPARED)
    except RequestError as error:
        raise RequestError(f"{name}: {error}", param=name) from None
    found = RepetitionDetectionParams(most, max(1, least), count)
    if found.num_compared > MAX_COMPARED:
        raise RequestError(
            f"{name}: patterns of {found.min_pattern_size} to {most} tokens, each {count} times, "
            f"take {found.num_compared} comparisons for each token, and {MAX_COMPARED} are made: "
            "lower max_pattern_size or min_count, or raise min_pattern_size",
            param=name,
        )
    return found if most else None


def _each_id(name: str, value: object) -> Iterable[int]:
    for count, token in enumerate(items(name, value), 1):
        require_length(name, count, MAX_IDS)
        yield require_int(f"a token id in {name}", token, 0, NO_LIMIT)


def _read_ids(name: str, value: object) -> tuple[int, ...]:
    return tuple(dict.fromkeys(_each_id(name, value)))


def _read_words(name: str, value: object) -> tuple[tuple[int, ...], ...]:
    """Return words of token ids, none of them empty."""
    words = tuple(tuple(_each_id(name, word)) for word in items(name, value))
    if not all(words):
        raise RequestError(f"{name} contains a word without tokens; remove it")
    require_length(name, len(words), MAX_BAD_WORD_VARIANTS)
    return words


def _read_processors(name: str, value: object) -> tuple[str | LogitsProcessor, ...]:
    processors = tuple(items(name, value))
    require_length(name, len(processors), MAX_PROCESSORS)
    for processor in processors:
        if not (isinstance(processor, str) or callable(processor)):
            raise RequestError(
                f"{name} contains {processor!r}, which is neither the name of a "
                "processor that the engine was started with nor a callable"
            )
    return processors


def _read_biases(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    pairs = value.items() if isinstance(value, Mapping) else items(name, value or ())
    biases: dict[int, float] = {}
    unknown: list[Any] = []
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise RequestError(f"{name} contains {pair!r}; it must map token ids to numbers")
        token = _bias_id(pair[0])
        if token is None:
            unknown.append(pair[0])
        else:
            biases[token] = _bias(token, pair[1])
        require_length(name, len(biases) + len(unknown), MAX_IDS)
    if unknown:
        raise RequestError(
            f"{name} has keys that are no token ids: {listed(unknown)}; token ids are whole "
            "numbers, such as '42'"
        )
    return tuple(sorted(biases.items()))


def _bias_id(token: Any) -> int | None:
    """Return a key of logit_bias as a token id; None if it is not one. In JSON it is a string."""
    if isinstance(token, str):
        token = int(token[:20]) if token.isascii() and token.isdigit() else -1
    try:
        number = operator.index(token)
    except TypeError:
        return None
    return number if 0 <= number <= NO_LIMIT and not isinstance(token, bool) else None


def _bias(token: int, value: Any) -> float:
    number = require_number(f"logit_bias of token {token}", value, -math.inf, math.inf)
    if not math.isfinite(number):
        raise RequestError(f"logit_bias of token {token} is {number}; it must be finite")
    return max(-MAX_BIAS, min(MAX_BIAS, float(number)))


def _read_strings(name: str, value: object) -> tuple[str, ...]:
    texts = []
    if isinstance(value, str):
        value = (value,)
    for count, text in enumerate(items(name, value), 1):
        require_length(name, count, MAX_STRINGS)
        if not isinstance(text, str):
            raise RequestError(f"{name} contains {text!r}, which is not a string")
        if not text:
            raise RequestError(
                f"{name} contains an empty string, which matches everywhere; remove it"
            )
        require_length(f"a string in {name}", len(text), MAX_STRING_LENGTH)
        texts.append(text)
    return tuple(texts)


_LISTS: dict[str, Callable[[str, Any], object]] = {
    "stop_token_ids": _read_ids,
    "logprob_token_ids": _read_ids,
    "logit_bias": _read_biases,
    "bad_words_token_ids": _read_words,
    "logits_processors": _read_processors,
    "stop": _read_strings,
    "bad_words": _read_strings,
}
