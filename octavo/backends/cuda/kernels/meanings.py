"""The operations that kernels compute, in place of torch's; the others stay as they are."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from octavo.backends.cuda.batch import DeviceBatch
from octavo.backends.cuda.kernels import gate, norm, paged
from octavo.backends.cuda.kernels.place import is_placed
from octavo.backends.cuda.meanings import DEVICE_MEANINGS
from octavo.backends.torch.interpreter import Meaning
from octavo.backends.torch.run import Run
from octavo.program.listing import Instruction, Op


def _norm(run: Run, i: Instruction) -> None:
    assert i.norm is not None
    run[i.out] = norm.norm(run[i.x], i.norm, _batch_of(run).home)


def _add_norm(run: Run, i: Instruction) -> None:
    assert i.norm is not None
    run[i.total], run[i.out] = norm.add_norm(run[i.x], run[i.y], i.norm, _batch_of(run).home)


def _gate(run: Run, i: Instruction) -> None:
    assert i.activation is not None
    run[i.out] = gate.gate(run[i.x], run[i.y], i.activation, _batch_of(run).home)


def _attention(run: Run, i: Instruction) -> None:
    assert i.attend is not None
    if paged.refusal(i.attend) is not None:
        DEVICE_MEANINGS["Attention"](run, i)
        return
    assert i.out is not None
    batch, layer, q, k = _batch_of(run), i.attend, run[i.x], run[i.y]
    if not is_placed(layer):
        q = q if layer.q_norm is None else norm.norm(q, layer.q_norm, batch.home)
        k = k if layer.k_norm is None else norm.norm(k, layer.k_norm, batch.home)
        layer = replace(layer, q_norm=None, k_norm=None)
    turns = None if layer.rope is None else run.tables(layer.rope, q.dtype)
    out = paged.attend(q, k, run[i.values], layer, batch, turns)
    space = i.out.buffer.space
    run[i.out] = out if space == "Tokens" else out.index_select(0, run.rows(space))


def _batch_of(run: Run) -> DeviceBatch:
    assert isinstance(run.batch, DeviceBatch)
    return run.batch


KERNEL_MEANINGS: Mapping[Op, Meaning] = {
    **DEVICE_MEANINGS,
    "Norm": _norm,
    "AddNorm": _add_norm,
    "Gate": _gate,
    "Attention": _attention,
}
