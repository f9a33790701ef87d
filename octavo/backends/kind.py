"""The interface of a kind of backend: what is known of one before it is made.

Whatever else depends on the backend asks its kind, so that no other module compares names.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from msgspec import Struct

from octavo.observe.finding import Finding
from octavo.observe.machine import Memory
from octavo.options.backends import Entry

if TYPE_CHECKING:
    from octavo.backends.base import Backend, Footprint
    from octavo.distributed.context import Place
    from octavo.options.cpu_types import CpuWeights


class Caps(Struct, frozen=True):
    """The ability of a backend to run here."""

    refusal: str = ""  # why it cannot run; empty if it can
    remedy: str = ""  # what to do about that
    is_old: bool = False  # it was built from other sources, so it must be built again

    @property
    def why(self) -> str:
        """The refusal, and what to do about it."""
        return f"{self.refusal}: {self.remedy}" if self.remedy else self.refusal


class Sizes(Struct, frozen=True):
    """The sizes that a backend has if the user asks for no others."""

    block_size: int  # tokens of a KV block
    max_num_seqs: int  # sequences running at once
    max_num_batched_tokens: int  # tokens of a step
    branches: int = 16  # of trees of drafts in a step, at most; 0: it verifies chains alone


class ExpertCopies(Protocol):
    """The settings of experts that are in two ranks."""

    @property
    def num_redundant_experts(self) -> int: ...
    @property
    def step_interval(self) -> int: ...


class Speculation(Protocol):
    """The settings of drafts that kinds read."""

    @property
    def has_drafter(self) -> bool: ...
    @property
    def quantization(self) -> str | None: ...
    @property
    def weights(self) -> CpuWeights | None: ...


class BackendSettings(Protocol):
    """The arguments of an engine that kinds read; `octavo.options.engine` describes each."""

    @property
    def dtype(self) -> str: ...
    @property
    def cuda_kernels(self) -> str: ...
    @property
    def enforce_eager(self) -> bool: ...
    @property
    def cpu_weights(self) -> str: ...
    @property
    def cpu_activations(self) -> str: ...
    @property
    def kv_cache_dtype(self) -> str: ...
    @property
    def fp8_activations(self) -> str: ...
    @property
    def num_threads(self) -> int: ...
    @property
    def cpu_isa(self) -> str: ...
    @property
    def accumulation_order(self) -> str: ...
    @property
    def packed_cache(self) -> str | None: ...
    @property
    def packed_cache_bytes(self) -> int: ...
    @property
    def preallocate_kv_cache(self) -> bool: ...
    @property
    def tensor_parallel_size(self) -> int: ...
    @property
    def tensor_parallel_form(self) -> str: ...
    @property
    def enable_lora(self) -> bool: ...
    @property
    def speculative_config(self) -> Speculation | None: ...
    @property
    def enable_expert_parallel(self) -> bool: ...
    @property
    def enable_eplb(self) -> bool: ...
    @property
    def eplb_config(self) -> ExpertCopies | None: ...


class WeightFile(Protocol):
    """A mapped file of weights."""

    path: Path
    opened: os.stat_result
    buffer: mmap.mmap


class BackendKind(Protocol):
    """A kind of backend: what it can do here, what it needs, and how one is made."""

    @property
    def options(self) -> Sequence[str]:
        """The arguments of an engine that only some backends have, this one among them."""

    @property
    def instead(self) -> Mapping[str, str]:
        """The advice for arguments that this backend does not have, where there is any."""

    @property
    def sizes(self) -> Sizes:
        """The sizes by default, which fit its kernels and the speed of its device."""

    @property
    def may_read(self) -> bool:
        """True if a process with this backend must still open files once it is confined."""

    @property
    def ranks_have_devices(self) -> bool:
        """True if each rank has a device of its own; else all map one memory of the machine."""

    def at(self, device: str) -> BackendKind:
        """Return the kind on one device of several; one that has a single device returns itself."""

    def caps(self, block_size: int | None = None) -> Caps:
        """Find out whether it can run here, with blocks of this size if one is given.

        It is static facts that decide, such as modules and devices: nothing heavy is imported.
        """

    def report(self) -> list[Finding]:
        """Return what `octavo doctor` says of it where it can run."""

    def check(self, settings: BackendSettings, *, is_first: bool) -> None:
        """Raise ValueError for arguments with which none can be made here.

        An engine that is not the first replaces one. It starts without what it can do without.
        """

    def dtype(self, settings: BackendSettings) -> str:
        """Return the type of the KV cache, by default or as the user has chosen."""

    def footprint(self, settings: BackendSettings) -> Footprint:
        """Return the memory that it takes."""

    def memory(self) -> Memory:
        """Return the memory of its device that this process may use."""

    def make(
        self,
        settings: BackendSettings,
        files: Iterable[WeightFile],
        place: Place | None = None,
    ) -> Backend:
        """Make a backend for a model whose weights are in these files, in one of its processes.

        Only a kind with the options of ranks and stages is ever given a place.
        """


def kind_of(entry: Entry, device: str = "auto") -> BackendKind:
    """Return a backend's kind on a device; `KIND` is in `octavo/backends/NAME/kind.py`.

    That module imports nothing that the backend needs to compute.
    """
    kind = cast("BackendKind", import_module(f"octavo.backends.{entry.name}.kind").KIND)
    return kind.at(entry.device if device == "auto" else device)
