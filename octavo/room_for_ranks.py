"""The memory of an engine's further ranks and stages, and the experts that two ranks can have."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

from msgspec import structs

from octavo.backends.base import Footprint, KVLayout, StepSize
from octavo.backends.kind import BackendKind
from octavo.core.config import ConfigError
from octavo.layers import KVSpec
from octavo.models.footprint import expert_sizes
from octavo.models.load import OpenedModel
from octavo.observe.memory_bill import RANK_BYTES, MemoryBill
from octavo.options.engine import EngineArguments
from octavo.options.processes.experts import num_redundant
from octavo.options.processes.machines import LOCAL_HOST, processes_of_machine
from octavo.options.processes.ranks import Form

log = logging.getLogger(__name__)


def check_experts_of(opened: OpenedModel, arguments: EngineArguments) -> None:
    """Refuse more copies of experts than ranks can use; warn about settings without effect."""
    _warn_of_nodes(arguments)
    if not arguments.enable_expert_parallel:
        return
    models = [each for each in (opened, opened.drafter) if each is not None]
    counts = [count for each in models for _, count in expert_sizes(each)]
    experts = max(counts, default=0)
    if not experts:
        log.warning(
            "enable_expert_parallel changes nothing: the model has no experts; leave it out"
        )
        return
    ranks, copies = arguments.tensor_parallel_size, num_redundant(arguments)
    if copies > experts * (ranks - 1):
        raise ConfigError(
            f"eplb_config: num_redundant_experts={copies}: a layer has {experts} experts, and "
            f"{ranks} ranks can use {experts * (ranks - 1)} copies, with which each has all; lower "
            "it"
        )
    if arguments.enable_eplb and not copies:
        log.warning(
            "enable_eplb copies no experts: eplb_config leaves num_redundant_experts at 0; give "
            'eplb_config={"num_redundant_experts": COUNT}, or leave it out'
        )


def _warn_of_nodes(arguments: EngineArguments) -> None:
    """Warn about the address of the first of several nodes where there is one."""
    is_alone = arguments.nnodes == 1 and arguments.distributed_executor_backend != "ray"
    if is_alone and arguments.master_addr != LOCAL_HOST:
        log.warning(
            "master_addr changes nothing: there is one node; give nnodes=COUNT, or leave it out"
        )


def with_form(arguments: EngineArguments, kind: BackendKind) -> EngineArguments:
    """Return the arguments with the form in which the ranks divide a model, if there are any."""
    if arguments.tensor_parallel_size == 1 or arguments.tensor_parallel_form != "auto":
        return arguments
    form: Form = "sums" if kind.ranks_have_devices else "outputs"
    return replace(arguments, tensor_parallel_form=form)


def with_ranks(
    bill: MemoryBill,
    arguments: EngineArguments,
    opened: OpenedModel,
    layout: KVLayout,
    footprint: Footprint,
    largest_step: StepSize,
    kind: BackendKind,
) -> MemoryBill:
    """Return about what a machine has of an engine: further processes, copies, and its part.

    Nodes divide weights and cache; `octavo.engine.nodes` corrects that once they are loaded. Where
    ranks have devices, return what one of these has.
    """
    nodes, ranks = arguments.nnodes, arguments.tensor_parallel_size
    if ranks > 1 and kind.ranks_have_devices:
        times = max(_times_kept(group.spec, ranks) for group in layout.groups)
        return structs.replace(
            bill,
            weights_bytes=-(-bill.weights_bytes // ranks),
            block_bytes=math.ceil(times * bill.block_bytes / ranks),
            step_bytes=footprint.step_bytes(_share(largest_step, ranks)),
        )
    further = processes_of_machine(arguments) - 1
    rank_bytes, copies = further * RANK_BYTES, num_redundant(arguments)
    for each in (opened, opened.drafter):
        if each is not None and copies:
            sizes = (size for size, _ in expert_sizes(each))
            rank_bytes += copies * sum(map(footprint.weight_bytes, sizes))
    times, step_bytes = 1.0, bill.step_bytes
    if arguments.tensor_parallel_form == "sums":
        ranks = arguments.tensor_parallel_size
        times = max(_times_kept(group.spec, ranks) for group in layout.groups)
        share = _share(largest_step, ranks)
        others = structs.replace(share, vocabulary=0)  # the logits are in memory that all map
        step_bytes = footprint.step_bytes(share) + further * footprint.step_bytes(others)
    return structs.replace(
        bill,
        weights_bytes=-(-bill.weights_bytes // nodes),
        block_bytes=math.ceil(times * bill.block_bytes / nodes),
        rank_bytes=rank_bytes,
        step_bytes=step_bytes,
    )


def _share(size: StepSize, ranks: int) -> StepSize:
    """Return the size of a step in one of the ranks that add up: all rows, and its heads."""
    return structs.replace(
        size,
        ffn=-(-size.ffn // ranks),
        heads=-(-size.heads // ranks),
        kv_heads=-(-size.kv_heads // ranks),
    )


def _times_kept(spec: KVSpec, ranks: int) -> float:
    """Return how often ranks that add up keep what one process would keep once.

    They divide heads if there are enough, and channels of states.
    """
    if spec.kind in ("full", "none"):
        return max(1.0, ranks / max(1, spec.heads))
    return 1.0 if spec.kind == "state" else float(ranks)
