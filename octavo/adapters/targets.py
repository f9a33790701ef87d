"""The projections that adapters may change, by the names of the modules of a checkpoint.

The names come from the family's own table, which says where the weights of each layer are. A module
of the checkpoint can hold several parts of a projection, as fused queries, keys and values, and its
rows can be in another order; an adapter's rows go the way of the weight's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from octavo.adapters.module_choice import Names
from octavo.layers import (
    FirstOf,
    HeadRows,
    Linear,
    MatrixStack,
    Model,
    Module,
    Slices,
    StoredTensor,
    WeightSource,
)
from octavo.models.needs import expand
from octavo.models.weights import renamed

Order = Sequence[int] | slice

_EXPERTS = (
    "it belongs to experts or heads whose matrices are one stack, and adapters of these are not "
    "supported"
)
_OUTSIDE = (
    "adapters of norms, and of embeddings of positions and types, are not supported: only those of "
    "projections and of the tokens' embedding are"
)


class Share(NamedTuple):
    """The rows of a module that are one part of a projection."""

    part: int
    rows: Order  # the module's row for each row of the part


class Target(Struct, frozen=True):
    """A projection, or parts of it, that one module of a checkpoint holds."""

    path: str  # of the projection in `Model.walk()`
    num_parts: int  # of the whole projection
    shares: tuple[Share, ...]
    inputs: int
    outputs: int  # rows of the module
    has_bias: bool
    is_lookup: bool = False  # the embedding: its inputs are the tokens
    can_be_whole: bool = False  # the head or the embedding


class Targets:
    """The modules of a model's checkpoints: those that an adapter may change, and the others."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._targets: dict[str, Target] = {}
        self._refused: dict[str, str] = {}  # why a module cannot have an adapter
        table = model.weights()
        for way in range(_num_ways(table.values())):
            for path, module in model.walk():
                self._add(path, module, _way(table, way))
        names = (*self._targets, *self._refused)
        self._first_words = sorted({name.partition(".")[0] for name in names})

    def _add(self, path: str, module: Module, table: Mapping[str, WeightSource]) -> None:
        if module is self._model.embed:
            for each in expand(table[path], "", "", ()):
                if each != StoredTensor(each.name):
                    continue
                sizes = module.vocabulary, module.hidden
                share = Share(0, slice(0, module.hidden))
                target = Target(path, 1, (share,), *sizes, False, is_lookup=True, can_be_whole=True)
                self._targets.setdefault(each.name, target)
            return
        if isinstance(module, Linear):
            found = list(_sources(path, table))
            if not found or isinstance(found[0], HeadRows):
                return
            stored = [each for each in found if isinstance(each, StoredTensor)]
            for source, target in zip(stored, _targets(path, module, stored), strict=True):
                is_head = module is self._model.head
                self._targets.setdefault(source.name, replace(target, can_be_whole=is_head))
            return
        why = _EXPERTS if isinstance(module, MatrixStack) else _OUTSIDE
        for tensor in module.tensors():
            for name in _names(f"{path}.{tensor}", path, table):
                self._refused.setdefault(name, why)

    def paths(self, modules: Names | None = None) -> tuple[str, ...]:
        """Return the paths of the projections that adapters of these modules may change."""
        return tuple(
            dict.fromkeys(
                target.path
                for name, target in self._targets.items()
                if modules is None or modules.match(name)
            )
        )

    @property
    def is_tied(self) -> bool:
        """True if the head's matrix is the embedding's."""
        return self._model.tied

    def __len__(self) -> int:
        return len(self._targets)

    def items(self) -> Iterable[tuple[str, Target]]:
        """Return the modules that an adapter may change, by name."""
        return self._targets.items()

    def find(self, module: str) -> Target | None:
        """Return what a module of a checkpoint holds; None if no adapter may change it.

        Its name may lack the first word, as in a base that was saved without its head.
        """
        return next(filter(None, map(self._targets.get, self._spellings(module))), None)

    def why_not(self, module: str) -> str | None:
        """Return why a module cannot have an adapter; None if the model has no such module."""
        for name in self._spellings(module):
            for known in (name, _of_any_slice(name)):
                if known in self._refused:
                    return self._refused[known]
        return None

    def _spellings(self, module: str) -> Iterator[str]:
        yield module
        yield renamed(module, self._model.renames)
        for word in self._first_words:
            yield f"{word}.{module}"


def _of_any_slice(name: str) -> str:
    """Return a name whose numbers but the first, which is the block's, are those of any slice."""
    words, is_block = name.split("."), True
    for place, word in enumerate(words):
        if word.isdigit():
            words[place], is_block = (word if is_block else "@"), False
    return ".".join(words)


def _num_ways(sources: Iterable[WeightSource]) -> int:
    """Return the most ways in which checkpoints keep one tensor."""
    return max([1, *(len(each.ways) for each in sources if isinstance(each, FirstOf))])


def _way(table: Mapping[str, WeightSource], number: int) -> Mapping[str, WeightSource]:
    """Return a table in which each tensor is kept in one of its ways, the last if it has fewer."""
    return {
        key: source.ways[min(number, len(source.ways) - 1)]
        if isinstance(source, FirstOf)
        else source
        for key, source in table.items()
    }


def _sources(path: str, table: Mapping[str, WeightSource]) -> Iterator[StoredTensor | HeadRows]:
    """Yield the modules that hold the weight of a projection."""
    source = table.get(_pattern(path))
    if source is None or isinstance(source, Slices):
        return
    yield from expand(source, "", _number(path), ())


def _names(whole: str, path: str, table: Mapping[str, WeightSource]) -> Iterator[str]:
    """Yield the modules that hold a tensor of a layer that is no projection."""
    for key in (whole, path):
        source = table.get(_pattern(key))
        if source is not None:
            for found in expand(source, "", _number(path), ()):
                yield found.name.removesuffix(".weight")
            return


def _pattern(path: str) -> str:
    return ".".join("*" if word.isdigit() else word for word in path.split("."))


def _number(path: str) -> str:
    return next((word for word in path.split(".") if word.isdigit()), "")


def _targets(path: str, linear: Linear, sources: Sequence[StoredTensor]) -> Iterator[Target]:
    """Yield the target of each source: one part of the projection, or all of them."""
    parts = linear.parts
    if len(sources) == len(parts):
        for number, (part, source) in enumerate(zip(parts, sources, strict=True)):
            rows = slice(0, part.rows) if source.rows is None else source.rows
            shares = (Share(number, rows),)
            yield Target(path, len(parts), shares, linear.inputs, part.rows, linear.has_bias)
        return
    (source,) = sources
    begin, found = 0, []
    for number, part in enumerate(parts):
        end = begin + part.rows
        rows = slice(begin, end) if source.rows is None else source.rows[begin:end]
        found.append(Share(number, rows))
        begin = end
    whole = linear.inputs, linear.outputs, linear.has_bias
    yield Target(path, len(parts), tuple(found), *whole)
