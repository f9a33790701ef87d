"""Graphs of the fake device: the operations of a capture, with their very memory, to do again.

As on a card, nothing is done while a graph is captured. Operations that only make something new
still run then, since their results have the shapes that what follows asks for; what they hold means
nothing until the graph is replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

# They make room, and write nothing there.
_EMPTY = {f"aten.{name}" for name in ("empty", "new_empty", "empty_like", "empty_strided")}


class Account:
    """The bytes of all tensors that are alive, and the most there have been."""

    def __init__(self) -> None:
        self.held = self.peak = 0
        self._lock = Lock()  # tensors may be freed in any thread

    def hold(self, num_bytes: int) -> None:
        """Note memory that a tensor takes, or gives back if the number is negative."""
        with self._lock:
            self.held += num_bytes
            self.peak = max(self.peak, self.held)


class _Work(NamedTuple):
    """One operation or launch of a graph."""

    name: str
    do: Callable[[], object]


class Recording:
    """A capture while it runs, and the graph afterwards."""

    def __init__(self) -> None:
        self.account = Account()  # of what is made in it
        self._work: list[_Work] = []

    @property
    def names(self) -> list[str]:
        """The operations and kernels, in the order in which they are submitted."""
        return [each.name for each in self._work]

    def note(self, name: str, do: Callable[[], object]) -> None:
        """Note work without a result of its own, such as a kernel's."""
        self._work.append(_Work(name, do))

    def exchange(self, do: Callable[[], object], made: Tensor) -> None:
        """Note work with other devices, whose result means nothing until the replay."""
        _spoil([made])
        self.note("exchange", do)

    def operation(self, operation: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Note an operation on the CPU's tensors, and return results of its shapes."""
        name = str(operation.overloadpacket)
        if operation._schema.is_mutable:  # it changes one of its arguments, and returns that
            self.note(name, lambda: operation(*args, **kwargs))
            named = {each.name: each for each in operation._schema.arguments}
            if "out" in kwargs and named["out"].kwarg_only:
                return kwargs["out"]
            return args[0]
        result = operation(*args, **kwargs)
        given = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, Tensor)]
        made = [each for each in tree_flatten(result)[0] if isinstance(each, Tensor)]
        if made and name not in _EMPTY and not any(_shares(each, given) for each in made):
            _spoil(made)

            def again() -> None:
                _copy(operation(*args, **kwargs), made)

            self.note(name, again)
        return result

    def replay(self) -> None:
        """Run all the work again, on what the memory holds now."""
        for each in self._work:
            each.do()


def _shares(tensor: Tensor, others: Sequence[Tensor]) -> bool:
    """Return whether a result is a view of an argument: replays have nothing to do for it."""
    address = tensor.untyped_storage()._cdata
    return any(each.untyped_storage()._cdata == address for each in others)


def _copy(result: Any, targets: Sequence[Tensor]) -> None:
    made = [each for each in tree_flatten(result)[0] if isinstance(each, Tensor)]
    for target, source in zip(targets, made, strict=True):
        target.copy_(source)


def _spoil(made: Sequence[Tensor]) -> None:
    """Fill results with NaN, which they hold until the replay."""
    for each in made:
        if each.dtype.is_floating_point:
            each.fill_(torch.nan)
