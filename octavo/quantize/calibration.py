"""The inputs of a model's matrices over a text: sums of their products, or some of them.

GPTQ corrects errors by the sums, and factors are chosen by the samples. The float model reads the
text in the reference backend, which needs PyTorch. What is recorded of a few matrices at a time is
kept, and the text is read again for the next ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from octavo.api.text_model import load_tokenizer
from octavo.core.config import ConfigError
from octavo.layers import Linear, Value
from octavo.loader.errors import quote
from octavo.models.needs import find_needs
from octavo.models.weights import renamed
from octavo.quantize.loaded import MOST_TOKENS, LoadedModel, windows_of
from octavo.quantize.packer import Floats
from octavo.quantize.plan import Plan

_MOST_BYTES = 2 << 30  # of what is kept at once
_SAMPLE = 512  # rows of a matrix's inputs


class Calibration:
    """The inputs of each matrix of a plan."""

    def __init__(self, plan: Plan, show: Callable[[int, int], None]) -> None:
        # Here, since it imports torch.
        from octavo.backends.torch.recording import RecordingBackend

        self._backend = RecordingBackend()
        self._loaded = LoadedModel(plan.source, lambda: self._backend)
        tokens = load_tokenizer(plan.source).encode(plan.text, add_special_tokens=False)
        self._windows = list(windows_of(tokens[:MOST_TOKENS], self._loaded.window))
        if not self._windows:
            raise ConfigError(
                "the text of --calibrate has fewer than two tokens; name a longer one"
            )
        self._show = show
        self._values = _values_of(self._loaded, plan)
        self._sums = _Recorded(self._in_order(plan), lambda value: 4 * value.inputs**2)
        self._samples = _Recorded(self._in_order(plan), lambda value: 4 * value.inputs * _SAMPLE)

    def _in_order(self, plan: Plan) -> list[Value]:
        return list(dict.fromkeys(self._values[matrix.name] for matrix in plan.matrices))

    def sums(self, name: str) -> Floats:
        """Return the sums of products of a matrix's inputs, by the name of its tensor."""
        value = self._values[name]
        if self._sums.must_record(value):
            self._backend.record(self._sums.kept)
            self._samples.kept = []
            self._read()
        return self._backend.sums(value)

    def sample(self, name: str) -> Floats:
        """Return some of a matrix's inputs [rows, inputs], by the name of its tensor."""
        value = self._values[name]
        if self._samples.must_record(value):
            self._backend.sample(self._samples.kept, max(1, _SAMPLE // len(self._windows)))
            self._sums.kept = []
            self._read()
        return self._backend.rows(value)

    def _read(self) -> None:
        for number, window in enumerate(self._windows, 1):
            self._loaded.read(window)
            self._show(number, len(self._windows))


class _Recorded:
    """The matrices of which something is kept, a group at a time, in the order of the result."""

    def __init__(self, values: Iterable[Value], size_of: Callable[[Value], int]) -> None:
        self.kept: list[Value] = []
        self._groups: list[list[Value]] = []
        size = _MOST_BYTES
        for value in values:
            added = size_of(value)
            if size + added > _MOST_BYTES:
                self._groups.append([])
                size = 0
            self._groups[-1].append(value)
            size += added

    def must_record(self, value: Value) -> bool:
        """Return whether nothing is kept of a matrix; its group is then the one to record."""
        if any(value is each for each in self.kept):
            return False
        self.kept = next(group for group in self._groups if value in group)
        return True


def _values_of(loaded: LoadedModel, plan: Plan) -> dict[str, Value]:
    """Return what the backend has made of each matrix of the plan."""
    model, found = loaded.model, dict[str, Value]()
    stored = {renamed(name, model.renames): name for name in plan.checkpoint.tensors}
    for need in find_needs(model, stored):
        if isinstance(need.module, Linear) and need.tensor == "weight":
            for source in need.sources:
                found[stored[source.name]] = need.module.weight
    for matrix in plan.matrices:
        if matrix.name not in found:
            raise ConfigError(
                f"--method {plan.method} is for matrices that all tokens pass, and "
                f"{quote(matrix.name)} is one of several experts or heads; use --method rtn"
            )
    return found
