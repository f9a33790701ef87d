"""The operations that kernels compute, in place of torch's; the others stay as they are."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.backends.cuda.batch import DeviceBatch
from octavo.backends.cuda.kernels import gate, norm, paged
from octavo.backends.cuda.meanings import DEVICE_MEANINGS
from octavo.backends.torch.interpreter import Meaning, Run
from octavo.program.listing import Instruction, Op


def _norm(run: Run, i: Instruction) -> None:
    assert i.norm is not None
    run[i.out] = norm.norm(run[i.x], i.norm, _batch_of(run).home)


def _gate(run: Run, i: Instruction) -> None:
    assert i.activation is not None
    run[i.out] = gate.gate(run[i.x], run[i.y], i.activation, _batch_of(run).home)


def _attention(run: Run, i: Instruction) -> None:
    assert i.attend is not None
    if paged.refusal(i.attend) is not None:
        DEVICE_MEANINGS["Attention"](run, i)
        return
    assert i.out is not None
    assert i.attend.rope is None, "the passes that join rotations are not run for this backend"
    assert i.attend.q_norm is None
    out = paged.attend(run[i.x], run[i.y], run[i.values], i.attend, _batch_of(run))
    space = i.out.buffer.space
    run[i.out] = out if space == "Tokens" else out.index_select(0, run.rows(space))


def _batch_of(run: Run) -> DeviceBatch:
    assert isinstance(run.batch, DeviceBatch)
    return run.batch


KERNEL_MEANINGS: Mapping[Op, Meaning] = {
    **DEVICE_MEANINGS,
    "Norm": _norm,
    "Gate": _gate,
    "Attention": _attention,
}
