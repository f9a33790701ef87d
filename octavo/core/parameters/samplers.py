"""Samplers besides temperature, top-k, top-p and min-p, and the order in which all of them work.

Names and meanings are those of llama.cpp. All but mirostat are functions of the parameters, the
seed, the position and the text's own tokens, so that a text can be continued anywhere. Mirostat has
a state besides, which travels with the tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from octavo.core.parameters.errors import RequestError
from octavo.core.parameters.values import items, listed, require_int, require_length, require_number

# The order in which they work unless a request has its own.
SAMPLERS = (
    *("penalties", "dry", "temperature", "top_n_sigma", "min_p", "top_k", "typical_p", "top_p"),
    "xtc",
)
FIRST = ("penalties", "dry")  # these change logits, and come before all others
SPELLINGS = {"typ_p": "typical_p", "temp": "temperature"}  # others, with "-" as "_"
MAX_WINDOW = 32_768  # tokens that DRY looks back, as far as -1 goes
MAX_REPEATED = 50  # tokens; a longer repetition counts as one of so many
MAX_BREAKERS = 32
MAX_BREAKER_LENGTH = 40  # characters
NAME = "sampler_options"
_MOST = 2**31 - 1
_INTEGERS = (
    ("min_keep", 0, _MOST),
    ("repeat_last_n", -1, _MOST),
    ("dry_allowed_length", 1, MAX_REPEATED),
    ("dry_penalty_last_n", -1, MAX_WINDOW),
    ("mirostat", 0, 2),
)
_NUMBERS = (
    ("typical_p", 0.0, 1.0),
    ("top_n_sigma", -1.0, 1000.0),
    ("xtc_probability", 0.0, 1.0),
    ("xtc_threshold", 0.0, 1.0),
    ("dynatemp_range", 0.0, 100.0),
    ("dynatemp_exponent", 0.0, 100.0),
    ("dry_multiplier", 0.0, 100.0),
    ("dry_base", 1.0, 100.0),
    ("mirostat_tau", 0.0, 100.0),
    ("mirostat_eta", 0.0, 100.0),
)


@dataclass(frozen=True, slots=True)
class SamplerOptions:
    """The values of further samplers; the defaults switch all of them off."""

    typical_p: float = 1.0  # share of the tokens whose surprise is nearest to the expected one
    top_n_sigma: float = 0.0  # standard deviations of logits below the best; 0 or less: off
    xtc_probability: float = 0.0  # of leaving out all likely tokens but the least likely
    xtc_threshold: float = 0.1  # the probability of a likely token; above 0.5: off
    dynatemp_range: float = 0.0  # the temperature follows the entropy, by so much around its value
    dynatemp_exponent: float = 1.0  # to which the entropy's share of the greatest one is raised
    min_keep: int = 0  # tokens that min-p, typical-p, top-p and XTC leave at least
    repeat_last_n: int = -1  # tokens that penalties look back; -1: all; 0: no penalties
    dry_multiplier: float = 0.0  # of the penalty for a token that would continue a repetition
    dry_base: float = 1.75  # its growth with each repeated token beyond the allowed ones
    dry_allowed_length: int = 2  # shorter repetitions have no penalty
    dry_penalty_last_n: int = -1  # tokens that DRY looks back; -1: MAX_WINDOW; 0: off
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")  # no repetition reaches over one
    dry_breaker_ids: tuple[int, ...] | None = None  # set by the front end; None: not yet
    mirostat: int = 0  # its version, 1 or 2, behind temperature alone; 0: off
    mirostat_tau: float = 5.0  # the surprise of tokens that is aimed at, in bits
    mirostat_eta: float = 0.1  # how fast the bound of surprise follows it
    samplers: tuple[str, ...] = ()  # in their order; others are off; empty: all, as in SAMPLERS

    def __post_init__(self) -> None:
        for name, low, high in _INTEGERS:
            self._set(name, require_int(name, getattr(self, name), low, high))
        for name, least, most in _NUMBERS:
            value = require_number(name, getattr(self, name), least, most)
            self._set(name, float(value))
        if self.typical_p == 0.0:
            raise RequestError("typical_p=0.0 leaves no token; it must be above 0 and at most 1")
        self._set("top_n_sigma", max(0.0, self.top_n_sigma))
        self._set("dry_sequence_breakers", _read_breakers(self.dry_sequence_breakers))
        if self.dry_breaker_ids is not None:
            ids = items("dry_breaker_ids", self.dry_breaker_ids)
            tokens = [require_int("a token id in dry_breaker_ids", each, 0, _MOST) for each in ids]
            require_length("dry_breaker_ids", len(tokens), 2 * MAX_BREAKERS)
            self._set("dry_breaker_ids", tuple(tokens))
        self._set("samplers", _read_order(self.samplers))

    @property
    def has_dry(self) -> bool:
        is_used = not self.samplers or "dry" in self.samplers
        return is_used and self.dry_multiplier > 0.0 and self.dry_penalty_last_n != 0

    @property
    def has_xtc(self) -> bool:
        return self.xtc_probability > 0.0 and self.xtc_threshold <= 0.5

    @property
    def is_off(self) -> bool:
        """True if a request is answered as if it had no options."""
        return not (
            self.samplers
            or self.mirostat
            or self.has_dry
            or self.has_xtc
            or self.typical_p < 1.0
            or self.top_n_sigma
            or self.dynatemp_range
            or self.min_keep > 1
            or self.repeat_last_n >= 0
        )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def check_order(self, *, has_penalties: bool) -> None:
        """Refuse an order in which penalties would have to change what others have left."""
        is_on = {"penalties": has_penalties, "dry": self.has_dry}
        own = [name for name in self.samplers if is_on.get(name, True)]
        first = [name for name in FIRST if name in own]
        if own[: len(first)] != first:
            raise RequestError(
                f"samplers: {', '.join(first)} must come first and in this order, since they "
                "change the logits of all tokens; or switch them off",
                param="samplers",
            )


def read_sampler_options(value: object) -> SamplerOptions | None:
    """Return the options, with every default filled in; None if all of them are off."""
    if isinstance(value, Mapping):
        known = [each.name for each in fields(SamplerOptions)]
        unknown = [each for each in value if each not in known]
        if unknown:
            raise RequestError(
                f"{NAME} has {listed(unknown)}; it may have {', '.join(known)}", param=NAME
            )
        value = SamplerOptions(**value)
    if not isinstance(value, SamplerOptions):
        raise RequestError(f"{NAME}={value!r} must be SamplerOptions", param=NAME)
    return None if value.is_off else value


def _read_breakers(value: object) -> tuple[str, ...]:
    name = "dry_sequence_breakers"
    texts: list[str] = []
    for text in items(name, value):
        if not isinstance(text, str) or not 0 < len(text) <= MAX_BREAKER_LENGTH:
            raise RequestError(
                f"{name} contains {str(text)[:70]!r}; each is a text of 1 to "
                f"{MAX_BREAKER_LENGTH} characters",
                param=name,
            )
        texts.append(text)
        require_length(name, len(texts), MAX_BREAKERS)
    return tuple(dict.fromkeys(texts))


def _read_order(value: Any) -> tuple[str, ...]:
    names: list[str] = []
    for given in items("samplers", value):
        name = given.replace("-", "_") if isinstance(given, str) else given
        name = SPELLINGS.get(name, name) if isinstance(name, str) else name
        if name not in SAMPLERS or name in names:
            why = "comes twice" if name in names else "is unknown"
            raise RequestError(
                f"samplers: {str(given)[:64]!r} {why}; there are {', '.join(SAMPLERS)}, each once",
                param="samplers",
            )
        names.append(name)
    return tuple(names)
