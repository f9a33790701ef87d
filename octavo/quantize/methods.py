"""The methods of `octavo quantize --method`: what is done before and while values are rounded."""

from __future__ import annotations

from importlib.util import find_spec

from msgspec import Struct

from octavo.core.config import ConfigError
from octavo.quantize.factors import AWARE, SMOOTH, Family
from octavo.quantize.integers import Integers
from octavo.quantize.types import TARGETS, Target


class Method(Struct, frozen=True):
    """A method: the factors that move first, and whether rounding corrects errors."""

    name: str
    family: Family | None = None
    corrects: bool = False

    @property
    def needs_text(self) -> bool:
        return self.family is not None or self.corrects

    def is_for(self, target: Target) -> bool:
        """Return whether the method can make this type."""
        if not self.needs_text:
            return True
        has_int8 = target.activations is not None
        is_of_integers = isinstance(target.make(None), Integers)
        return is_of_integers and (self.family is None or self.family.rounds_inputs == has_int8)


METHODS = {
    method.name: method
    for method in (
        Method("rtn"),
        Method("gptq", corrects=True),
        Method("awq", AWARE),
        Method("awq-gptq", AWARE, corrects=True),
        Method("smoothquant", SMOOTH),
        Method("smoothquant-gptq", SMOOTH, corrects=True),
    )
}


def method_for(name: str, target: Target) -> Method:
    """Return a method by its name; refuse one that is not there, or not for this type."""
    method = METHODS.get(name)
    if method is None:
        raise ConfigError(f"--method {name} is not there; there are {', '.join(METHODS)}")
    if not method.is_for(target):
        types = ", ".join(each.name for each in TARGETS.values() if method.is_for(each))
        fitting = ", ".join(each.name for each in METHODS.values() if each.is_for(target))
        raise ConfigError(
            f"--method {name} is for {types}, not for {target.name}; for that there are: {fitting}"
        )
    if method.needs_text and find_spec("torch") is None:
        raise ConfigError(
            f"--method {name} records activations with PyTorch, which is not installed: "
            "pip install 'octavo[torch]', or use --method rtn"
        )
    return method
