"""The places where factors can move: from what makes a value to the matrices that read it.

If an input of some matrices is divided by a number where it is made, and their weights for it are
multiplied by that number, the model stays the same. What can be divided: the weights of a norm
whose result only these matrices read, and the rows of the projection `up` of a gated MLP, which
`down` reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from msgspec import Struct

from octavo.layers import Linear, Model, Module, StoredTensor
from octavo.layers.attention import SelfAttention
from octavo.layers.block import ParallelBlock, SandwichBlock, SequentialBlock
from octavo.layers.mlp import MLP, GatedMLP
from octavo.layers.norm import LayerNorm, RMSNorm
from octavo.models.needs import find_needs


class Giver(Struct, frozen=True):
    """Rows of a matrix, or numbers of a vector, that are divided."""

    name: str  # of the tensor in the checkpoint
    first: int = 0
    offset: float = 0.0  # that the model adds to the stored numbers


class Site(Struct, frozen=True):
    """An input of some matrices, by the names of tensors in the checkpoint."""

    readers: tuple[str, ...]
    givers: tuple[Giver, ...]  # the first one's rounded numbers say what the division was


def find_sites(
    model: Model, names: Mapping[str, str], quantized: Collection[str]
) -> tuple[Site, ...]:
    """Return the sites all of whose readers are quantised; `names` has the checkpoint's names.

    A tensor that several layers use is left alone.
    """
    stored = _stored_names(model, names)
    found = [
        site
        for _, module in model.walk()
        for site in _sites_of(module, stored)
        if all(name in quantized for name in site.readers)
    ]
    used: dict[str, int] = {}
    for tensors in stored.values():
        for name in tensors:
            used[name] = used.get(name, 0) + 1
    return tuple(site for site in found if all(used[name] == 1 for name in _tensors_of(site)))


def _tensors_of(site: Site) -> Iterator[str]:
    yield from site.readers
    yield from (giver.name for giver in site.givers)


_Stored = Mapping[tuple[int, str], tuple[str, ...]]


def _stored_names(model: Model, names: Mapping[str, str]) -> _Stored:
    """Return the checkpoint's tensors of each layer's tensor, part by part.

    Those that are no plain tensors, or have their inputs first, are left out.
    """
    found: dict[tuple[int, str], tuple[str, ...]] = {}
    for need in find_needs(model, names):
        plain = [each for each in need.sources if isinstance(each, StoredTensor)]
        if len(plain) == len(need.sources) and not any(
            each.transposed or each.skipped or "@" in each.name for each in plain
        ):
            found[id(need.module), need.tensor] = tuple(names[each.name] for each in plain)
    return found


def _sites_of(module: Module, stored: _Stored) -> Iterator[Site]:
    if isinstance(module, GatedMLP):
        yield from _behind_gate(module, stored)
    if not isinstance(module, SequentialBlock | SandwichBlock | ParallelBlock):
        return
    attention = module.attn.qkv if isinstance(module.attn, SelfAttention) else None
    mlp = _first_of(module.mlp)
    if isinstance(module, ParallelBlock) and module.mlp_norm is None:
        yield from _behind_norm(module.attn_norm, (attention, mlp), stored)
    else:
        yield from _behind_norm(module.attn_norm, (attention,), stored)
        yield from _behind_norm(module.mlp_norm, (mlp,), stored)


def _first_of(mlp: Module) -> Linear | None:
    """Return the projection that reads an MLP's input, if there is only one."""
    if isinstance(mlp, GatedMLP):
        return mlp.gate_up
    return mlp.up if isinstance(mlp, MLP) else None


def _behind_norm(
    norm: Module | None, readers: tuple[Linear | None, ...], stored: _Stored
) -> Iterator[Site]:
    if not isinstance(norm, RMSNorm | LayerNorm):
        return
    matrices = [stored.get((id(each), "weight"), ()) for each in readers]
    weight = stored.get((id(norm), "weight"), ())
    if len(weight) != 1 or not all(matrices):
        return
    offset = norm.offset if isinstance(norm, RMSNorm) else 0.0
    bias = stored.get((id(norm), "bias"), ())
    givers = (Giver(weight[0], offset=offset), *map(Giver, bias))
    yield Site(tuple(name for names in matrices for name in names), givers)


def _behind_gate(mlp: GatedMLP, stored: _Stored) -> Iterator[Site]:
    down, both = stored.get((id(mlp.down), "weight"), ()), stored.get((id(mlp.gate_up), "weight"))
    if len(down) != 1 or not both:
        return
    ffn = mlp.down.inputs
    givers = [
        # One tensor has the gates' rows first; else there is one for each part.
        Giver(tensors[-1], first=ffn if len(tensors) == 1 else 0)
        for tensors in (both, stored.get((id(mlp.gate_up), "bias"), ()))
        if tensors
    ]
    yield Site(down, tuple(givers))
