"""The inputs of a model's matrices over a text, as sums of products: what GPTQ corrects errors by.

The float model reads the text in the reference backend, which needs PyTorch. The sums of a few
matrices at a time are kept, and the text is read again for the next ones.
"""

from __future__ import annotations

from collections.abc import Callable

from octavo.api.text_model import load_tokenizer
from octavo.core.config import ConfigError
from octavo.layers import Linear, Value
from octavo.loader.errors import quote
from octavo.models.checkpoint_weights import renamed
from octavo.models.needs import find_needs
from octavo.quantize.loaded import MOST_TOKENS, LoadedModel, windows_of
from octavo.quantize.packer import Floats
from octavo.quantize.plan import Plan

_MOST_BYTES = 2 << 30  # of sums at once


class Calibration:
    """The sums for each matrix of a plan."""

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
        self._groups = _groups_of(plan, self._values)
        self._recorded: list[Value] = []

    def sums(self, name: str) -> Floats:
        """Return the sums of products of a matrix's inputs, by the name of its tensor."""
        value = self._values[name]
        if not any(value is each for each in self._recorded):
            self._record(next(group for group in self._groups if value in group))
        return self._backend.sums(value)

    def _record(self, group: list[Value]) -> None:
        self._recorded = group
        self._backend.record(group)
        for number, window in enumerate(self._windows, 1):
            self._loaded.read(window)
            self._show(number, len(self._windows))


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
                f"--method gptq is for matrices that all tokens pass, and {quote(matrix.name)} is "
                "one of several experts or heads; use --method rtn"
            )
    return found


def _groups_of(plan: Plan, values: dict[str, Value]) -> list[list[Value]]:
    """Divide the matrices, in the order of the result, so that the sums of a group fit."""
    groups: list[list[Value]] = []
    size = _MOST_BYTES
    for value in dict.fromkeys(values[matrix.name] for matrix in plan.matrices):
        added = 4 * value.inputs**2
        if size + added > _MOST_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(value)
        size += added
    return groups
